"""Launches a kernel of Triton within PyTorch's profiler, and says whether the profiler saw kernels and the sum is right."""

import sys

import torch
import triton
import triton.language as tl
from torch.profiler import ProfilerActivity, profile


@triton.jit
def rows(out):
    tl.store(out + tl.program_id(1), 1.0)


count = int(sys.argv[1])
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
    out = torch.zeros(count, device="cuda")
    try:
        rows[(1, count)](out)
        launched = "accepted"
    except RuntimeError:
        launched = "refused"
    torch.cuda.synchronize()
kernels = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
print(f"launch {launched}, profiled {bool(kernels)}, sum {float(out.sum()):g}")
sys.exit(launched == "refused")
