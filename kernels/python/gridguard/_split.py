"""Splits the inputs of a call into chunks, and joins the outputs of the chunks, with gradients and without copies."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_leaves, tree_unflatten

from gridguard._native import GridguardError

Dim = int | Sequence[Any] | Mapping[int | str, Any]
"""The axis of the first argument with tensors, or an axis, None or a tree of them for each argument."""

# Outputs that have no items. A number might depend on how many items there are.
_CONSTANTS = (bool, str, type(None), torch.dtype, torch.device)
_LEAF = tree_flatten(0)[1]
# The axis of an argument that the caller did not name.
_UNNAMED = "unnamed"


class Batch:
    """The arguments of a call, whose named tensors are split along one axis each."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], dim: Dim, function: Callable[..., Any]) -> None:
        self.leaves, self._spec = tree_flatten((args, kwargs))
        # By position or name.
        self._values: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}  # type: ignore[dict-item]
        self._dim, dims = dim, self._dims(dim, function)
        given: Any = tuple(dims[at] for at in range(len(args))), {name: dims[name] for name in kwargs}
        axes = _broadcast_to_and_flatten(given, self._spec)
        if axes is None:
            raise ValueError(f"dim is {dim}, which has another structure than the arguments")
        self.axes = [_axis(leaf, axis) for leaf, axis in zip(self.leaves, axes)]
        pairs = [(leaf, axis) for leaf, axis in zip(self.leaves, self.axes) if axis is not None]
        if not pairs or len({leaf.shape[axis] for leaf, axis in pairs}) > 1:
            shapes = [tuple(leaf.shape) for leaf in self.leaves if isinstance(leaf, Tensor)]
            raise ValueError(f"dim is {dim}, but the shapes of the inputs are {shapes}: pass the axes of the items")
        first, axis = pairs[0]
        self.items: int = first.shape[axis]
        self._require_named(dims, dim if isinstance(dim, int) else axis, first.numel())
        devices = [leaf.device for leaf in self.leaves if isinstance(leaf, Tensor)]
        # The CPU may have some inputs of a GPU's function.
        self.device = next((device for device in devices if device.type != "cpu"), devices[0])
        self._gradients: dict[int, _Gradient] = {}
        self._split = [(at, axis) for at, axis in enumerate(self.axes) if axis is not None]
        # The general way takes longer on the host than some chunks.
        self._is_flat = [*map(id, self.leaves)] == [*map(id, self._values.values())]

    def _dims(self, dim: Dim, function: Callable[..., Any]) -> dict[int | str, Any]:
        """Return the axes of each argument, or that it has no name."""
        positions = [key for key in self._values if isinstance(key, int)]
        given: dict[int | str, Any] = {}
        if isinstance(dim, int):
            holders = (key for key, value in self._values.items() if _lengths(value, dim, False))
            given = {key: dim for key in itertools.islice(holders, 1)}
        elif isinstance(dim, Mapping):
            names = _parameters(function) if any(name not in self._values for name in dim) else []
            # An argument that the function has may be left out.
            missing = [str(name) for name in dim if name not in self._values and name not in names]
            if missing:
                raise ValueError(f"dim names {', '.join(missing)}, which the call does not have")
            given = {**{at: dim[name] for at, name in zip(positions, names) if name in dim}, **dim}
        elif len(dim) != len(positions):
            raise ValueError(f"dim has {len(dim)} axes, but the call has {len(positions)} positional arguments")
        else:
            given = dict(enumerate(dim))
        for key, axis in given.items():
            value = self._values.get(key)
            if isinstance(axis, int) and value is not None and not _lengths(value, axis, False):
                raise ValueError(f"dim of argument {key!r} is {axis}, but it has no tensor with this axis")
        return {key: given.get(key, _UNNAMED) for key in self._values}

    def _require_named(self, dims: dict[int | str, Any], axis: int, numel: int) -> None:
        """Refuse arguments that may have the items, but are not named."""
        lengths = {key: _lengths(self._values[key], axis, True) for key, given in dims.items() if given == _UNNAMED}
        has_items = {key for key, found in lengths.items() if self.items in found and self.items > 1}
        has_items = has_items or {key for key, found in lengths.items() if numel == 1 and max(found, default=0) > 1}
        if has_items:
            whole = {key: None if given == _UNNAMED else given for key, given in dims.items()}
            ways: list[Any] = [{**whole, **dict.fromkeys(has_items, axis)}, whole]
            if all(isinstance(key, int) or ways[0][key] is None for key in whole):
                ways = [tuple(given for key, given in way.items() if isinstance(key, int)) for way in ways]
            names = ", ".join(f"argument {key!r}" for key in dims if key in has_items)
            text = f"{names} may have the {self.items} items, but dim is {self._dim}"
            raise ValueError(f"{text}: pass dim={ways[0]} to split it, or dim={ways[1]} to pass it whole")

    def split(self) -> list[Tensor]:
        """Return the tensors that are split."""
        return [leaf for leaf, axis in zip(self.leaves, self.axes) if axis is not None]

    def part(self, begin: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a chunk, which are views of the whole."""
        leaves = list(self.leaves)
        for at, axis in self._split:
            if at in self._gradients:
                leaves[at] = _Part.apply(self._gradients[at].token, self._gradients[at], begin, size)
            else:
                leaves[at] = leaves[at].narrow(axis, begin, size)
        self._part = leaves
        if not self._is_flat:
            return tree_unflatten(leaves, self._spec)
        names = [key for key in self._values if isinstance(key, str)]
        count = len(leaves) - len(names)
        return tuple(leaves[:count]), dict(zip(names, leaves[count:]))

    def require_unchanged(self, *part: Any) -> None:
        """Refuse results in a list or a dictionary of the last part, which is a copy of the caller's."""
        if not self._is_flat:
            leaves, spec = tree_flatten(part)
            if spec != self._spec or any(one is not other for one, other in zip(leaves, self._part)):
                raise GridguardError("it writes into a list or a dictionary that it gets: return the results")

    def gather_gradients(self) -> None:
        """Make the backward passes of later parts write into one gradient for each input.

        The backward pass of `narrow` would add a gradient of the whole input for each chunk.
        """
        for at, (leaf, axis) in enumerate(zip(self.leaves, self.axes)):
            if axis is not None and leaf.requires_grad and torch.is_grad_enabled():
                self._gradients[at] = _Gradient(leaf, axis)

    def forget(self) -> None:
        """Release the inputs, after the last part."""
        for gradient in self._gradients.values():
            gradient.x = None


def _axis(leaf: Any, axis: Any) -> int | None:
    """Return the axis of a leaf that is split."""
    if axis is None or axis == _UNNAMED or not isinstance(leaf, Tensor):
        return None
    if not isinstance(axis, int) or not -leaf.dim() <= axis < leaf.dim():
        raise ValueError(f"dim is {axis} for a tensor of shape {tuple(leaf.shape)}")
    return axis % leaf.dim()


def _lengths(value: Any, axis: int, with_lists: bool) -> list[int]:
    """Return how many items an argument may have."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    found = [leaf.shape[axis] for leaf in tensors if -leaf.dim() <= axis < leaf.dim()]
    is_list = with_lists and (isinstance(value, list) or type(value).__name__ == "ndarray")
    return [*found, len(value)] if is_list else found


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def is_same(one: Any, other: Any) -> bool:
    """Compare values without calling operators of tensors."""
    return one is other or (
        type(one) is type(other) and type(one) in (bool, int, float, str, torch.Size) and one == other
    )


def _is_alike(leaf: Any, own: Any) -> bool:
    if isinstance(leaf, Tensor) and isinstance(own, Tensor):
        return leaf.shape == own.shape and leaf.dtype is own.dtype and leaf.device == own.device
    return is_same(leaf, own)


def _has(leaf: Tensor, axis: Any, items: int) -> bool:
    is_axis = leaf.layout is torch.strided and isinstance(axis, int) and -leaf.dim() <= axis < leaf.dim()
    return is_axis and leaf.shape[axis] == items


def flattened(result: Any, dim: Any, items: int) -> tuple[list[Any], Any, list[int]]:
    """Return the leaves of a result, its tree, and the axes of the items.

    Raises ValueError if an output is neither a tensor with one element for each item, nor a constant.
    """
    if type(result) is Tensor and isinstance(dim, int) and _has(result, dim, items):
        return [result], _LEAF, [dim]
    leaves, spec = tree_flatten(result)
    dims = [dim] * len(leaves) if isinstance(dim, int) else _broadcast_to_and_flatten(dim, spec)
    if dims is None:
        raise ValueError(f"out_dim is {dim}, which has another structure than the outputs")
    for at, (leaf, axis) in enumerate(zip(leaves, dims)):
        if isinstance(leaf, _CONSTANTS) or (isinstance(leaf, Tensor) and _has(leaf, axis, items)):
            continue
        given = f"has the shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"is a {type(leaf).__name__}"
        text = f"output {at} {given} for {items} items: return tensors with the items on axis {axis} (out_dim)"
        raise ValueError(f"{text}, also in tuples, lists, dictionaries and other pytrees")
    return leaves, spec, dims


class Outputs:
    """The outputs of a call, which chunks write in place."""

    def __init__(self, items: int, dim: Any) -> None:
        self._items, self._dim = items, dim
        self._leaves: list[Any] = []
        self._axes: list[int] = []
        self._spec: Any = None
        self._tokens: list[list[Tensor]] = []

    def write(self, result: Any, begin: int, size: int) -> None:
        """Copy the outputs of a chunk. Raise ValueError if they differ in more than the number of items."""
        leaves, spec, axes = flattened(result, self._dim, size)
        if self._spec is None:
            # Memory may be too short here.
            self._leaves = [_empty(leaf, axis, self._items) for leaf, axis in zip(leaves, axes)]
            self._spec, self._axes, self._tokens = spec, axes, [[] for _ in leaves]
        own = self._slices(begin, size)
        if (spec is not self._spec and spec != self._spec) or not all(map(_is_alike, leaves, own)):
            raise ValueError(_differ(leaves, own))
        has_gradients = torch.is_grad_enabled()
        for leaf, target, tokens in zip(leaves, own, self._tokens):
            if isinstance(leaf, Tensor) and has_gradients:
                tokens.append(_Write.apply(leaf, target))
            elif isinstance(leaf, Tensor):
                target.copy_(leaf)

    def _slices(self, begin: int, size: int) -> list[Any]:
        pairs = zip(self._leaves, self._axes)
        return [leaf.narrow(axis, begin, size) if isinstance(leaf, Tensor) else leaf for leaf, axis in pairs]

    def written(self, items: int) -> Any:
        """Return the outputs of the first items, without gradients, or None if there are none."""
        return None if self._spec is None else tree_unflatten(self._slices(0, items), self._spec)

    def joined(self) -> Any:
        """Return the outputs, after all chunks are written."""
        leaves = [
            _Join.apply([leaf], axis % leaf.dim(), *tokens) if tokens else leaf
            for leaf, axis, tokens in zip(self._leaves, self._axes, self._tokens)
        ]
        return tree_unflatten(leaves, self._spec)


def _differ(leaves: list[Any], own: list[Any]) -> str:
    kinds = [[(*leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in one] for one in (leaves, own)]
    return f"its outputs are {kinds[0]}, but after the first chunk's outputs {kinds[1]} were expected"


def concatenated(results: Sequence[Any], dim: Any, sizes: Sequence[int]) -> Any:
    """Join the results of chunks with plain operators."""
    flat = [flattened(result, dim, size) for result, size in zip(results, sizes)]
    first, spec, axes = flat[0]
    for leaves, own, _ in flat:
        pairs = zip(leaves, first)
        if own != spec or not all(isinstance(one, Tensor) or is_same(one, other) for one, other in pairs):
            raise ValueError(_differ(leaves, first))
    parts = zip(axes, *(leaves for leaves, *_ in flat))
    return tree_unflatten(
        [torch.cat(part, axis) if isinstance(part[0], Tensor) else part[0] for axis, *part in parts], spec
    )


def _order(tensor: Tensor) -> list[int]:
    """Return the axes of a tensor from its largest stride to its smallest, for example for `channels_last`."""
    axes = list(range(tensor.dim()))
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    # Slices and broadcast tensors get contiguous outputs and gradients.
    return sorted(axes, key=tensor.stride, reverse=True) if span == tensor.numel() else axes


def _empty(leaf: Any, axis: int, items: int) -> Any:
    """Allocate an output of all items with the memory layout of a chunk's output."""
    if not isinstance(leaf, Tensor):
        return leaf
    sizes = list(leaf.shape)
    sizes[axis] = items
    return torch.empty_permuted(sizes, _order(leaf), dtype=leaf.dtype, device=leaf.device)


class _Gradient:
    """The gradient of an input, which the backward passes of its parts write."""

    def __init__(self, x: Tensor, axis: int) -> None:
        self.x: Tensor | None = x.detach()
        self.axis, self.order = axis, _order(x)
        self.whole: Tensor | None = None
        self.token = _Source.apply(x, self)


def _token(like: Tensor) -> Tensor:
    """Return an edge of the graph with the shape of a tensor, but memory for one element only."""
    return like.new_empty(()).expand(like.shape)


class _Source(Function):
    """Stands for an input. Its backward pass runs after the backward passes of all parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: _Gradient) -> Tensor:
        ctx.gradient = gradient
        ctx.set_materialize_grads(False)
        return _token(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        whole, ctx.gradient.whole = ctx.gradient.whole, None
        return whole if grad is None else grad, None


class _Part(Function):
    """A view of an input."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, gradient: Any, begin: int, size: int) -> Tensor:
        ctx.gradient, ctx.begin, ctx.sizes = gradient, begin, token.shape
        return gradient.x.narrow(gradient.axis, begin, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        gradient, length = ctx.gradient, grad.shape[ctx.gradient.axis]
        if torch.is_grad_enabled():
            # With `create_graph=True`: plain operators have second derivatives.
            zeros = grad.new_zeros(ctx.sizes)
            whole = torch.slice_scatter(zeros, grad, gradient.axis, ctx.begin, ctx.begin + length)
            return whole, None, None, None
        if gradient.whole is None:
            whole = torch.empty_permuted(ctx.sizes, gradient.order, dtype=grad.dtype, device=grad.device)
            gradient.whole = whole.zero_()
        gradient.whole.narrow(gradient.axis, ctx.begin, length).copy_(grad)
        return None, None, None, None


class _Write(Function):
    """Writes an output of a chunk. The token keeps its graph, but not its memory."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, target: Tensor) -> Tensor:
        target.copy_(part)
        return _token(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Join(Function):
    """Joins the graphs of the chunks that wrote an output."""

    @staticmethod
    def forward(ctx: Any, out: list[Tensor], axis: int, *tokens: Tensor) -> Tensor:
        # A list hides the tensor from autograd, which would return a view of an input.
        ctx.axis, ctx.sizes = axis, [token.shape[axis] for token in tokens]
        return out[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *grad.split(ctx.sizes, ctx.axis)
