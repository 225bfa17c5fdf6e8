"""Makes the golden tensors for attention with PyTorch on a CUDA device.

Each file holds q, k, v of one shape and type, and out = softmax(q k^T / sqrt(head_dim)) v computed
by PyTorch's math backend in float64 from the very same q, k and v, stored as float32. The file's
metadata say with what it was made. Run: python3 make_golden.py FOLDER
"""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

# items, heads, frames, head_dim: the motivating shape, odd frames, odd head dims, more than one
# tile of keys, a single frame.
SHAPES = [(6, 5, 16, 64), (4, 3, 25, 40), (3, 2, 24, 72), (2, 2, 81, 64), (3, 5, 1, 7)]
DTYPES = {"f16": torch.float16, "f32": torch.float32}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.split()[0]
    made_with = {
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "backend": "scaled_dot_product_attention, math, float64",
    }
    torch.manual_seed(20261120)
    for name, dtype in DTYPES.items():
        for shape in SHAPES:
            q, k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
            with sdpa_kernel(SDPBackend.MATH):
                out = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
            dims = "x".join(map(str, shape))
            tensors = {"q": q, "k": k, "v": v, "out": out.float()}
            save_file({key: t.cpu().contiguous() for key, t in tensors.items()},
                      folder / f"attention_{name}_{dims}.safetensors", made_with)


main()
