"""Refuses what is known to make items depend on each other, and compares chunks with the whole on copies."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from gridguard._native import GridguardError
from gridguard._split import Batch, Dim, flattened, is_same

# Elements differ if they are further apart, relative to their own size and to the small ones among the others.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4, torch.complex128: 1e-8, torch.complex64: 1e-4}
_OTHER_ROUNDING, _SMALL = 2e-2, 0.1
# TF32 keeps fewer digits, and chunks may run other kernels.
_GPU_ROUNDING = 2e-3


class DependentItemsError(GridguardError, ValueError):
    """The items of a batch depend on each other, so that chunks give other results than the whole batch."""


def module_of(function: Any) -> nn.Module | None:
    """Return a function that is a module, or the module of a method."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of its module."""
    module = module_of(function)
    return getattr(function, "__name__", type(function).__name__) if module is None else type(module).__name__


def _reached(root: Any) -> dict[int, Any]:
    """Return the modules and functions that a function holds: bound, wrapped, in closures or by a global name."""
    found: dict[int, Any] = {}
    rest = [root]
    while rest:
        one = rest.pop()
        if id(one) in found or isinstance(one, type) or not (callable(one) or isinstance(one, torch.Generator)):
            continue
        found[id(one)] = one
        if isinstance(one, types.FunctionType):
            rest += [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
            rest += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            rest += [value for value in map(one.__globals__.get, one.__code__.co_names) if isinstance(value, nn.Module)]
        elif isinstance(one, types.MethodType):
            rest += [one.__self__, one.__func__]
        elif isinstance(one, functools.partial):
            rest += [one.func, *one.args, *one.keywords.values()]
        elif not isinstance(one, nn.Module) and not type(one).__module__.startswith("torch."):
            rest += getattr(one, "__dict__", {}).values()
    return found


def modules_of(function: Any, leaves: list[Any]) -> list[nn.Module]:
    """Return the modules that a function holds or gets as arguments, and those inside."""
    roots = [function, *(leaf for leaf in leaves if isinstance(leaf, nn.Module))]
    rest = [one for root in roots for one in _reached(root).values() if isinstance(one, nn.Module)]
    found: dict[nn.Module, None] = {}
    while rest:
        part = rest.pop()
        if part not in found:
            found[part] = None
            rest += [one for one in part._modules.values() if one is not None]
    return list(found)


def _title(part: nn.Module, modules: list[nn.Module]) -> str:
    """Return the name of a module in the largest one that holds it."""
    paths = [(path, root) for root in modules for path, one in root.named_modules() if one is part]
    path, root = max(paths, key=lambda found: found[0].count("."))
    return f"{path} ({type(part).__name__}) in {type(root).__name__}" if path else type(part).__name__


def generators_of(function: Any, leaves: list[Any]) -> list[torch.Generator]:
    """Return the generators that a function or its modules hold, or get as arguments."""
    held = [value for part in modules_of(function, leaves) for value in vars(part).values()]
    found = [one for one in [*leaves, *_reached(function).values(), *held] if isinstance(one, torch.Generator)]
    return list({id(one): one for one in found}.values())


def require_independent(modules: list[nn.Module]) -> None:
    """Raise DependentItemsError for normalisation over the batch, or with statistics that are updated."""
    for part in modules:
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            problem = "it normalises over the batch"
        elif part.training and hasattr(part, "momentum") and _has_statistics(part):
            problem = "each chunk updates its statistics"
        else:
            continue
        remedy = " (call eval() on it)" if part.training else ""
        raise DependentItemsError(f"{_title(part, modules)} mixes items: {problem}{remedy}")


def _has_statistics(part: nn.Module) -> bool:
    return any(key in ("running_mean", "running_var") and value is not None for key, value in part._buffers.items())


class Watch:
    """Finds what chunks change and have in common: parameters, buffers, attributes, and arguments that are whole."""

    def __init__(self, modules: list[nn.Module], batch: Batch, name: str) -> None:
        self._modules, self._name, self._chunks = modules, name, 0
        self._whole = [one for one, axis in zip(batch.leaves, batch.axes) if axis is None]
        tensors = [one for part in modules for one in (*part._parameters.values(), *part._buffers.values())]
        # PyTorch counts the changes of each tensor.
        counted = [one for one in [*tensors, *self._whole] if isinstance(one, Tensor) and not is_lazy(one)]
        self._tensors = [one for one in counted if not one.is_inference()]
        self._inputs = [one for one in batch.split() if not one.is_inference()]
        self._versions, self._seen = _versions(self._tensors), _versions(self._inputs)
        self._values: list[Any] = []

    def has_changed(self) -> bool:
        """Tell whether a chunk that failed has changed a tensor, so that it cannot be repeated."""
        return _versions(self._tensors) != self._versions or _versions(self._inputs) != self._seen

    def after_chunk(self) -> None:
        """Raise DependentItemsError if one of the first two chunks changed what the next one reads."""
        self._chunks += 1
        self._seen = _versions(self._inputs)
        if self._chunks > 2:
            return
        for one, before, now in zip(self._tensors, self._versions, _versions(self._tensors)):
            if before != now:
                raise self._error(lambda at, value: value is one)  # noqa: B023
        # The first chunk may fill a cache.
        values, self._values = self._values, [value for values in self._held() for value in values.values()]
        if any(map(operator.is_not, values, self._values)):
            changed = [at for at, pair in enumerate(zip(values, self._values)) if not is_same(*pair)]
            if changed:
                raise self._error(lambda at, value: at == changed[0])

    def _held(self) -> list[dict[Any, Any]]:
        objects = [vars(one) for one in self._whole if _has_attributes(one)]
        parts = [one for part in self._modules for one in (vars(part), part._parameters, part._buffers)]
        return [*objects, *parts, dict(enumerate(self._whole))]

    def _error(self, is_changed: Callable[[int, Any], bool]) -> DependentItemsError:
        named = [(key, value) for values in self._held() for key, value in values.items()]
        name = next((key for at, (key, value) in enumerate(named) if is_changed(at, value)), "a tensor")
        what = f"input {name}, which it passes whole" if isinstance(name, int) else f"{name!r}, which they share"
        return DependentItemsError(f"{self._name} mixes items: each chunk changes {what}")


def _versions(tensors: list[Tensor]) -> list[int]:
    return [one._version for one in tensors]


def _has_attributes(one: Any) -> bool:
    return hasattr(one, "__dict__") and not isinstance(one, Tensor) and not callable(one)


def verify(run: Callable[..., Any], call: Any, dim: Dim, out_dim: Any, sizes: list[int]) -> None:
    """Compare `run(size, *call)` with a call (function, args, kwargs), on copies of all that it holds and gets.

    Raises DependentItemsError with the items that differ.
    """
    whole, draws = _outcome(lambda function, args, kwargs: function(*args, **kwargs), call, dim, out_dim)
    for size in sizes:
        found, _ = _outcome(functools.partial(run, size), call, dim, out_dim)
        for (title, one, axis), (_, other, _) in zip(whole, found):
            text = _difference(one, other, axis)
            if text is not None:
                hint = "; it draws random numbers, and chunks draw others (call eval())" if draws else ""
                raise DependentItemsError(f"{name_of(call[0])} mixes items: {title} {text}, in chunks of {size}{hint}")


def _outcome(run: Callable[..., Any], call: Any, dim: Dim, out_dim: Any) -> tuple[list[tuple[str, Any, Any]], bool]:
    """Return the outputs, inputs and buffers after a run on copies, and whether it drew numbers."""
    function, args, kwargs = _copied(call)
    batch = Batch(args, kwargs, dim, function)
    with _random_states_kept(batch.device):
        start = torch.get_rng_state()
        outs, _, axes = flattened(run(function, args, kwargs), out_dim, batch.items)
        draws = not torch.equal(start, torch.get_rng_state())
    found: list[tuple[str, Any, Any]] = [(f"output {at}", one, axis) for at, (one, axis) in enumerate(zip(outs, axes))]
    found += [
        (f"input {at}", one, axis) for at, (one, axis) in enumerate(zip(batch.leaves, batch.axes)) if axis is not None
    ]
    for part in modules_of(function, batch.leaves):
        found += [(f"{key} of {type(part).__name__}", one, None) for key, one in part._buffers.items()]
    return [(title, one.detach() if isinstance(one, Tensor) else one, axis) for title, one, axis in found], draws


def _copied(call: Any) -> Any:
    """Copy a function and its arguments with all that they hold. Only the values of parameters are shared."""
    function, leaves = call[0], tree_leaves(call[1:])
    memo: dict[int, Any] = {}
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            memo[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        elif isinstance(leaf, torch.Generator):
            memo[id(leaf)] = leaf.clone_state()
    for part in modules_of(function, leaves):
        for weight in part._parameters.values():
            if type(weight) is nn.Parameter:
                memo[id(weight)] = nn.Parameter(weight.detach(), weight.requires_grad)
    functions = [one for one in _reached(function).values() if isinstance(one, types.FunctionType)]
    try:
        # What a function holds was found after it.
        for one in reversed(functions):
            names = {key: one.__globals__.get(key) for key in one.__code__.co_names}
            held = {key: value for key, value in names.items() if isinstance(value, nn.Module)}
            closure = [cell if cell == types.CellType() else cell.cell_contents for cell in one.__closure__ or ()]
            parts = (held, one.__defaults__, one.__kwdefaults__, closure)
            if any(parts):
                held, defaults, keywords, closure = copy.deepcopy(parts, memo)
                cells = tuple(one if isinstance(one, types.CellType) else types.CellType(one) for one in closure)
                made = types.FunctionType(one.__code__, {**one.__globals__, **held}, one.__name__, defaults, cells)
                made.__kwdefaults__, memo[id(one)] = keywords, made
        return copy.deepcopy(call, memo)
    except Exception as error:
        raise GridguardError(f"{name_of(function)} cannot be verified, because it cannot be copied: {error}") from error


@contextlib.contextmanager
def _random_states_kept(device: torch.device) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    states = random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(states[0])
        if numpy:
            numpy.random.set_state(states[1])


def _difference(one: Any, other: Any, axis: int | None) -> str | None:
    """Return how the values of chunks differ from the whole's, in words."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return None if is_same(one, other) else f"is {one!r} as a whole and {other!r} in chunks"
    if one.shape != other.shape or one.dtype != other.dtype:
        kinds = [f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in (one, other)]
        return f"is {kinds[0]} as a whole and {kinds[1]} in chunks"
    if one.numel() == 0:
        return None
    if one.is_floating_point() or one.is_complex():
        rounding = _ROUNDING.get(one.dtype, _OTHER_ROUNDING)
        rounding = max(rounding, _GPU_ROUNDING) if one.is_cuda and one.dtype is torch.float32 else rounding
        wide = torch.complex128 if one.is_complex() else torch.float64
        one, other = one.to(wide), other.to(wide)
        sizes = one.abs()
        sizes = sizes[sizes.isfinite() & (sizes > 0)].sort().values
        small = sizes[int(len(sizes) * _SMALL)].item() if len(sizes) else 0.0
        differs = ~torch.isclose(one, other, rounding, rounding * small, equal_nan=True)
    else:
        differs = one != other
    if not differs.any():
        return None
    if axis is None:
        return f"differs in {int(differs.sum())} of {one.numel()} elements"
    items = differs.movedim(axis, 0).reshape(one.shape[axis], -1).any(1).nonzero().flatten().tolist()
    shown = ", ".join(map(str, items[:8])) + (", ..." if len(items) > 8 else "")
    return f"differs in {len(items)} of {one.shape[axis]} items: {shown}"
