"""Attention over short sequences for PyTorch, at any batch size.

`scaled_dot_product_attention` has the signature and the semantics of `torch.nn.functional`. Calls that the
kernels serve run on them, in PyTorch's current stream; everything else runs in PyTorch, in slices of the batch
where its own kernels would overflow. After `install` calls of PyTorch's own function are served so::

    import gridguard.torch
    gridguard.torch.install()

The kernels serve f16, bf16 and f32 on a CUDA device: up to 128 queries and up to 128 keys, a head dimension of up to
160, any strides on the other axes, causal or with a mask that is broadcast to items and heads, and grouped heads.
`stats` says which calls were served, and why others were not.
"""

from __future__ import annotations

try:
    import torch
except ImportError as error:
    raise ImportError("gridguard.torch needs PyTorch 2.4 or later: pip install torch") from error
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    raise ImportError(f"gridguard.torch needs PyTorch 2.4 or later, this is {torch.__version__}")

from gridguard import _flops  # noqa: F401 (registers formulas)
from gridguard._attention import scaled_dot_product_attention
from gridguard._block import replace_motion_modules, restore_motion_modules, temporal_block
from gridguard._counts import Stats, stats
from gridguard._install import install, installed, uninstall
from gridguard._tuning import Choice, Profile, Tuned, Tuning, tune, tuning

__all__ = [
    "Choice",
    "Profile",
    "Stats",
    "Tuned",
    "Tuning",
    "install",
    "installed",
    "replace_motion_modules",
    "restore_motion_modules",
    "scaled_dot_product_attention",
    "stats",
    "temporal_block",
    "tune",
    "tuning",
    "uninstall",
]
