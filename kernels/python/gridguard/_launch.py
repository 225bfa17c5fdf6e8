"""Launches the kernels on PyTorch's tensors."""

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
SERVED_DEVICE = "is_cuda" if torch.version.hip is None else "is_meta"
"""The property of tensors on a served device. AMD devices are `cuda` too, and `submit` refuses meta tensors."""
DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
"""The types that the kernels support, with their names."""

kernels = _native.Attention(torch)
if kernels.reader != "dlpack":
    logging.getLogger("gridguard").info(
        "PyTorch %s has no C functions for DLPack: tensors are read by their attributes", torch.__version__
    )


def borders(index: int, dtype: str) -> list[tuple[int, list[int]]]:
    """Return `kernels.borders` of a device."""
    return kernels.borders(index, dtype)


# `torch.compiler.assume_constant_result` would import the compiler.
borders._dynamo_marked_constant = True  # type: ignore[attr-defined]


def submit(
    tensors: tuple[Tensor, ...],
    bias: Tensor | None,
    bias_gradient: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool = False,
) -> str | None:
    """Launch attention on PyTorch's current stream, or return why it is not served.

    The tensors are (query, key, value, out), or for gradients (query, key, value, grad, dq, dk, dv). `bias_gradient` is
    written for each problem: [batch ..., queries, keys].
    """
    # No `record_stream`: as with PyTorch's operators, the caller orders memory of another stream.
    if tensors[0].is_cuda:
        index = tensors[0].get_device()
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                return submit(tensors, bias, bias_gradient, is_causal, scale, enable_gqa)
        load_nvrtc()
    try:
        if len(tensors) == 4:
            return kernels.submit(tensors, bias, is_causal, scale, enable_gqa)
        return kernels.submit_backward(tensors, bias, bias_gradient, is_causal, scale)
    except _native.UnavailableError as error:
        warn_once(str(error))
        return "unavailable"


def residual_norm(
    x: Tensor, added: Tensor, out: Tensor, cast: Tensor, weight: Tensor, epsilon: float, is_centered: bool
) -> str | None:
    """Launch `out = norm(x + added) * weight`, and `cast`, the same in its type, on PyTorch's current stream.

    Return why the kernel does not serve the call, if so. The plain tensors `[rows, columns]` are f32, but for `added`
    and `cast`. `out` may be `x`. The norm is the layer norm if it is centered, else the root mean square norm.
    """
    index, tensors = x.get_device(), (x, added, out, cast, weight)
    if not x.is_cuda:
        return "device"
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            return residual_norm(*tensors, epsilon, is_centered)
    if any(one.get_device() != index or not one.is_contiguous() or one.data_ptr() == 0 for one in tensors):
        return "device"
    if any(one.shape != x.shape for one in tensors[:4]) or x.dim() != 2 or weight.shape != x.shape[1:]:
        return "shape"
    if any(one.dtype is not torch.float32 for one in (x, out, weight)) or added.dtype is not cast.dtype:
        return "dtype"
    load_nvrtc()
    problem = (*x.shape, DTYPES.get(cast.dtype, "f32"), is_centered, index)
    addresses = [one.data_ptr() for one in tensors]
    stream, capturing = torch._C._cuda_getCurrentRawStream(index), torch._C._cuda_isCurrentStreamCapturing()
    try:
        return _native.residual_norm(problem, addresses, epsilon, stream, capturing)
    except _native.UnavailableError as error:
        warn_once(str(error))
        return "unavailable"


@functools.cache
def load_nvrtc() -> None:
    """Load the NVRTC of PyTorch's packages, which the kernels then find by name."""
    packages = Path(torch.__file__).parent.parent / "nvidia"
    major = (torch.version.cuda or "").split(".")[0]
    for folder in (packages / f"cu{major}" / "lib", packages / "cuda_nvrtc" / "lib"):
        # NVRTC loads its built-in headers by name.
        for pattern in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            for library in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(library))


@functools.cache
def warn_once(report: str) -> None:
    """Warn that PyTorch serves all calls, once for each report."""
    text = f"gridguard's kernels are not available, PyTorch's are used: {report}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)
