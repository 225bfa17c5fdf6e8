"""Splits the inputs of a call into chunks, and joins the outputs of the chunks, with gradients and without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_unflatten

Dim = int | Sequence[int | None]
_CONSTANTS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
# Types that hold no other values.
_LEAVES = frozenset((Tensor, torch.nn.Parameter, *_CONSTANTS))
_LEAF = tree_flatten(0)[1]


class Batch:
    """The arguments of a call, whose tensors are split along one axis each."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], dim: Dim) -> None:
        self.leaves: list[Any] = [*args, *kwargs.values()]
        # The general way takes longer on the host.
        self._names = tuple(kwargs) if all(type(leaf) in _LEAVES for leaf in self.leaves) else None
        if self._names is None:
            self.leaves, self.spec = tree_flatten((args, kwargs))
        given: list[int | None] = [dim] * len(self.leaves) if isinstance(dim, int) else []
        if not isinstance(dim, int):
            if len(dim) != len(args):
                raise ValueError(f"dim has {len(dim)} axes, but the call has {len(args)} positional arguments")
            counts = [1] * len(args) if self._names is not None else [len(tree_flatten(arg)[0]) for arg in args]
            given = [axis for axis, count in zip(dim, counts) for _ in range(count)]
            given += [None] * (len(self.leaves) - len(given))
        self.axes = [_axis(leaf, axis) for leaf, axis in zip(self.leaves, given)]
        lengths = [None if axis is None else leaf.shape[axis] for leaf, axis in zip(self.leaves, self.axes)]
        found = [length for length in lengths if length is not None]
        if not found or (not isinstance(dim, int) and any(length != found[0] for length in found)):
            shapes = [tuple(leaf.shape) for leaf in self.leaves if isinstance(leaf, Tensor)]
            raise ValueError(f"dim is {dim}, but the shapes of the inputs are {shapes}: pass the axis of the items")
        self.items: int = found[0]
        self.axes = [axis if length == self.items else None for axis, length in zip(self.axes, lengths)]
        devices = [leaf.device for leaf in self.leaves if isinstance(leaf, Tensor)]
        # The CPU may have some inputs of a GPU's function.
        self.device = next((device for device in devices if device.type != "cpu"), devices[0])
        self._gradients: dict[int, _Gradient] = {}

    def split(self) -> list[Tensor]:
        """Return the tensors that are split."""
        return [leaf for leaf, axis in zip(self.leaves, self.axes) if axis is not None]

    def part(self, begin: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a chunk, which are views of the whole."""
        leaves = list(self.leaves)
        for at, axis in enumerate(self.axes):
            if at in self._gradients:
                leaves[at] = _Part.apply(self._gradients[at].token, self._gradients[at], begin, size)
            elif axis is not None:
                leaves[at] = leaves[at].narrow(axis, begin, size)
        if self._names is None:
            return tree_unflatten(leaves, self.spec)
        if not self._names:
            return tuple(leaves), {}
        count = len(leaves) - len(self._names)
        return tuple(leaves[:count]), dict(zip(self._names, leaves[count:]))

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

    def sample(self, items: Sequence[int]) -> Batch:
        """Return a batch of copies of these items, without the graph that computed them."""
        leaves = list(self.leaves)
        for at, axis in enumerate(self.axes):
            if axis is not None:
                index = torch.tensor(items, device=leaves[at].device)
                leaves[at] = leaves[at].detach().index_select(axis, index).requires_grad_(leaves[at].requires_grad)
        sample = object.__new__(Batch)
        sample.__dict__.update(self.__dict__, leaves=leaves, items=len(items), _gradients={})
        return sample


def _axis(leaf: Any, axis: int | None) -> int | None:
    if axis is None or not isinstance(leaf, Tensor) or not -leaf.dim() <= axis < leaf.dim():
        return None
    return axis % leaf.dim()


def _leaves(result: Any) -> tuple[list[Any], Any]:
    """Flatten a result, a tensor without the general way's time on the host."""
    return ([result], _LEAF) if type(result) is Tensor else tree_flatten(result)


def _alike(leaf: Any, own: Any) -> bool:
    if isinstance(leaf, Tensor) and isinstance(own, Tensor):
        return leaf.shape == own.shape and leaf.dtype is own.dtype and leaf.device == own.device
    return type(leaf) is type(own) and leaf == own


def flattened(result: Any, dim: int, items: int) -> tuple[list[Any], Any]:
    """Return the leaves of a result, and what chunks of any size have in common: (rows for each item, ...) of a tensor.

    Raises ValueError if an output is neither a tensor with the items on this axis, nor a constant.
    """
    leaves, spec = _leaves(result)
    kinds: list[Any] = []
    for at, leaf in enumerate(leaves):
        axis = _axis(leaf, dim)
        if axis is not None and leaf.shape[axis] % items == 0:
            shape = (*leaf.shape[:axis], ":", *leaf.shape[axis + 1 :])
            kinds.append((leaf.shape[axis] // items, shape, leaf.dtype, leaf.device))
        elif isinstance(leaf, _CONSTANTS):
            kinds.append(leaf)
        else:
            given = f"has the shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"is a {type(leaf).__name__}"
            text = f"output {at} {given} for {items} items: return tensors with the items on axis {dim} (out_dim)"
            raise ValueError(f"{text}, also in tuples, lists and dictionaries")
    return leaves, (spec, kinds)


class Outputs:
    """The outputs of a call, which chunks write in place."""

    def __init__(self, items: int, dim: int) -> None:
        self._items, self._dim = items, dim
        self._leaves: list[Any] = []
        self._common: Any = None
        self._tokens: list[list[Tensor]] = []
        self.needs_grad = False

    def write(self, result: Any, begin: int, size: int) -> None:
        """Copy the outputs of a chunk. Raise ValueError if they differ in more than the number of items."""
        leaves, spec = _leaves(result)
        own = self._slices(begin, size)
        if self._common is None or spec != self._common[0] or not all(map(_alike, leaves, own)):
            leaves, common = flattened(result, self._dim, size)
            if self._common is None:
                # Memory may be too short here.
                self._leaves = [_empty(leaf, self._dim, size, self._items) for leaf in leaves]
                self._common, self._tokens = common, [[] for _ in leaves]
                own = self._slices(begin, size)
            if common != self._common:
                raise ValueError(f"its outputs are {common[1]}, but the first chunk's outputs are {self._common[1]}")
        has_gradients = torch.is_grad_enabled()
        for leaf, target, tokens in zip(leaves, own, self._tokens):
            if not isinstance(leaf, Tensor):
                continue
            if has_gradients:
                tokens.append(_Write.apply(leaf, target))
                self.needs_grad = self.needs_grad or tokens[-1].requires_grad
            else:
                target.copy_(leaf)

    def _slices(self, begin: int, size: int) -> list[Any]:
        kinds = () if self._common is None else self._common[1]
        return [
            leaf.narrow(self._dim, begin * kind[0], size * kind[0]) if isinstance(leaf, Tensor) else leaf
            for leaf, kind in zip(self._leaves, kinds)
        ]

    def written(self, items: int) -> Any:
        """Return the outputs of the first items, without gradients, or None if there are none."""
        return None if self._common is None else tree_unflatten(self._slices(0, items), self._common[0])

    def joined(self) -> Any:
        """Return the outputs, after all chunks are written."""
        leaves = [
            _Join.apply([leaf], self._dim % leaf.dim(), *tokens) if tokens else leaf
            for leaf, tokens in zip(self._leaves, self._tokens)
        ]
        return tree_unflatten(leaves, self._common[0])


def concatenated(results: Sequence[Any], dim: int, sizes: Sequence[int]) -> Any:
    """Join the results of chunks with plain operators."""
    flat = [flattened(result, dim, size) for result, size in zip(results, sizes)]
    parts = zip(*(leaves for leaves, _ in flat))
    leaves = [torch.cat(part, dim) if isinstance(part[0], Tensor) else part[0] for part in parts]
    return tree_unflatten(leaves, flat[0][1][0])


def _order(tensor: Tensor) -> list[int]:
    """Return the axes of a tensor from its largest stride to its smallest, for example for `channels_last`."""
    axes = list(range(tensor.dim()))
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    # Slices and broadcast tensors get contiguous outputs and gradients.
    return sorted(axes, key=tensor.stride, reverse=True) if span == tensor.numel() else axes


def _permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return tensor.permute([order.index(axis) for axis in range(len(order))])


def _empty(leaf: Any, dim: int, size: int, items: int) -> Any:
    """Allocate an output of all items with the memory layout of a chunk's output."""
    if not isinstance(leaf, Tensor):
        return leaf
    sizes = list(leaf.shape)
    sizes[dim] = sizes[dim] // size * items
    if leaf.is_contiguous():
        return leaf.detach().new_empty(sizes)
    order = _order(leaf)
    return _permuted(leaf.detach().new_empty([sizes[axis] for axis in order]), order)


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
            sizes = [ctx.sizes[axis] for axis in gradient.order]
            gradient.whole = _permuted(grad.new_zeros(sizes), gradient.order)
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
