"""Runs any module or function over a batch in chunks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten

from gridguard import _arguments, _attention, _chunk_sizes, _pytorch
from gridguard._independence import Constants, module_of, name_of, verify
from gridguard._native import GridguardError
from gridguard._split import Batch, Dim, Outputs, concatenated

_WHOLE = 2**63 - 1
# The current stream.
_MAIN = contextlib.nullcontext()


def chunked(
    function: Callable[..., Any],
    dim: Dim = 0,
    chunk: _arguments.Number | None = None,
    memory: _arguments.Bytes | None = None,
    *,
    out_dim: int | None = None,
    recompute: bool | None = None,
    verify: bool = True,
    streams: int = 1,
    progress: bool = False,
) -> Chunked:
    """Return a callable that runs a module or function over its batch in chunks.

    The items along `dim` must be independent. Chunks are views of the inputs, and write into one output::

        >>> import torch, gridguard.torch
        >>> layer = torch.nn.Linear(8, 4)
        >>> x = torch.randn(100, 8)
        >>> out = gridguard.torch.chunked(layer, chunk=30)(x)
        >>> torch.allclose(out, layer(x), atol=1e-6)
        True

    An integer `dim` splits each tensor among the arguments, also in tuples, lists and dictionaries, that has as many
    elements on this axis as the first tensor. Other arguments are passed whole. A tuple has an axis or None for each
    positional argument, and keyword arguments are passed whole. `out_dim` is the axis of the outputs if it is another.

    The size of a chunk is `chunk` items, or as many as fit into `memory`, in bytes or as a text, for example "2GiB".
    `memory` limits the memory of a chunk beside inputs and outputs. The first call of each shape measures it with a few
    items. Otherwise `tune` may have measured the fastest size. Without any of these the batch runs as a whole, and in
    halves as often as memory or the grid of a launch is too small. Finished chunks are kept.

    Gradients equal the gradients of the whole batch. `recompute` runs each chunk again in the backward pass instead of
    keeping its intermediate results, by default if `memory` is given. Random numbers are drawn by chunk.

    Before the first chunks of a shape, `verify` compares a few items in chunks with the same items as a whole. With 2
    `streams` two chunks are in flight if nothing needs gradients, and `tune` measures if that is faster. The function
    must then allow two calls at once, so it may not replay CUDA graphs. `progress` shows a bar if tqdm is installed.

    A module may be replaced by what this returns, with the same `state_dict`. `block.forward = chunked(block.forward)`
    also keeps the names of its parameters and runs its hooks once.

    Calling it raises ValueError if the items are not independent, if `memory` is below one item, or if no input has
    the axis. A chunk that fails raises ChunkError.
    """
    if not callable(function):
        raise TypeError(f"function is of type {type(function).__name__}: pass a module or a function")
    if chunk is not None and memory is not None:
        raise ValueError("chunk and memory are given: pass one of them")
    if streams not in (1, 2):
        raise ValueError(f"streams is {streams!r}: pass 1 or 2")
    if not isinstance(dim, (list, tuple)):
        dim = operator.index(dim)  # type: ignore[arg-type]
    axes = [axis for axis in ([dim] if isinstance(dim, int) else dim) if axis is not None]
    if not axes:
        raise ValueError(f"dim is {dim}: pass an axis for one argument or more")
    kind = _ChunkedModule if isinstance(function, nn.Module) else Chunked
    return kind(
        function,
        _Options(
            dim,
            axes[0] if out_dim is None else operator.index(out_dim),
            None if chunk is None else _arguments.whole("chunk", chunk, 1),
            None if memory is None else _arguments.size_in_bytes("memory", memory, 1),
            memory is not None if recompute is None else recompute,
            verify,
            streams,
            progress,
        ),
    )


class ChunkError(GridguardError):
    """A chunk failed. The cause is the error that it raised."""

    def __init__(self, text: str, done: int, output: Any) -> None:
        super().__init__(text)
        self.done: int = done
        """The number of items in the chunks before it."""
        self.output: Any = output
        """Their outputs, without gradients, or None."""


@dataclass(frozen=True)
class _Options:
    dim: Dim
    out_dim: int
    chunk: int | None
    memory: int | None
    recompute: bool
    verify: bool
    streams: int
    progress: bool


class Chunked:
    """The callable that `chunked` returns."""

    def __init__(self, function: Callable[..., Any], options: _Options) -> None:
        self.function, self._options = function, options
        # By kind of call.
        self._sizes: dict[Any, _chunk_sizes.Size] = {}
        self._verified: set[Any] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in chunks, with its arguments and outputs."""
        if not torch.compiler.is_compiling():
            return self._run(args, kwargs)
        if self._options.chunk is None:
            return _run_uncompiled(self, args, kwargs)
        return self._run_plain(Batch(args, kwargs, self._options.dim))

    def tune(self, *args: Any, **kwargs: Any) -> int:
        """Measure sizes of chunks, and return the fastest size.

        The arguments are an example. If gradients are enabled, the backward pass counts. Later calls of these shapes
        use the size, with any batch and in later programs too: a file beside the user's profiles keeps it
        (`GRIDGUARD_PROFILES`). Raises ValueError if `chunk` is given.
        """
        options = self._options
        if options.chunk is not None:
            raise ValueError(f"chunk is {options.chunk}: tune only chooses a size that is not given")
        batch = Batch(args, kwargs, options.dim)
        key, largest = self._key(batch), batch.items
        self._check(batch, key)
        if options.memory is not None:
            largest = self._fitting(batch, key, options.memory // options.streams)

        def run(size: int, count: int) -> None:
            fixed = replace(options, chunk=size, memory=None, streams=count, verify=False)
            _differentiate(Chunked(self.function, fixed)(*args, **kwargs), self)

        with _apart(batch.device):
            self._sizes[key] = _chunk_sizes.fastest(max(largest, 1), options.streams, run, batch.device)
        _chunk_sizes.store(self._profile_key(batch, key), self._sizes[key])
        return self._sizes[key][0]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = Batch(args, kwargs, self._options.dim)
        if _attention.is_transformed() or any(map(_pytorch.is_other_type, batch.split())):
            return self._run_plain(batch)
        key = self._key(batch)
        size, streams = self._size(batch, key)
        if size >= batch.items:
            try:
                return self._compute(args, kwargs)
            except Exception as error:
                if not self._may_shrink(error, batch.items):
                    raise
            size = self._shrink(key, batch.items, streams)
        return self._loop(batch, key, size, streams)

    def _run_plain(self, batch: Batch) -> Any:
        """Run chunks with plain operators only, which compilers and transforms see."""
        size = self._options.chunk or batch.items
        is_unknown = self._options.chunk is None and self._options.memory is not None
        # A check of an enclosing function has few items.
        if is_unknown and not isinstance(_get_current_dispatch_mode(), Constants):
            raise GridguardError("memory cannot be measured under transforms or for subclasses of tensors: pass chunk")
        sizes = [min(size, batch.items - begin) for begin in range(0, batch.items, size)]
        if len(sizes) <= 1:
            return self._compute(*batch.part(0, batch.items))
        # Inductor writes the chunks in place.
        results = [self._compute(*batch.part(at * size, length)) for at, length in enumerate(sizes)]
        return concatenated(results, self._options.out_dim, sizes)

    def _loop(self, batch: Batch, key: Any, size: int, streams: int) -> Any:
        self._check(batch, key)
        batch.gather_gradients()
        outputs = Outputs(batch.items, self._options.out_dim)
        done = chunks = 0
        lanes: Iterator[Any] = itertools.repeat(_MAIN)
        with contextlib.ExitStack() as stack:
            bar = _bar(batch.items, name_of(self.function)) if self._options.progress else None
            if bar is not None:
                stack.callback(bar.close)
            while done < batch.items:
                step = min(size, batch.items - done)
                # The first chunk fills caches, for example the cache of autocast, before other streams use them.
                if chunks == 1 and streams > 1 and batch.device.type == "cuda" and not outputs.needs_grad:
                    lanes = stack.enter_context(_side_streams(batch.device, streams))
                try:
                    with next(lanes):
                        outputs.write(self._compute(*batch.part(done, step)), done, step)
                except Exception as error:
                    if isinstance(error, _STOP):
                        raise
                    if not self._may_shrink(error, step):
                        items = f"items {done} to {done + step - 1} of {batch.items}"
                        text = f"chunk {chunks + 1} of {name_of(self.function)} ({items}) failed: {error}"
                        raise ChunkError(text, done, outputs.written(done)) from error
                else:
                    done, chunks = done + step, chunks + 1
                    if bar is not None:
                        bar.update(step)
                    continue
                # Outside of `except`, whose traceback keeps the tensors of the failed chunk.
                size = self._shrink(key, step, streams)
        batch.forget()
        return outputs.joined()

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self._options.recompute and torch.is_grad_enabled()):
            return self.function(*args, **kwargs)
        return checkpoint.checkpoint(functools.partial(self.function, **kwargs), *args, use_reentrant=False)

    def _size(self, batch: Batch, key: Any) -> _chunk_sizes.Size:
        """Return the size of the chunks of a call, and the number of streams."""
        options = self._options
        if options.chunk is not None:
            return options.chunk, options.streams
        if key not in self._sizes:
            size, streams = _chunk_sizes.load().get(self._profile_key(batch, key), (_WHOLE, options.streams))
            streams = min(streams, options.streams)
            if options.memory is not None and batch.items > 0:
                size = min(size, self._fitting(batch, key, options.memory // streams))
            self._sizes[key] = size, streams
        size, streams = self._sizes[key]
        # Chunks of nearly equal sizes.
        return math.ceil(batch.items / math.ceil(batch.items / size)) if batch.items > size else size, streams

    def _may_shrink(self, error: Exception, size: int) -> bool:
        return self._options.chunk is None and size > 1 and _chunk_sizes.is_shortage(error)

    def _shrink(self, key: Any, size: int, streams: int) -> int:
        """Halve the size, for later calls too."""
        self._sizes[key] = math.ceil(size / 2), streams
        return self._sizes[key][0]

    def _fitting(self, batch: Batch, key: Any, budget: int) -> int:
        """Return the largest chunk within a budget of bytes."""
        if not _is_measurable(batch):
            raise GridguardError("memory cannot be measured on meta tensors or during a capture: call once before it")
        self._check(batch, key)

        def peak(size: int) -> int:
            sample = batch.sample(range(size))
            return _chunk_sizes.peak_bytes(
                lambda: _differentiate(self._compute(*sample.part(0, size)), self, sample.leaves), batch.device
            )

        with _apart(batch.device):
            return _chunk_sizes.fit(budget, batch.items, peak)

    def _check(self, batch: Batch, key: Any) -> None:
        """Verify that the items are independent, once for each kind of call."""
        if self._options.verify and key not in self._verified and batch.items > 1 and _is_measurable(batch):
            with _apart(batch.device):
                verify(self.function, batch, self._options.out_dim)
            self._verified.add(key)

    def _key(self, batch: Batch) -> tuple[Any, ...]:
        """Return the kind of a call, without the number of items."""
        shapes = [
            (*leaf.shape[:axis], *leaf.shape[axis + 1 :], str(leaf.dtype))
            for leaf, axis in zip(batch.leaves, batch.axes)
            if axis is not None
        ]
        device, module = batch.device, module_of(self.function)
        is_cast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
        cast = str(torch.get_autocast_dtype(device.type)) if is_cast else None
        return str(device), *shapes, torch.is_grad_enabled(), cast, module is not None and module.training

    def _profile_key(self, batch: Batch, key: tuple[Any, ...]) -> str:
        device, module = batch.device, module_of(self.function)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        weights = 0 if module is None else sum(parameter.numel() for parameter in module.parameters())
        path = getattr(self.function if module is None else type(module), "__module__", "")
        return f"{name}, {path}.{name_of(self.function)}, {weights} weights, {key[1:]}"


class _ChunkedModule(nn.Module, Chunked):
    """A module in chunks, with the `state_dict` of the module."""

    def __init__(self, *options: Any) -> None:
        nn.Module.__init__(self)
        Chunked.__init__(self, *options)
        self._register_load_state_dict_pre_hook(_add_prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return Chunked.__call__(self, *args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._modules["function"].state_dict(*args, **kwargs)  # type: ignore[union-attr]


def _add_prefix(state: dict[str, Any], prefix: str, *others: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}function.{name[len(prefix) :]}"] = state.pop(name)


@torch._disable_dynamo
def _run_uncompiled(chunked: Chunked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run between compiled graphs: a size that is measured is not known to a compiler."""
    return chunked._run(args, kwargs)


# An enclosing checkpoint ends its second forward pass with this error.
_STOP = getattr(checkpoint, "_StopRecomputationError", ())


def _differentiate(out: Any, chunked: Chunked, inputs: Sequence[Any] = ()) -> None:
    """Compute the gradients of an output that has gradients, and drop them."""
    module = module_of(chunked.function)
    outs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor) and leaf.requires_grad]
    leaves = [*inputs, *(() if module is None else module.parameters())]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if outs and wanted:
        grads = [leaf.new_ones(()).expand(leaf.shape) for leaf in outs]
        torch.autograd.grad(outs, wanted, grads, allow_unused=True)


@contextlib.contextmanager
def _apart(device: torch.device) -> Iterator[None]:
    """Keep the random state, and hide saved tensors from an enclosing checkpoint, which counts them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield


def _is_measurable(batch: Batch) -> bool:
    kind = batch.device.type
    return kind != "meta" and not (kind == "cuda" and torch.cuda.is_current_stream_capturing())


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    # The same ones in each call: PyTorch keeps free memory by stream.
    return [torch.cuda.Stream(device) for _ in range(2)]


@contextlib.contextmanager
def _side_streams(device: torch.device, count: int) -> Iterator[Iterator[Any]]:
    """Yield contexts that alternate between streams. The current stream waits for them at the end."""
    main, streams = torch.cuda.current_stream(device), _streams(device)[:count]
    for stream in streams:
        stream.wait_stream(main)
    try:
        yield (torch.cuda.stream(stream) for stream in itertools.cycle(streams))
    finally:
        for stream in streams:
            main.wait_stream(stream)


def _bar(items: int, name: str) -> Any:
    """Return a bar of progress, or None without tqdm."""
    with contextlib.suppress(ImportError):
        from tqdm.auto import tqdm

        return tqdm(total=items, desc=name, unit="item")
    return None
