"""Runs any module or function over a batch in chunks."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import operator
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from gridguard import _arguments, _attention, _chunk_sizes, _independence, _pytorch
from gridguard._chunk_sizes import Trial, is_shortage
from gridguard._independence import DependentItemsError, Watch, module_of, name_of
from gridguard._native import GridguardError
from gridguard._split import Batch, Dim, Outputs, concatenated

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)

_WHOLE = 2**63 - 1
_UNMEASURED = "memory cannot be measured"


@overload
def chunked(function: M, dim: Dim = ..., *options: Any, **named: Any) -> M: ...
@overload
def chunked(function: Callable[P, R], dim: Dim = ..., *options: Any, **named: Any) -> Chunked[P, R]: ...
def chunked(
    function: Any,
    dim: Dim = 0,
    chunk: _arguments.Number | None = None,
    memory: _arguments.Bytes | None = None,
    *,
    out_dim: Any = None,
    recompute: bool | None = None,
) -> Any:
    """Return a callable that runs a module or function over its batch in chunks.

    You promise that the items along `dim` are independent. Chunks are views of the inputs, and write into one output::

        >>> import torch, gridguard.torch
        >>> layer = torch.nn.Linear(8, 4)
        >>> x = torch.randn(100, 8)
        >>> chunks = gridguard.torch.chunked(layer, chunk=30)
        >>> torch.allclose(chunks(x), layer(x), atol=1e-6)
        True
        >>> chunks.verify(x)

    `dim` names what is split, as `in_dims` of `torch.vmap`: a tuple for positional arguments, a dictionary for names or
    positions, or an integer for the first argument with tensors. Other arguments are passed whole, and refused if
    they have as many items. `out_dim` are the axes of the outputs. A chunk has `chunk` items, or as many as fit into
    `memory` beside inputs and outputs, for example "2GiB". Without either, the batch runs whole, and in halves as often
    as memory or the grid of a launch is too small. Gradients are the gradients of the whole batch, and `recompute` runs
    each chunk again in the backward pass, by default with `memory`. Chunks draw other random numbers than the batch.

    A module gives a module of its class with the same parameters, buffers, attributes and names. Its hooks run once.

    Calls raise DependentItemsError for normalisation over the batch or with statistics that are updated, and if chunks
    change what they share; ValueError if `dim` does not fit or `memory` is below one item; ChunkError if a chunk fails.
    """
    lazy = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_lazy(function) for is_lazy in lazy):
        raise TypeError(f"{name_of(function)} returns a coroutine or a generator: pass a function that returns tensors")
    if not callable(function) or isinstance(function, (type, torch.jit.ScriptModule)):
        raise TypeError(f"function is of type {type(function).__name__}: pass a module or a function")
    if isinstance(function, LazyModuleMixin) and function.has_uninitialized_params():  # type: ignore[misc]
        raise TypeError(f"{name_of(function)} has no parameters yet: call it once before")
    if chunk is not None and memory is not None:
        raise ValueError("chunk and memory are given: pass one of them")
    if not isinstance(dim, (list, tuple, Mapping)):
        dim = operator.index(dim)  # type: ignore[arg-type]
    axes = [axis for axis in tree_leaves(dict(dim) if isinstance(dim, Mapping) else dim) if axis is not None]
    if not axes or not all(isinstance(axis, int) for axis in axes):
        raise ValueError(f"dim is {dim}: pass an axis for one argument or more")
    engine = _Engine(
        dim,
        axes[0] if out_dim is None else out_dim,
        None if chunk is None else _arguments.whole("chunk", chunk, 1),
        None if memory is None else _arguments.size_in_bytes("memory", memory, 1),
        memory is not None if recompute is None else recompute,
        {},
    )
    return _chunked_module(function, engine) if isinstance(function, nn.Module) else _ChunkedFunction(function, engine)


class ChunkError(GridguardError):
    """A chunk failed. The cause is the error that it raised."""

    def __init__(self, text: str, done: int = 0, output: Any = None) -> None:
        super().__init__(text)
        self.done: int = done
        """The number of items in the chunks before it."""
        self.output: Any = output
        """Their outputs, without gradients, or None."""


class Chunked(Generic[P, R]):
    """What `chunked` returns: a function, or also a module of the given module's class."""

    _engine: _Engine
    _inner: Callable[[], Callable[P, R]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in chunks, with its arguments and outputs."""
        if torch.compiler.is_compiling():
            return self._engine.trace(self._inner(), module_of(self._inner()), args, kwargs)
        return self._engine.run(self._inner(), args, kwargs)

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Compare chunks with the whole batch for these arguments: outputs, buffers and changed arguments.

        All runs are on copies, and leave random states as they were. Chunks have the size `chunk`, or one item and half
        of the batch. Raises DependentItemsError with the items that differ, and GridguardError if the function or its
        arguments cannot be copied. In float64 it is the most exact.
        """
        engine, call = self._engine, (self._inner(), args, kwargs)
        items = Batch(args, kwargs, engine.dim, call[0]).items
        sizes = [engine.chunk] if engine.chunk is not None else [1, max(math.ceil(items / 2), 1)]

        def run(size: int, *call: Any) -> Any:
            return replace(engine, chunk=size, memory=None).run(*call)

        _independence.verify(run, call, engine.dim, engine.out_dim, sizes)


class _ChunkedFunction(Chunked[P, R]):
    def __init__(self, function: Callable[P, R], engine: _Engine) -> None:
        functools.update_wrapper(self, function)
        self.function, self._engine = function, engine

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        # A decorated function is found by its name, as any function.
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (_ChunkedFunction, (self.function, self._engine))

    def _inner(self) -> Callable[P, R]:
        return self.function


def _chunked_module(module: nn.Module, engine: _Engine) -> nn.Module:
    """Return a module that shares all state of a module, with a class like its own whose `forward` runs chunks."""
    kind: Any = type(module)

    def plain(self: Any) -> nn.Module:
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", self.__dict__)
        return made

    # Compiled modules and offloading have an attribute `forward`, which a property precedes.
    has_own = "forward" in module.__dict__

    def inner(self: Any) -> Any:
        return self.__dict__["forward"] if has_own else types.MethodType(kind.forward, self)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return engine.run(inner(self), args, kwargs)
        if has_own:
            return _run_uncompiled(engine, inner(self), args, kwargs)
        return engine.trace(lambda *given, **named: kind.forward(self, *given, **named), self, args, kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__", "__call__")}
    ours = {
        "forward": property(lambda self: types.MethodType(forward, self)) if has_own else forward,
        "__copy__": lambda self: _chunked_module(copy.copy(plain(self)), engine),
        "__deepcopy__": lambda self, memo: _chunked_module(copy.deepcopy(plain(self), memo), engine),
        "__reduce_ex__": lambda self, protocol: (_chunked_module, (plain(self), engine)),
        "_engine": engine,
        "_inner": inner,
    }
    bases = (kind,) if issubclass(kind, Chunked) else (Chunked, kind)
    made: Any = object.__new__(type(kind.__name__, bases, {**names, **ours}))
    object.__setattr__(made, "__dict__", module.__dict__)
    return made


@dataclass(frozen=True)
class _Engine:
    """The options of `chunked`, and the sizes of chunks that were found."""

    dim: Dim
    out_dim: Any
    chunk: int | None
    memory: int | None
    recompute: bool
    # By kind of call.
    sizes: dict[Any, int | Trial]

    def trace(self, function: Any, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.chunk is None:
            return _run_uncompiled(self, function, args, kwargs)
        if module is not None:
            _independence.require_independent(list(module.modules()))
        return self._run_plain(function, Batch(args, kwargs, self.dim, function))

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch, name = Batch(args, kwargs, self.dim, function), name_of(function)
        modules = _independence.modules_of(function, batch.leaves)
        _independence.require_independent(modules)
        if _attention.is_transformed() or any(map(_pytorch.is_other_type, batch.split())):
            return self._run_plain(function, batch)
        key = self._key(function, batch)
        size = self._size(batch, key)
        if isinstance(size, int) and size >= batch.items:
            watch = Watch(modules, batch, name) if self.chunk is None and batch.items > 1 else None
            try:
                return self._compute(function, args, kwargs)
            except Exception as error:
                if watch is None or not is_shortage(error) or watch.has_changed():
                    raise
            size = self.sizes[key] = math.ceil(batch.items / 2)
        return self._loop(function, batch, key, size, Watch(modules, batch, name))

    def _run_plain(self, function: Callable[..., Any], batch: Batch) -> Any:
        """Run chunks with plain operators only, which compilers and transforms see."""
        size = self.chunk or batch.items
        if self.memory is not None:
            raise GridguardError(f"{_UNMEASURED} under transforms or for subclasses of tensors: pass chunk")
        sizes = [min(size, batch.items - begin) for begin in range(0, batch.items, size)]
        if len(sizes) <= 1:
            return self._compute(function, *batch.part(0, batch.items))
        # Inductor writes the chunks in place.
        results = [self._compute(function, *batch.part(at * size, length)) for at, length in enumerate(sizes)]
        return concatenated(results, self.out_dim, sizes)

    def _loop(self, function: Any, batch: Batch, key: Any, size: int | Trial, watch: Watch) -> Any:
        batch.gather_gradients()
        outputs = Outputs(batch.items, self.out_dim)
        done = chunks = 0
        while done < batch.items:
            step = min(size if isinstance(size, int) else size.next, batch.items - done)
            try:
                args, kwargs = batch.part(done, step)
                if isinstance(size, int) or not size.is_warm:
                    result, peak = self._compute(function, args, kwargs), 0
                else:
                    result, peak = _measured(function, args, kwargs, batch)
                outputs.write(result, done, step)
                batch.require_unchanged(args, kwargs)
                watch.after_chunk()
            except (*_STOP, DependentItemsError):
                raise
            except Exception as error:
                if self.chunk is not None or step <= 1 or not is_shortage(error) or watch.has_changed():
                    items = f"items {done} to {done + step - 1} of {batch.items}"
                    text = f"chunk {chunks + 1} of {name_of(function)} ({items}) failed: {error}"
                    raise ChunkError(text, done, outputs.written(done)) from error
            else:
                if not isinstance(size, int):
                    size = self.sizes[key] = size.add(step, peak) or size
                done, chunks = done + step, chunks + 1
                continue
            # Outside of `except`, whose traceback keeps the tensors of the failed chunk.
            size = self.sizes[key] = math.ceil(step / 2) if isinstance(size, int) else size.fail()
        batch.forget()
        return outputs.joined()

    def _compute(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self.recompute and torch.is_grad_enabled()):
            return function(*args, **kwargs)
        options: dict[str, Any] = {"use_reentrant": False}
        generators = _independence.generators_of(function, tree_leaves((args, kwargs)))
        if generators:
            options["context_fn"] = lambda: (contextlib.nullcontext(), _Redraw(generators))
        # As arguments: a checkpoint looks among these for the devices whose random states it keeps.
        return checkpoint.checkpoint(lambda args, kwargs: function(*args, **kwargs), args, kwargs, **options)

    def _size(self, batch: Batch, key: Any) -> int | Trial:
        """Return the size of the chunks of a call, or what measures it."""
        if self.chunk is not None or batch.items <= 1:
            return self.chunk or 1
        size = self.sizes.setdefault(key, _WHOLE if self.memory is None else Trial(self.memory))
        if isinstance(size, int):
            # Chunks of nearly equal sizes.
            return math.ceil(batch.items / math.ceil(batch.items / size)) if batch.items > size else size
        kind = batch.device.type
        if kind == "meta" or (kind == "cuda" and torch.cuda.is_current_stream_capturing()):
            raise GridguardError(f"{_UNMEASURED} on meta tensors or during a capture: call once before it")
        if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            raise GridguardError(f"{_UNMEASURED} inside of a checkpoint: call once before it, or pass chunk")
        return size

    def _key(self, function: Any, batch: Batch) -> tuple[Any, ...]:
        """Return the kind of a call, without the number of items."""
        shapes = [
            (*leaf.shape[:axis], *leaf.shape[axis + 1 :], str(leaf.dtype))
            for leaf, axis in zip(batch.leaves, batch.axes)
            if axis is not None
        ]
        device, module = batch.device, module_of(function)
        is_cast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
        cast = str(torch.get_autocast_dtype(device.type)) if is_cast else None
        return str(device), *shapes, torch.is_grad_enabled(), cast, module is not None and module.training


@torch._disable_dynamo
def _run_uncompiled(engine: _Engine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run between compiled graphs: a size that is measured is not known to a compiler."""
    return engine.run(function, args, kwargs)


# An enclosing checkpoint ends its second forward pass with this error.
_STOP: tuple[Any, ...] = (getattr(checkpoint, "_StopRecomputationError", ()),)


def _measured(function: Any, args: Any, kwargs: Any, batch: Batch) -> tuple[Any, int]:
    """Run a chunk, and return its peak: in training that of the backward pass, too."""
    results: list[Any] = []
    peak = _chunk_sizes.peak_bytes(lambda: results.append(function(*args, **kwargs)), batch.device)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(results)):
        # Gradients of intermediate results need at most as much as these, beside the gradients of parameters.
        modules = _independence.modules_of(function, batch.leaves)
        weights = {id(one): one.nbytes for part in modules for one in part._parameters.values() if one is not None}
        peak = 2 * peak + sum(weights.values())
    return results[0], peak


class _Redraw:
    """Sets generators back to their states before a chunk, while it runs again."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._before = [(one, one.get_state()) for one in generators]
        self._now: list[Tensor] = []

    def __enter__(self) -> None:
        self._now = [one.get_state() for one, _ in self._before]
        for one, state in self._before:
            one.set_state(state)

    def __exit__(self, *error: object) -> None:
        for (one, _), state in zip(self._before, self._now):
            one.set_state(state)
