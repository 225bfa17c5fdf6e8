"""Launches of the kernels on PyTorch's tensors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

from gridguard import _native

DEVICE_TYPE = "cuda"
# PyTorch for AMD GPUs calls these `cuda`, too.
SERVED_DEVICE = "is_cuda" if torch.version.hip is None else "is_meta"
"""The property of tensors that the kernels may serve: `submit` refuses tensors without memory."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""The types that the kernels compute."""

kernels = _native.Attention(torch)
if kernels.reader != "dlpack":
    logging.getLogger("gridguard").info(
        "PyTorch %s has no C functions for DLPack: tensors are read by their attributes", torch.__version__
    )


def submit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> str | None:
    """Launches attention in the current stream of the tensors' device. Returns why not, if the kernels do not
    serve it: then nothing was launched.

    The memory needs no `record_stream`: the caching allocator reuses it in the order of its own stream, and
    that it is used in another one is for the caller to say, as with PyTorch's own operators."""
    arguments = (query, key, value, out, bias, is_causal, scale, enable_gqa)
    if query.is_cuda:
        index = query.get_device()
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                return submit(*arguments)
        load_nvrtc()
    try:
        return kernels.submit(*arguments)
    except _native.UnavailableError as error:
        warn_once(str(error))
        return "unavailable"


@functools.cache
def load_nvrtc() -> None:
    """Loads the compiler that PyTorch's own packages bring, which the kernels then find by its name."""
    packages = Path(torch.__file__).parent.parent / "nvidia"
    major = (torch.version.cuda or "").split(".")[0]
    for folder in (packages / f"cu{major}" / "lib", packages / "cuda_nvrtc" / "lib"):
        # The compiler loads its built-in headers by name.
        for pattern in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            for library in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(library))


@functools.cache
def warn_once(report: str) -> None:
    text = f"gridguard's attention is not available, PyTorch's is used: {report}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)
