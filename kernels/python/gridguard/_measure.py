"""Times our kernels and PyTorch's for the call of a shape that no profile decides."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _launch, _native, _pytorch

# Nine samples bound their median with 98 % confidence. Each has four calls, or fewer that take long.
_SAMPLES, _CALLS, _SAMPLE_NS = 9, 4, 4_000_000
# Copies of the tensors and of the scores in f32 that both implementations allocate at most.
_COPIES = 4
# Seconds without a measurement after one failed or memory was short: asking for free memory takes as long as a small call.
_PAUSE = 1.0
_paused_until = 0.0


def measure(*call: Any) -> tuple[list[int], list[int]] | None:
    """Return the sorted nanoseconds of a call by our kernels, none if they do not serve it, and by PyTorch.

    The arguments are query, key, value, mask, is_causal, scale and enable_gqa. A call that is differentiated has both
    passes. Return None during a capture, in a job of several ranks, which must choose alike, if memory is short, if this
    program slows PyTorch's kernels, and if the measurement fails: the call itself then raises its error, if it has one.
    """
    global _paused_until
    tensors = [one for one in call[:4] if one is not None]
    query, stream = tensors[0], contextlib.nullcontext()
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        _launch.kernels.measures = False
        return None
    if time.monotonic() < _paused_until or _is_slowed():
        return None
    needs_grad = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    try:
        if query.is_cuda:
            with torch.cuda.device(query.device):
                if torch.cuda.is_current_stream_capturing():
                    return None
                _require_memory(tensors)
                stream = torch.cuda.stream(torch.cuda.current_stream())  # type: ignore[assignment]
        # A new thread has none of this thread's modes, and no hooks on saved tensors, which a checkpoint would count.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_times, call, needs_grad, stream).result()
    except Exception:
        _paused_until = time.monotonic() + _PAUSE
        return None


def _times(call: Any, needs_grad: bool, stream: Any) -> tuple[list[int], list[int]]:
    _native.ignore_calls()
    aliases = [one if one is None else one.detach().requires_grad_(one.requires_grad) for one in call[:4]]
    leaves = [one for one in aliases if one is not None and one.requires_grad]
    is_served = True

    def sample(function: Any, calls: int = 1) -> int:
        nonlocal is_served
        begin = time.perf_counter_ns()
        for _ in range(calls):
            out = function((*aliases, 0.0, *call[4:]))
            if out is None:
                is_served = False
            elif needs_grad:
                torch.autograd.grad(out, leaves, torch.ones_like(out))
        if aliases[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        return (time.perf_counter_ns() - begin) // calls

    both = (_attention.serve, _pytorch.run)
    # A backward pass that computes a checkpoint again waits here in PyTorch's thread of the device: gradients that were
    # computed there would wait for it.
    with stream, torch.set_grad_enabled(needs_grad), torch.autograd.set_multithreading_enabled(False):
        # The first calls load code.
        sample(_attention.serve)
        if not is_served:
            return [], []
        sample(_pytorch.run)
        calls = min(_CALLS, max(1, _SAMPLE_NS // max(map(sample, both))))
        ours, theirs = zip(*([sample(function, calls) for function in both] for _ in range(_SAMPLES)))
    return sorted(ours) if is_served else [], sorted(theirs)


def _is_slowed() -> bool:
    """Tell whether the program has switched fast kernels of PyTorch off, which other programs may use."""
    backends = torch.backends.cuda
    fused = backends.flash_sdp_enabled() and backends.mem_efficient_sdp_enabled()
    return not fused or torch.are_deterministic_algorithms_enabled()


def _require_memory(tensors: list[Tensor]) -> None:
    """Raise OutOfMemoryError if half of the free memory may not hold what the calls allocate."""
    query, key = tensors[:2]
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    scores = query[..., 0].numel() * key.shape[-2] * torch.float32.itemsize
    if _COPIES * (scores + sum(one.numel() * one.element_size() for one in tensors)) > free // 2:
        raise torch.cuda.OutOfMemoryError("too little to measure")
