"""PyTorch's own attention: on aligned tensors, and in slices where its kernels would overflow a grid."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gridguard import _launch, _native, _stats

Call = tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool, float | None, bool]
"""Query, key, value, mask, dropout_p, is_causal, scale and enable_gqa."""

PLAIN = (Tensor, torch.nn.Parameter)
"""The types of tensors that the kernels read. A subclass may give the same memory another meaning."""

MAX_SLICE = _native.MAX_GRID_Y
"""The largest batch and number of heads: PyTorch's kernels put them on the y and z axes of their grids."""

operator = torch.ops.aten.scaled_dot_product_attention.default
function = torch._C._nn.scaled_dot_product_attention
_composite = functools.partial(operator._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)

# PyTorch's fused kernels read 16 bytes at once. At other addresses cuDNN returns wrong numbers, flash and efficient
# attention raise an error or make the context unusable.
_READ_BYTES = 16
_BATCH, _HEADS = -4, -3


class _Thread(threading.local):
    is_unserved = False
    """Calls of PyTorch's operator in this thread stay in PyTorch."""
    is_traced = False
    """`torch.compile` traces PyTorch's operator in this thread."""


thread = _Thread()


def run(call: Call) -> Tensor:
    """Run PyTorch's function, in slices of batch and heads where they would overflow the grids of its kernels."""
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa = call
    options = {"dropout_p": dropout_p, "is_causal": is_causal, **keywords(scale, enable_gqa)}
    if not _may_be_fused(query, key, value, mask):
        return unserved(query, key, value, mask, **options)
    if mask is not None and mask.dim() >= 2 and mask.shape[-1] == 1:
        # PyTorch expands a mask of one column to strides that its own kernels refuse.
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    query, key, value, mask = aligned(query, key, value, mask)  # type: ignore[assignment]
    if not overflows(query, key, value, mask, enable_gqa):
        out = unserved(query, key, value, mask, **options)
        if out is None:
            # PyTorch 2.11 returns no tensor for zero items where it chooses cuDNN.
            given = keywords(scale, enable_gqa)
            out, _ = torch._scaled_dot_product_attention_math(query, key, value, mask, dropout_p, is_causal, **given)
        return with_aligned_gradient(out)
    if enable_gqa and query.shape[_HEADS] > MAX_SLICE:
        # Slices would have to end between groups.
        key, value = (one.repeat_interleave(query.shape[_HEADS] // one.shape[_HEADS], _HEADS) for one in (key, value))
        del options["enable_gqa"]
    return _run_slices(_BATCH, [query, key, value, mask], options)


def keywords(scale: float | None, enable_gqa: bool) -> dict[str, Any]:
    """Return the keyword-only arguments of PyTorch's function. PyTorch 2.4 has no `enable_gqa`."""
    return {"scale": scale, "enable_gqa": enable_gqa} if enable_gqa else {"scale": scale}


def unserved(*arguments: Any, **options: Any) -> Any:
    """Call PyTorch's function, and keep its operator from being served by the kernels."""
    # PyTorch 2.15 also compiles where the dispatcher calls us, which would call us again.
    if torch.compiler.is_dynamo_compiling() or thread.is_unserved:
        return function(*arguments, **options)
    thread.is_unserved = True
    try:
        return function(*arguments, **options)
    finally:
        thread.is_unserved = False


def composite(call: Call) -> Tensor:
    """Run PyTorch's operator as if no kernel were registered for it."""
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa = call
    return _composite(query, key, value, mask, dropout_p, is_causal, **keywords(scale, enable_gqa))


def is_compiling() -> bool:
    """Tell whether this call is traced into compiled code."""
    return torch.compiler.is_compiling() or thread.is_traced


@functools.cache
def traced_types() -> tuple[type, ...]:
    """Return the types that stand for plain tensors while `torch.compile` traces operators."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


def overflows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool) -> bool:
    """Tell whether a valid call overflows the grids of PyTorch's kernels. PyTorch rejects invalid calls itself."""
    # `torch.export` would turn a comparison into a bound on the batch. `is_exporting` is also true in `torch.compile`.
    if getattr(torch.compiler, "_is_exporting_flag", False):
        return False
    items, heads = query.shape[:2]
    if (items <= MAX_SLICE and heads <= MAX_SLICE) or items == 0 or heads == 0:
        return False
    for tensor in (key, value):
        if tensor.shape[0] not in (1, items) or tensor.shape[1] == 0:
            return False
        if heads % tensor.shape[1] != 0 if enable_gqa else tensor.shape[1] not in (1, heads):
            return False
    return mask is None or (mask.dim() <= 4 and broadcasts(mask, (items, heads, query.shape[-2], key.shape[-2])))


def broadcasts(mask: Tensor, sizes: tuple[int, ...]) -> bool:
    """Tell whether each axis of a mask has one element or the size of the scores."""
    return all(own in (1, full) for own, full in zip(mask.shape[::-1], sizes[::-1]))


def slices(tensor: Tensor | None, axis: int, size: int) -> list[Tensor | None]:
    """Split an axis that has `size` elements in the call. A tensor that is broadcast along the axis is not split."""
    count = (size + MAX_SLICE - 1) // MAX_SLICE
    if tensor is None or tensor.dim() < -axis or tensor.shape[axis] == 1:
        return [tensor] * count
    # Nearly equal sizes: a compiler would specialise a last slice of one item.
    return list(tensor.chunk(count, axis))


def _run_slices(axis: int, tensors: list[Tensor | None], options: dict[str, Any]) -> Tensor:
    """Run PyTorch's function in slices of this axis and of the batch axes after it."""
    if axis > _HEADS:
        return with_aligned_gradient(unserved(*tensors, **options))
    query = tensors[0]
    assert query is not None
    size = query.shape[axis]
    if size <= MAX_SLICE:
        return _run_slices(axis + 1, tensors, options)
    parts = (
        _run_slices(axis + 1, list(part), options) for part in zip(*(slices(tensor, axis, size) for tensor in tensors))
    )
    needs_grad = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
    if needs_grad or is_compiling():
        return torch.cat(list(parts), axis)
    return _concatenated(parts, axis, size)


def _concatenated(parts: Iterator[Tensor], axis: int, size: int) -> Tensor:
    """Concatenate parts, with only one of them in memory at a time."""
    out, begin = None, 0
    for part in parts:
        if out is None:
            sizes = list(part.shape)
            sizes[axis] = size
            out = part.new_empty(sizes)
        out.narrow(axis, begin, part.shape[axis]).copy_(part)
        begin += part.shape[axis]
        del part
    assert out is not None
    return out


def _may_be_fused(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Tell whether PyTorch may run fused kernels on a GPU. Its other kernels have no such limits."""
    if not is_compiling() and torch._C._get_tracing_state() is not None:
        return False
    types = traced_types() if thread.is_traced else PLAIN
    for tensor in (query, key, value) if mask is None else (query, key, value, mask):
        if is_other_type(tensor, types) or not getattr(tensor, _launch.SERVED_DEVICE):
            return False
    return bool(query.dim() == 4 and key.dim() == 4 and value.dim() == 4)


def is_other_type(tensor: Any, types: tuple[type, ...] = PLAIN) -> bool:
    """Tell whether a tensor is of none of these types, nested or sparse."""
    return type(tensor) not in types or tensor.is_nested or tensor.layout is not torch.strided


def aligned(*tensors: Tensor | None) -> list[Tensor | None]:
    """Copy the tensors that PyTorch's fused kernels cannot read, and return the others unchanged."""
    if is_compiling():
        return [None if one is None else torch.ops.gridguard.aligned(one) for one in tensors]
    found = [one if one is None or _is_aligned(one) else _aligned_copy(one) for one in tensors]
    if any(one is not other and type(one) in PLAIN for one, other in zip(found, tensors)):
        _stats.count(_stats.ALIGNED)
    return found


def with_aligned_gradient(out: Tensor) -> Tensor:
    """Make the backward pass copy the gradient of `out` where PyTorch's kernels cannot read it."""
    if not is_compiling() and out.grad_fn is not None:
        out.grad_fn.register_prehook(lambda gradients: tuple(aligned(*gradients)))
    return out


def _is_aligned(tensor: Tensor) -> bool:
    """Tell whether PyTorch's fused kernels can read a tensor, or are not chosen for it."""
    if tensor.dtype not in _launch.DTYPES or (tensor.shape[-1] != 1 and tensor.stride(-1) != 1) or tensor.is_neg():
        return True
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    # A traced tensor has no address. PyTorch allocates at multiples of 512 bytes, and Inductor copies inputs that lose
    # their alignment in a later call.
    is_real = type(tensor) in PLAIN
    if (tensor.data_ptr() if is_real else tensor.storage_offset() * tensor.element_size()) % _READ_BYTES != 0:
        return False
    # PyTorch pads contiguous rows of other widths, or chooses other kernels.
    if tensor.is_contiguous():
        return True
    step = _READ_BYTES // tensor.element_size()
    return all(size == 1 or stride % step == 0 for size, stride in zip(tensor.shape[:-1], tensor.stride()))


def _aligned_copy(tensor: Tensor) -> Tensor:
    if type(tensor) not in PLAIN:
        return torch.ops.gridguard.copied(tensor)
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    if is_transformed or (torch.is_grad_enabled() and tensor.requires_grad):
        return contiguous_copy(tensor)
    # With gradients, one element would receive those of the whole axis.
    return contiguous_copy(once(tensor)).expand(tensor.shape)


def once(tensor: Tensor, axes: int | None = None) -> Tensor:
    """Return the first element of each of the first axes that repeats the same elements (stride 0)."""
    for axis, (size, stride) in enumerate(zip(tensor.shape[:axes], tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


# `aligned` defers the decision to the compiler's trace of PyTorch's operators. `copied` is a copy that compilers do not
# optimise away.
_library = torch.library.Library("gridguard", "FRAGMENT")
_library.define("aligned(Tensor(a) tensor) -> Tensor(a)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("copied(Tensor tensor) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


@torch.library.impl(_library, "aligned", "CompositeImplicitAutograd")
def _aligned(tensor: Tensor) -> Tensor:
    return tensor if _is_aligned(tensor) else _aligned_copy(tensor)


@torch.library.impl(_library, "copied", "CompositeExplicitAutograd")
def contiguous_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor to contiguous memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


@torch.library.register_fake("gridguard::copied", lib=_library)
def _fake_copied(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


torch.library.register_autograd("gridguard::copied", lambda ctx, grad: grad, lib=_library)
