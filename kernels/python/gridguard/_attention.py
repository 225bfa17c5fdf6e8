"""Attention by the kernels if they serve a call, else by PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gridguard import _launch, _native, _pytorch, _stats
from gridguard._operator import attention, compute, is_slower, record
from gridguard._pytorch import PLAIN, Call


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention`, with its errors, for any batch size.

    The output has the memory layout of `query`. A query whose keys are all masked gives zeros. A kernel
    computes the gradients, too, or else PyTorch, whose backward pass computes the call again. Raises GridguardError if
    a launch of the kernels fails.
    """
    if not torch.compiler.is_compiling():
        served = _launch.kernels.serve(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if served is not None:
            return served
        if _launch.kernels.has_function_mode():
            # The mode must see this call of PyTorch's function, and no other.
            options = _pytorch.keywords(scale, enable_gqa)
            return _pytorch.function(query, key, value, attn_mask, dropout_p, is_causal, **options)
    call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    served = serve_uncommon(call)
    return _pytorch.run(call) if served is None else served


# TorchScript cannot compile this function, so scripts call PyTorch's operator.
torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")


def serve(call: Call) -> Tensor | None:
    """Return the output if the kernels serve a call."""
    # One native call checks, launches and counts: it takes the least time on the host.
    served = None if _pytorch.is_compiling() else _launch.kernels.serve(*call)
    return serve_uncommon(call) if served is None else served


def serve_uncommon(call: Call, types: tuple[type, ...] = PLAIN) -> Tensor | None:
    """Serve a call that `kernels.serve` does not, and whose tensors are of these types."""
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa = call
    compiling = _pytorch.is_compiling()
    if not compiling and is_transformed():
        # Sizes are not numbers while code is traced, so this check is first.
        _stats.count("transform")
        return None
    reason, needs_grad = _refusal(call, types), False
    if reason is None:
        given = (query, key, value) if mask is None else (query, key, value, mask)
        needs_grad = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        query, key, value, mask = _autocast(query, key, value, mask)
        if query.dtype not in _launch.DTYPES or not query.dtype == key.dtype == value.dtype:
            reason = "dtype"
        elif mask is not None and mask.dtype not in (torch.bool, query.dtype):
            reason = "mask"
        elif is_slower(query, key, value, mask is not None, is_causal, needs_grad):
            reason = _stats.SLOWER
    if reason is not None:
        if not compiling:
            _stats.count(reason, call[:3])
        return None

    is_recorded = compiling or _launch.kernels.is_recorded()
    bias = None if mask is None else _bias(mask, query, key, is_recorded or needs_grad)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if is_recorded:
        # The dispatcher traces and records the operator.
        return attention(query, key, value, bias, is_causal, factor, enable_gqa)
    options = (is_causal, factor, enable_gqa)
    with torch.no_grad():
        out, reason = compute(query, key, value, bias, *options)
    if reason is not None:
        return None
    return record(query, key, value, bias, (out, *options)) if needs_grad else out


def _refusal(call: Call, types: tuple[type, ...]) -> str | None:
    """Return why the kernels do not serve a call. PyTorch raises the errors of invalid calls."""
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa = call
    for tensor in (query, key, value) if mask is None else (query, key, value, mask):
        if _pytorch.is_other_type(tensor, types):
            return "tensor type"
    index = query.get_device()
    if not getattr(query, _launch.SERVED_DEVICE) or key.get_device() != index or value.get_device() != index:
        return "device"
    if dropout_p != 0.0:
        return "dropout"
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        return "option type"
    if scale is not None and not (isinstance(scale, (int, float)) and 0.0 < scale < math.inf):
        return "scale"
    size, keys = query.shape, key.shape
    rank = len(size)
    if rank < 2 or len(keys) != rank or value.dim() != rank:
        return "shape"
    if query.numel() == 0 or key.numel() == 0 or value.numel() == 0:
        return "empty"
    if max(size[-2], keys[-2]) > _native.MAX_LENGTH:
        return "length"
    if max(size[-1], value.shape[-1]) > _native.MAX_HEAD_DIM:
        return "shape"
    if mask is not None:
        if is_causal or mask.get_device() != index:
            return "mask"
        if not 2 <= mask.dim() <= rank or not _pytorch.broadcasts(mask, (*size[:-1], keys[-2])):
            return "mask"
    return None


def is_transformed() -> bool:
    """Tell whether this thread records or transforms functions or operators, and would not see a launch."""
    return _launch.kernels.is_transformed()


def _autocast(*tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Cast query, key, value and mask as autocast does for PyTorch's function."""
    if torch.is_autocast_enabled(_launch.DEVICE_TYPE):
        dtype = torch.get_autocast_dtype(_launch.DEVICE_TYPE)
        tensors = tuple(
            one.to(dtype) if one is not None and one.is_floating_point() and one.dtype is not torch.float64 else one
            for one in tensors
        )
    return tensors  # type: ignore[return-value]


def _bias(mask: Tensor, query: Tensor, key: Tensor, as_numbers: bool) -> Tensor:
    """Return a mask with contiguous rows, booleans as numbers to add to the scores if wanted."""
    keys = key.shape[-2]
    mask = mask.expand(*mask.shape[:-1], keys)
    if as_numbers and mask.dtype is torch.bool:
        sizes = mask.shape
        if not _pytorch.is_compiling():
            # The bias of a repeated mask is as small as the mask.
            mask = _pytorch.once(mask, -1)
        mask = torch.where(mask, query.new_zeros(()), -math.inf).expand(sizes)
    return mask if keys == 1 or mask.stride(-1) == 1 else mask.contiguous()
