"""Attention over short sequences for PyTorch, at any batch size.

`scaled_dot_product_attention` has the signature and the semantics of `torch.nn.functional`. Calls that the
kernels serve run on them, in PyTorch's current stream; everything else runs in PyTorch, in slices of the batch
where its own kernels would overflow. `install` puts it in the place of PyTorch's function::

    import gridguard.torch
    gridguard.torch.install()

The kernels serve f16, bf16 and f32 on a CUDA device: sequences of up to 128 queries and as many keys, a head
dimension of up to 128, any strides on the other axes, causal or with a mask that is the same for all heads and
items, and grouped heads. `stats` says which calls were served, and why others were not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridguard import _native

try:
    import torch
except ImportError as error:
    raise ImportError("gridguard.torch needs PyTorch 2.4 or later: pip install torch") from error
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    raise ImportError(f"gridguard.torch needs PyTorch 2.4 or later, this is {torch.__version__}")

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["Stats", "install", "installed", "scaled_dot_product_attention", "stats", "uninstall"]

_log = logging.getLogger("gridguard")

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
_PLAIN = (Tensor, torch.nn.Parameter)
_DEVICE_TYPE = "cuda"
# PyTorch for AMD GPUs calls these `cuda`, too.
_SERVED_DEVICE = "is_cuda" if torch.version.hip is None else "is_meta"
"""The property of tensors that the kernels may serve: `_submit` refuses tensors without memory."""
_MOST_SLICE = _native.MAX_GRID_Y
"""PyTorch's kernels have batch and heads on the second and third axis of their grids."""

_pytorch: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own function, whatever is in its place when this is imported: that might call ours."""
_replaced: Callable[..., Tensor] = _pytorch
_xformers: Callable[..., Tensor] | None = None
_installing = threading.Lock()


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
    served = _serve(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if served is not None:
        return served
    return _run_pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


@dataclass(frozen=True)
class Stats:
    """How many calls since the program started took which path. Calls in compiled code are counted when they
    run, except those that PyTorch was chosen for when they were compiled."""

    served: int
    """Calls that the kernels served."""
    pytorch: dict[str, int]
    """Calls that PyTorch served, by reason."""


def stats() -> Stats:
    """How many calls took which path, and why."""
    with _counting:
        counts = dict(_counts)
    return Stats(counts.pop(_SERVED, 0), counts)


def install() -> None:
    """Puts `scaled_dot_product_attention` in the place of PyTorch's function, and serves xformers'
    `memory_efficient_attention` where that is imported. Modules that imported those functions by name before
    keep them. A second call has no effect."""
    global _replaced, _xformers
    with _installing:
        if F.scaled_dot_product_attention is not scaled_dot_product_attention:
            _replaced = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = scaled_dot_product_attention
        ops = sys.modules.get("xformers.ops")
        original = getattr(ops, "memory_efficient_attention", None)
        if original is not None and original is not _memory_efficient_attention:
            # The first one: another might call ours.
            _xformers = _xformers or original
            ops.memory_efficient_attention = _memory_efficient_attention  # type: ignore[union-attr]


def uninstall() -> None:
    """Puts back what was there. What was put in the place of our functions since is left there."""
    with _installing:
        if F.scaled_dot_product_attention is scaled_dot_product_attention:
            F.scaled_dot_product_attention = _replaced
        ops = sys.modules.get("xformers.ops")
        if getattr(ops, "memory_efficient_attention", None) is _memory_efficient_attention:
            ops.memory_efficient_attention = _xformers  # type: ignore[union-attr]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this context the function is installed, in all threads."""
    was_installed = F.scaled_dot_product_attention is scaled_dot_product_attention
    install()
    try:
        yield
    finally:
        if not was_installed:
            uninstall()


def _serve(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor | None:
    """The output, if the kernels serve the call."""
    compiling = torch.compiler.is_compiling()
    if not compiling and _is_transformed():
        # First, since sizes are not numbers while code is traced.
        reason: str | None = "transform"
    else:
        reason = _refusal(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is None:
        query, key, value, mask = _autocast(query, key, value, mask)
        if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
            reason = "dtype"
        elif mask is not None and mask.dtype not in (torch.bool, query.dtype):
            reason = "mask"
    if reason is not None:
        if not compiling:
            _count(reason)
        return None

    bias = None if mask is None else _bias(mask, query)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    needs_grad = query.requires_grad or key.requires_grad or value.requires_grad
    if compiling or (needs_grad and torch.is_grad_enabled()):
        # Through the dispatcher, which traces and differentiates it.
        return _operator(query, key, value, bias, is_causal, factor, enable_gqa)
    out = torch.empty_like(query)
    reason = _submit(query, key, value, out, bias, is_causal, factor, enable_gqa)
    _count(reason)
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
) -> str | None:
    """Why the kernels do not serve a call; None if they may. Invalid calls go to PyTorch, too, which raises its
    errors."""
    tensors = (query, key, value)
    for tensor in tensors if mask is None else (*tensors, mask):
        if type(tensor) not in _PLAIN or tensor.is_nested or tensor.layout is not torch.strided:
            return "tensor type"
    index = query.get_device()
    if not getattr(query, _SERVED_DEVICE) or key.get_device() != index or value.get_device() != index:
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
    length = size[-2]
    if length != keys[-2]:
        return "lengths differ"
    if length > _native.MAX_LENGTH:
        return "length"
    if size[-1] > _native.MAX_HEAD_DIM or value.shape[-1] != size[-1] or query.numel() == 0:
        return "shape"
    if mask is not None:
        if is_causal or mask.get_device() != index or mask.requires_grad:
            return "mask"
        sizes = mask.shape
        if not 2 <= len(sizes) <= rank or sizes[-1] not in (1, length) or sizes[-2] not in (1, length):
            return "mask"
        if mask.numel() != sizes[-1] * sizes[-2]:
            return "mask of items or heads"
    return None


def _is_transformed() -> bool:
    """Whether something in this thread records or transforms operators, and would not see a launch."""
    return (
        _dispatch_modes() > 0
        or _functorch_level() is not None
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
    )


_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_tracing_state = torch._C._get_tracing_state


def _autocast(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The tensors as autocast passes them to PyTorch's function."""
    if not torch.is_autocast_enabled(_DEVICE_TYPE):
        return query, key, value, mask
    dtype = torch.get_autocast_dtype(_DEVICE_TYPE)

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    return cast(query), cast(key), cast(value), None if mask is None else cast(mask)


def _bias(mask: Tensor, query: Tensor) -> Tensor:
    """The mask of all heads and items as contiguous numbers to add to the scores."""
    length = query.shape[-2]
    mask = mask.reshape(mask.shape[-2:])
    if mask.dtype is torch.bool:
        zeros = torch.zeros((length, length), dtype=query.dtype, device=query.device)
        return zeros.masked_fill(mask.logical_not(), -math.inf)
    return mask.expand(length, length).contiguous()


def _submit(
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
    if not query.is_cuda:
        return "device"
    if query.dtype is torch.float32 and (query.is_neg() or key.is_neg() or value.is_neg()):
        return "tensor type"
    index = query.get_device()
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            return _submit(query, key, value, out, bias, is_causal, scale, enable_gqa)
    _load_nvrtc()
    try:
        return _native.attention(
            (query.data_ptr(), query.shape, query.stride()),
            (key.data_ptr(), key.shape, key.stride()),
            (value.data_ptr(), value.shape, value.stride()),
            (out.data_ptr(), out.shape, out.stride()),
            None if bias is None else bias.data_ptr(),
            scale,
            is_causal,
            enable_gqa,
            _DTYPES[query.dtype],
            index,
            torch._C._cuda_getCurrentRawStream(index),
            torch._C._cuda_isCurrentStreamCapturing(),
        )
    except _native.UnavailableError as error:
        _warn_once(str(error))
        return "unavailable"


@functools.cache
def _load_nvrtc() -> None:
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
def _warn_once(report: str) -> None:
    text = f"gridguard's attention is not available, PyTorch's is used: {report}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)


def _run_pytorch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """PyTorch's function, in slices of batch and heads where these would overflow the grids of its kernels."""
    options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if enable_gqa:
        # PyTorch 2.4 does not know it.
        options["enable_gqa"] = enable_gqa
    if not _overflows(query, key, value):
        return _pytorch(query, key, value, mask, **options)

    most = _MOST_SLICE
    # Grouped heads would have to be cut between groups.
    heads_at_once = query.shape[1] if enable_gqa else most
    out = None
    for item in range(0, query.shape[0], most):
        for head in range(0, query.shape[1], heads_at_once):
            begin = (item, head)
            size = (most, heads_at_once)
            part = _pytorch(
                _slice(query, begin, size),
                _slice(key, begin, size),
                _slice(value, begin, size),
                _slice(mask, begin, size) if isinstance(mask, Tensor) else mask,
                **options,
            )
            if out is None:
                out = part.new_empty((*query.shape[:2], *part.shape[2:]))
            out[item : item + most, head : head + heads_at_once] = part
    assert out is not None
    return out


def _overflows(query: Any, key: Any, value: Any) -> bool:
    """Whether batch or heads of a valid call exceed an axis of a grid."""
    if not torch.compiler.is_compiling() and _tracing_state() is not None:
        return False
    tensors = (query, key, value)
    if not all(type(tensor) in _PLAIN and not tensor.is_nested for tensor in tensors):
        return False
    if not getattr(query, _SERVED_DEVICE) or any(tensor.dim() != 4 for tensor in tensors):
        return False
    items, heads = query.shape[:2]
    if items <= _MOST_SLICE and heads <= _MOST_SLICE:
        return False
    return items > 0 and heads > 0 and all(tensor.shape[0] in (1, items) for tensor in tensors)


def _slice(tensor: Tensor, begin: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Some items and heads of a tensor whose last four axes are items, heads and a matrix. Axes of one are
    for all items or heads."""
    for axis, start, length in zip((-4, -3), begin, size):
        if tensor.dim() >= -axis and tensor.shape[axis] > 1:
            # PyTorch checks the number of heads, which may be less than that of the query.
            tensor = tensor.narrow(axis, start, min(length, tensor.shape[axis] - start))
    return tensor


def _memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """As xformers' function, whose tensors are [batch, length, heads, head_dim], or without heads."""
    assert _xformers is not None
    is_plain = attn_bias is None or isinstance(attn_bias, Tensor)
    if is_plain and query.dim() in (3, 4) and all(given is None for given in options.values()):
        q, k, v = (t.transpose(1, 2) if t.dim() == 4 else t for t in (query, key, value))
        served = _serve(q, k, v, attn_bias, p, False, scale, False)
        if served is not None:
            return served.transpose(1, 2) if query.dim() == 4 else served
    return _xformers(query, key, value, attn_bias, p, scale, **options)


_SERVED = "served"
_counts: dict[str, int] = {}
_counting = threading.Lock()


def _renew_lock() -> None:
    """In a forked process, where the thread that held the lock is gone."""
    global _counting
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _count(reason: str | None) -> None:
    """Counts a call that the kernels served, or PyTorch for a reason, which is logged once."""
    name = reason or _SERVED
    with _counting:
        count = _counts[name] = _counts.get(name, 0) + 1
    if count == 1 and reason is not None:
        _log.info("attention by PyTorch: %s (further calls are only counted)", reason)


_library = torch.library.Library("gridguard", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, "
    "bool enable_gqa) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


@torch.library.impl(_library, "attention", "CompositeExplicitAutograd")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    """Attention by the kernels, or by PyTorch where they do not serve it."""
    out = torch.empty_like(query)
    reason = _submit(query, key, value, out, bias, is_causal, scale, enable_gqa)
    _count(reason)
    if reason is not None:
        out.copy_(_run_pytorch(query, key, value, bias, 0.0, is_causal, scale, enable_gqa))
    return out


@torch.library.register_fake("gridguard::attention", lib=_library)
def _fake(query: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(query)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.is_causal, ctx.scale, ctx.enable_gqa = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of PyTorch's own function, which is called again."""
    *inputs, bias = ctx.saved_tensors
    # If the gradients will be differentiated again, the inputs keep their history.
    again = torch.is_grad_enabled()
    needed = ctx.needs_input_grad[:3]
    with torch.enable_grad():
        if not again:
            inputs = [one.detach().requires_grad_(need) for one, need in zip(inputs, needed)]
        query, key, value = inputs
        options = (ctx.is_causal, ctx.scale, ctx.enable_gqa)
        out = _run_pytorch(query, key, value, bias, 0.0, *options)
        wanted = [one for one, need in zip(inputs, needed) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again))
    return (*(next(found) if need else None for need in needed), None, None, None, None)


torch.library.register_autograd(
    "gridguard::attention", _backward, setup_context=_setup_context, lib=_library
)
_operator = torch.ops.gridguard.attention.default
