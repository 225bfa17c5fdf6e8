"""Attention by the kernels where they serve a call, else by PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gridguard import _fallback, _launch, _native, _pytorch
from gridguard._aligned import PLAIN
from gridguard._counts import count
from gridguard._operator import attention, compute


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
    """As `torch.nn.functional.scaled_dot_product_attention`, with its errors, for any batch size.

    The output has the memory layout of `query`. A query whose keys are all masked gives zeros.
    Gradients are PyTorch's, which computes the call again in the backward pass.

    Raises GridguardError if a launch of the kernels fails; PyTorch raises everything else.
    """
    if _function_modes() > 0 and not torch.compiler.is_compiling() and _has_function_mode():
        # The mode sees the call of PyTorch's function, and none of our own calls.
        options = {"enable_gqa": True} if enable_gqa else {}
        return _pytorch.function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
    served = serve(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if served is not None:
        return served
    return _fallback.run(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


# Scripts of PyTorch, which cannot compile Python such as ours, call its operator.
torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")


def serve(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    types: tuple[type, ...] = PLAIN,
) -> Tensor | None:
    """The output, if the kernels serve the call, whose tensors are of these types."""
    compiling = _pytorch.is_compiling()
    if not compiling:
        if is_transformed():
            # First, since sizes are not numbers while code is traced.
            count("transform")
            return None
        if mask is None and not _is_profiled() and not torch.is_autocast_enabled(_launch.DEVICE_TYPE):
            # The common call costs the host least: checked, launched and counted by one function.
            served = _launch.kernels.serve(query, key, value, dropout_p, is_causal, scale, enable_gqa)
            if served is not None:
                return served
    reason = _refusal(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, types)
    if reason is None:
        query, key, value, mask = _autocast(query, key, value, mask)
        if query.dtype not in _launch.DTYPES or not query.dtype == key.dtype == value.dtype:
            reason = "dtype"
        elif mask is not None and mask.dtype not in (torch.bool, query.dtype):
            reason = "mask"
    if reason is not None:
        if not compiling:
            count(reason)
        return None

    bias = None if mask is None else _bias(mask, query, key)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    needs_grad = query.requires_grad or key.requires_grad or value.requires_grad
    if compiling or (needs_grad and torch.is_grad_enabled()) or _is_profiled():
        # Through the dispatcher, which traces, differentiates and records it.
        return attention(query, key, value, bias, is_causal, factor, enable_gqa)
    out, reason = compute(query, key, value, bias, is_causal, factor, enable_gqa)
    return out if reason is None else None


def _refusal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    types: tuple[type, ...],
) -> str | None:
    """Why the kernels do not serve a call; None if they may. Invalid calls go to PyTorch, too, which raises its
    errors."""
    tensors = (query, key, value)
    for tensor in tensors if mask is None else (*tensors, mask):
        if type(tensor) not in types or tensor.is_nested or tensor.layout is not torch.strided:
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
    if max(size[-2], keys[-2]) > _native.MAX_LENGTH:
        return "length"
    if size[-1] > _native.MAX_HEAD_DIM or value.shape[-1] != size[-1] or query.numel() == 0 or keys[-2] == 0:
        return "shape"
    if mask is not None:
        if is_causal or mask.get_device() != index or mask.requires_grad:
            return "mask"
        sizes, scores = mask.shape, (*size[:-1], keys[-2])
        if not 2 <= len(sizes) <= rank or any(own not in (1, full) for own, full in zip(sizes[::-1], scores[::-1])):
            return "mask"
    return None


def is_transformed() -> bool:
    """Whether something in this thread records or transforms calls or operators, and would not see a launch."""
    return (
        dispatch_modes() > 0
        or (_function_modes() > 0 and _has_function_mode())
        or _functorch_level() is not None
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
    )


dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_tracing_state = torch._C._get_tracing_state


def _has_function_mode() -> bool:
    """Whether there is a mode that may change the call: `torch.set_default_device` only changes new tensors."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(type(mode).__module__ != "torch.utils._device" for mode in modes)


def _is_profiled() -> bool:
    return torch.autograd.profiler._is_profiler_enabled


def _autocast(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The tensors as autocast passes them to PyTorch's function."""
    if not torch.is_autocast_enabled(_launch.DEVICE_TYPE):
        return query, key, value, mask
    dtype = torch.get_autocast_dtype(_launch.DEVICE_TYPE)

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    return cast(query), cast(key), cast(value), None if mask is None else cast(mask)


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as numbers to add to the scores, one after another in each row."""
    keys = key.shape[-2]
    mask = mask.expand(*mask.shape[:-1], keys)
    if mask.dtype is torch.bool:
        zeros = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        return zeros.masked_fill(mask.logical_not(), -math.inf)
    return mask if keys == 1 or mask.stride(-1) == 1 else mask.contiguous()
