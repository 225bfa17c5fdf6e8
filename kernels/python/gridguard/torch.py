"""Attention over short sequences for PyTorch, at any batch size.

`scaled_dot_product_attention` has the signature and the semantics of PyTorch's function. The kernels serve f16, bf16
and f32 on a CUDA device, with up to 128 queries and keys (256 on Hopper) and a head dimension of 160 (256 for 16 keys),
and compute gradients. Batch axes, strides, masks and grouped heads are as in PyTorch. PyTorch runs all other calls, in
slices where its own kernels would overflow a grid.

After `install` the kernels also serve calls of PyTorch's own function::

    import gridguard.torch
    gridguard.torch.install()

`stats` counts the calls that were served, and why the others were not. `chunked` runs any module or function in chunks.
"""

from __future__ import annotations

try:
    import torch
except ImportError as error:
    raise ImportError("gridguard.torch needs PyTorch 2.4 or later: pip install torch") from error
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    raise ImportError(f"gridguard.torch needs PyTorch 2.4 or later, this is {torch.__version__}")

from gridguard._attention import scaled_dot_product_attention
from gridguard._backends import register_backend
from gridguard._block import replace_motion_modules, restore_motion_modules, temporal_block
from gridguard._chunked import Chunked, ChunkError, chunked
from gridguard._independence import DependentItemsError
from gridguard._install import install, installed, uninstall
from gridguard._models import replace_attention, restore_attention
from gridguard._stats import Stats, stats
from gridguard._tuning import Choice, Profile, Tuned, Tuning, compare_profiles, tune, tuning

__all__ = [
    "Choice",
    "ChunkError",
    "Chunked",
    "DependentItemsError",
    "Profile",
    "Stats",
    "Tuned",
    "Tuning",
    "chunked",
    "compare_profiles",
    "install",
    "installed",
    "register_backend",
    "replace_attention",
    "replace_motion_modules",
    "restore_attention",
    "restore_motion_modules",
    "scaled_dot_product_attention",
    "stats",
    "temporal_block",
    "tune",
    "tuning",
    "uninstall",
]
