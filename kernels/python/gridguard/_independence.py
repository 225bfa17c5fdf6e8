"""Checks on a few items that the outputs of a function are independent along an axis."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from gridguard._split import Batch, flattened

# Three chunks of two items have two boundaries.
_ITEMS = 6
# Differences are relative to the largest element. Chunks of other sizes may run other kernels.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2}
_OTHER_ROUNDING = 1e-1
# For the same sizes the same kernels run, and at most the order of sums differs: a multiple of the type's epsilon.
_EPSILONS = 16


def module_of(function: Any) -> nn.Module | None:
    """Return a function that is a module, or the module of a method."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of its module."""
    module = module_of(function)
    return getattr(function, "__name__", type(function).__name__) if module is None else type(module).__name__


def verify(function: Callable[..., Any], batch: Batch, out_dim: int) -> None:
    """Run a function on a few items as a whole, in chunks, and with other neighbours.

    Random numbers are constants meanwhile, and the buffers of a module in training are restored. Raises ValueError if
    the outputs of an item depend on other items, or if the function changes its inputs.
    """
    module = module_of(function)
    buffers = [] if module is None or not module.training else [(one, one.clone()) for one in module.buffers()]
    try:
        with Constants():
            _Check(function, batch, out_dim).run()
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                # A write would make graphs invalid that saved the buffer.
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


class _Check:
    def __init__(self, function: Callable[..., Any], batch: Batch, out_dim: int) -> None:
        self.function, self.batch, self.out_dim = function, batch, out_dim
        self.name, self.count = name_of(function), min(batch.items, _ITEMS)
        module = module_of(function)
        self.modules = {} if module is None else {part: path for path, part in module.named_modules()}

    def run(self) -> None:
        for part in self.modules:
            if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
                raise ValueError(f"{self.title(part)} mixes items: it normalises over the batch")
        count = self.count
        sample, copy = self.batch.sample(range(count)), self.batch.sample(range(count))
        whole = self.outputs(sample, 0, count)
        if not all(_close(one, other, True) for one, other in zip(sample.split(), copy.split())):
            raise ValueError(f"{self.name} changes its input, which all chunks share: return a new tensor")
        if not self.agree(whole, self.outputs(sample, 0, count), 0, count, True):
            raise ValueError(f"{self.name} is not deterministic: two calls with the same items differ")
        bounds = sorted({0, count // 3, count * 2 // 3, count})
        for begin, end in zip(bounds, bounds[1:]):
            if not self.agree(whole, self.outputs(sample, begin, end - begin), begin, end - begin, False):
                text = f"items {begin} to {end - 1} differ as a chunk and among {count} items"
                raise ValueError(f"{self.culprit(sample, (begin, end - begin), sample)} mixes items: {text}")
        # The same first item, beside the last items of the batch.
        others = self.batch.sample([0, *range(self.batch.items - 1, self.batch.items - count, -1)])
        if not self.agree(whole, self.outputs(others, 0, count), 0, 1, True):
            raise ValueError(f"{self.culprit(others, (0, count), sample)} mixes items: an item depends on the others")

    def outputs(self, sample: Batch, begin: int, size: int) -> tuple[list[Any], Any]:
        args, kwargs = sample.part(begin, size)
        try:
            result = self.function(*args, **kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            text = f"{self.name} cannot be verified with {size} of {self.batch.items} items: {error}"
            raise ValueError(f"{text} (pass verify=False if it can run in larger chunks)") from error
        return flattened(tree_map_only(Tensor, torch.detach, result), self.out_dim, size)

    def agree(self, whole: Any, found: Any, begin: int, size: int, is_same_size: bool) -> bool:
        """Compare the outputs of these items with their outputs in the whole."""
        if found[1] != whole[1]:
            return False
        for one, other, kind in zip(whole[0], found[0], whole[1][1]):
            if isinstance(one, Tensor):
                one, other = (
                    tensor.narrow(self.out_dim, at * kind[0], size * kind[0])
                    for tensor, at in ((one, begin), (other, begin if is_same_size else 0))
                )
                if not _close(one, other, is_same_size):
                    return False
        return True

    def culprit(self, chunk: Batch, items: tuple[int, int], sample: Batch) -> str:
        """Return the first module whose inputs are as in the whole, but whose outputs are not."""
        with _calls() as found:
            self.outputs(chunk, *items)
        with _calls() as whole:
            self.outputs(sample, 0, self.count)
        begin, size = items if chunk is sample else (0, 1)
        for (part, *tensors), (_, *others) in zip(whole, found):
            inputs, outputs = (self.contains(*pair, begin, size) for pair in zip(tensors, others))
            if inputs and not outputs:
                return self.title(part)
        return self.name

    def contains(self, whole: list[Tensor], found: list[Tensor], begin: int, size: int) -> bool:
        """Tell whether tensors inside of the function have the values of these items in the whole, on any axis."""

        def pairs(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
            yield one, other
            for axis, (length, own) in enumerate(zip(one.shape, other.shape)):
                rows, rest = divmod(length, self.count)
                if rest == 0 and own in (length, rows * size):
                    at = begin * rows if own == length else 0
                    yield one.narrow(axis, begin * rows, size * rows), other.narrow(axis, at, size * rows)

        return len(whole) == len(found) and all(
            any(_close(*pair, False) for pair in pairs(one, other)) for one, other in zip(whole, found)
        )

    def title(self, part: nn.Module) -> str:
        path = self.modules.get(part, "")
        return f"{path} ({type(part).__name__}) in {self.name}" if path else type(part).__name__


def _close(one: Tensor, other: Tensor, is_same_size: bool) -> bool:
    """Compare tensors, with a tolerance that is relative to the largest element."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.numel() == 0 or not one.is_floating_point():
        return torch.equal(one, other)
    rounding = _ROUNDING.get(one.dtype, _OTHER_ROUNDING)
    tolerance = min(rounding, _EPSILONS * torch.finfo(one.dtype).eps) if is_same_size else rounding
    one, other = (tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in (one, other))
    largest = one.abs().nan_to_num(0.0, 0.0).amax().item()
    return bool(torch.isclose(one, other, rtol=0.0, atol=tolerance * largest, equal_nan=True).all())


@contextlib.contextmanager
def _calls() -> Iterator[list[tuple[nn.Module, list[Tensor], list[Tensor]]]]:
    """Record the inputs and outputs of modules, in the order of their ends."""
    calls = []

    def tensors(values: Any) -> list[Tensor]:
        return [leaf.detach().clone() for leaf in tree_flatten(values)[0] if isinstance(leaf, Tensor)]

    handle = register_module_forward_hook(lambda part, args, out: calls.append((part, tensors(args), tensors(out))))
    try:
        yield calls
    finally:
        handle.remove()


class Constants(TorchDispatchMode):
    """Replaces random numbers by constants, so that dropout does not hide differences."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = {**dict(zip((one.name for one in func._schema.arguments), args)), **kwargs}
        for name in ("p" if func is torch.ops.aten.native_dropout.default else "dropout_p", "dropout"):
            if name in given:
                return func(**{**given, name: 0.0})
        # Other kinds of dropout multiply by numbers of a Bernoulli distribution.
        constant = 1 if "bernoulli" in func._schema.name else 0
        return tree_map_only(Tensor, lambda tensor: tensor.fill_(constant), func(*args, **kwargs))
