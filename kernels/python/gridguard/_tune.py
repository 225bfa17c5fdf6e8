"""Tunes functions that launch kernels: `gridguard.tune`."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import os
import pickle
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridguard import _arguments, _native


class TuneError(_native.GridguardError):
    """A function cannot be tuned.

    `kind` says why: `mismatch` (it gives other outputs, or changes an input), `launch` (it raises, forks or returns no
    output), `timeout`, `crash`, `illegal`, or `ended` (its process does not start or end).
    """

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class TunedFunction:
    """The result of `Tunable.tune`."""

    values: dict[str, int]
    """The fastest values by name, with `chunk` if the function is split."""
    speedup: float
    """The time of the first values divided by theirs."""
    seconds: float
    """The time of a call."""
    candidates: int
    """Candidates that were compared."""
    known: int
    """Candidates that earlier searches found to be slower or wrong, and that were not measured again."""
    failures: tuple[str, ...]
    """Candidates that failed, and how."""
    complete: bool
    """Whether the search ended before its time limit. Otherwise the choice is not stored."""
    profile: Path | None
    """The profile that stores the choice."""


def tune(
    *,
    chunk: str | Iterable[int] | None = None,
    sizes: Callable[..., dict[str, int]] | None = None,
    outputs: Sequence[str] = (),
    updates: Sequence[str] = (),
    where: Callable[..., bool] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: float = 0.0,
    timeout: float = 60.0,
    **parameters: Iterable[int],
) -> Callable[[Callable[..., Any]], Tunable]:
    """Tune a function that launches kernels, by CuPy, Triton, cuda.core, Numba or PyTorch, or that runs NumPy.

    ::

        @gridguard.tune(chunk="auto", BLOCK=[64, 128, 256], outputs=["y"])
        def double(x, y, *, chunk, BLOCK): ...

        double.tune(x, y)  # once, where the device is idle
        double(x, y)  # runs with the fastest values, on this device and these sizes

    Each of `parameters` lists values, the default first, and is passed by name. `chunk` is the number of items that
    the function should process at a time: all of them, half of them and so on (`"auto"`), or the listed ones.

    A candidate with another output than the default's, or than `reference`, never wins. The output is what the
    function returns, and the arguments named in `outputs`, which are overwritten before each check, or in `updates`,
    which are restored. `tolerance` allows a difference, relative to an element or to the mean magnitude.

    `sizes` returns the sizes of a call by name, the number of items first. By default they are the shapes of all
    arrays and all whole numbers. `where` drops candidates by their values. `timeout` limits one check in seconds.

    Choices are stored in the user's profile of the device. A choice serves calls with near sizes, and with the same
    types, texts, floats and flags. Other calls run the first values.
    """
    options = {"outputs": list(outputs), "updates": list(updates), "tolerance": float(tolerance)}
    lists = {name: [_arguments.whole(name, value) for value in values] for name, values in parameters.items()}
    chunks = None
    if chunk is not None:
        if not isinstance(chunk, (str, Iterable)) or isinstance(chunk, str) and chunk != "auto":
            raise TypeError(f'chunk is {chunk!r}: pass "auto" or a list of numbers of items')
        chunks = [] if chunk == "auto" else [_arguments.whole("chunk", value) for value in chunk]
    timeout = _arguments.seconds("timeout", timeout)
    if not lists and chunks is None:
        raise ValueError("nothing varies: give chunk or a parameter, for example BLOCK=[64, 128]")
    for name, values in lists.items():
        if not values:
            raise ValueError(f"{name} has no values: give at least one")
    return lambda function: Tunable(function, lists, chunks, sizes, where, reference, timeout, options)


class Tunable:
    """A function with values that can be tuned. A call passes the tuned ones, or else the first ones."""

    def __init__(self, function, parameters, chunks, sizes, where, reference, timeout, options):
        functools.update_wrapper(self, function)
        self.function = function
        self.reference = reference
        self.options = options
        self._parameters, self._chunks = parameters, chunks
        self._sizes, self._where, self._timeout = sizes, where, timeout
        self._signature = inspect.signature(function)
        self._found: dict[Any, dict[str, int]] = {}
        named = {*self._signature.parameters}
        for name in (*parameters, *(["chunk"] if chunks is not None else []), *options["outputs"], *options["updates"]):
            if name not in named:
                raise ValueError(f"{function.__name__} has no parameter {name}: add it")

    def __call__(self, *args, **kwargs):
        return self.function(*args, **(self.values(*args, **kwargs) | kwargs))

    def values(self, *args, **kwargs) -> dict[str, int]:
        """Return the values that a call with these arguments passes."""
        if self._sizes is not None:
            brief = self._call(args, kwargs)
        else:
            # Binding the arguments takes longer than this.
            brief = (*map(_brief, args), *((name, _brief(value)) for name, value in kwargs.items()))
        found = self._found.get(brief)
        if found is None:
            if len(self._found) >= _MAX_FOUND:  # for example a scale that each call changes
                self._found.clear()
            found = self._found[brief] = self._look_up(self._call(args, kwargs))
        return found

    def tune(self, *args, time_limit: float | None = None, **kwargs) -> TunedFunction:
        """Measure the candidates with these arguments in a child process, and store the fastest in the profile.

        The child imports the function's module, and gets a copy of the arguments by `pickle`. All results are kept in
        a journal: after a change of the lists, only what is new, what was close to the best and the default run again.

        Raises TuneError if the default fails. A candidate that fails is left out.
        """
        time_limit = None if time_limit is None else _arguments.seconds("time_limit", time_limit)
        if _MEASURING in os.environ:
            text = "the program tunes when it is imported, or in a tuned function: call tune only below"
            raise TuneError(f'{text} `if __name__ == "__main__"`', "launch")
        call = self._call(args, kwargs)
        key, shape, _ = call
        tolerance = self.options["tolerance"]
        # With another time limit, a candidate that exceeded it may run again.
        journal = hashlib.sha256(repr((key, shape, tolerance, self._timeout)).encode()).hexdigest()[:32]
        search = _Search([*self._parameters.items()], self._chunks, self._where, tolerance, journal, time_limit,
                         self._timeout)  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="gridguard-") as folder:
            problem = Path(folder, "problem")
            problem.write_bytes(self._pickled(args, kwargs, dict(shape)))
            command = [sys.executable, str(Path(__file__).with_name("_tuned_child.py"))]
            try:
                text = _native.tune_function(command, str(problem), _Function(*call), search)
            finally:
                self._found.clear()
        found = json.loads(text)
        if "error" in found:
            printed = f"\nit printed: {found['printed'].strip()[-1000:]}" if found["printed"].strip() else ""
            raise TuneError(f"{self.function.__name__}: {found['error']}{printed}", found["kind"])
        values = dict(found["parameters"])
        if self._chunks is not None:
            values["chunk"] = found["chunk"]
        return TunedFunction(
            values=values,
            speedup=found["speedup"],
            seconds=found["median_ns"] / 1e9,
            candidates=found["candidates"],
            known=found["known"],
            failures=tuple(found["failures"]),
            complete=found["complete"],
            profile=None if found["profile"] is None else Path(found["profile"]),
        )

    def defaults(self, items: int) -> dict[str, int]:
        """Return the first values, for this number of items."""
        values = {name: values[0] for name, values in self._parameters.items()}
        if self._chunks is not None:
            # A call without items has chunks, too.
            values["chunk"] = max(1, min(items, self._chunks[0]) if self._chunks else items)
        return values

    def _look_up(self, call) -> dict[str, int]:
        items = call[1][0][1]
        default = self.defaults(items)
        if items == 0:
            return default
        parameters, chunk, _ = _native.look_up_function(_Function(*call))
        if not parameters and chunk is None:
            return default
        values = {**default, **{name: value for name, value in parameters if name in default}}
        if self._chunks is not None:
            values["chunk"] = min(items, items if chunk is None else chunk)
        # The profile is a file: it may be for other lists.
        known = all(values[name] in listed for name, listed in self._parameters.items())
        known = known and (not self._chunks or values["chunk"] in {min(items, one) for one in self._chunks})
        return values if known and (self._where is None or self._where(**values)) else default

    def _call(self, args, kwargs):
        """Return the key, the shape and the device of a call."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        arrays = {name: value for name, value in bound.items() if _is_array(value)}
        if self._sizes is not None:
            shape = {name: int(size) for name, size in self._sizes(*args, **kwargs).items()}
        else:
            shape = {}
            for name, array in arrays.items():
                shape |= {f"{name}_{place}": int(size) for place, size in enumerate(array.shape)}
            skipped = {*self._parameters, "chunk"}
            whole = {name: value for name, value in bound.items() if type(value) is int and name not in skipped}
            shape |= {name: value for name, value in whole.items() if 0 <= value < 2**64}
        if not shape or len(shape) > _MAX_SIZES:
            raise ValueError(f"{self.function.__name__} has {len(shape)} sizes, not 1 to {_MAX_SIZES}: give sizes=")
        # What is no array and no size, for example a flag.
        known = {*shape, *self._parameters, "chunk"}
        scalars = {name: value for name, value in bound.items() if isinstance(value, (str, int, float, bytes))}
        variant = ", ".join(f"{name}={value!r}" for name, value in scalars.items() if name not in known)
        if len(variant) > _MAX_NAME:
            variant = hashlib.sha256(variant.encode()).hexdigest()
        types = " ".join(dict.fromkeys(str(array.dtype).removeprefix("torch.") for array in arrays.values()))
        kernel = f"{_module_name(self.function)}.{self.function.__qualname__}"
        key = (kernel[-_MAX_NAME:], self._source, variant, types[:_MAX_NAME])
        return key, tuple(shape.items()), _device(arrays.values())

    @functools.cached_property
    def _source(self) -> str:
        """The hash of the function's source, and of what it names: functions, kernels and their texts."""
        digest = hashlib.sha256(repr(self.options["outputs"] + self.options["updates"]).encode())
        named = [self.function.__globals__.get(name) for name in self.function.__code__.co_names]
        for value in (self.function, *named):
            # Kernels of Triton, Numba and CuPy.
            for part in ("fn", "py_func", "code"):
                value = getattr(value, part, value)
            if inspect.isfunction(value):
                own = value is self.function
                try:
                    value = _body(inspect.getsource(value)) if own else inspect.getsource(value)
                except (OSError, TypeError):
                    value = repr((value.__code__.co_code, value.__code__.co_consts))
            if isinstance(value, str):
                digest.update(value.encode())
        reference = getattr(self.reference, "__code__", None)
        if reference is not None:
            # The source of a lambda has the lists, too.
            constants = [one for one in reference.co_consts if not inspect.iscode(one)]
            digest.update(repr((reference.co_code, reference.co_names, constants)).encode())
        return digest.hexdigest()[:32]

    def _pickled(self, args, kwargs, shape) -> bytes:
        function, module = self.function, sys.modules[self.function.__module__]
        file = getattr(module, "__file__", None)
        if "<locals>" in function.__qualname__ or (module.__name__ == "__main__" and file is None):
            text = f"{function.__qualname__} cannot be imported by a child process: define it at the top of a file"
            raise TuneError(text, "launch")
        try:
            arguments = pickle.dumps((args, kwargs))
        except Exception as error:
            raise TuneError(f"the arguments cannot be pickled: {error}", "launch") from error
        return pickle.dumps(
            {
                "path": sys.path,
                "main": os.path.abspath(file) if module.__name__ == "__main__" else None,
                "module": module.__name__,
                "name": function.__qualname__,
                "arguments": arguments,
                "default": self.defaults(next(iter(shape.values()))),
            }
        )


@dataclass(frozen=True)
class _Function:
    key: Sequence[str]
    shape: Sequence[tuple[str, int]]
    device: int | None


@dataclass(frozen=True)
class _Search:
    parameters: Sequence[tuple[str, list[int]]]
    chunks: list[int] | None
    allows: Callable[..., bool] | None
    tolerance: float
    journal: str
    time_limit: float | None
    timeout: float


def _body(source: str) -> str:
    """Return the source of a function without its decorators, whose lists may change."""
    try:
        line = ast.parse(textwrap.dedent(source)).body[0].lineno
    except SyntaxError:  # for example a lambda in the middle of a call
        line = 1
    return "".join(source.splitlines(keepends=True)[line - 1 :])


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _brief(value: Any) -> Any:
    """Return what a choice may depend on."""
    if _is_array(value):
        device = getattr(value, "device", None)
        return (tuple(value.shape), value.dtype, getattr(device, "id", device))
    return (type(value), value if isinstance(value, (str, int, float, bytes)) else None)


def _device(arrays: Iterable[Any]) -> int | None:
    """Return the ordinal of the first array on a device; None if all are on the host."""
    for array in arrays:
        if hasattr(array, "__cuda_array_interface__"):
            device = getattr(array, "device", None)
            index = getattr(device, "index", getattr(device, "id", None))
            return index if isinstance(index, int) else 0
    return None


def _module_name(function) -> str:
    """Return the name of a function's module; for the main program that of its file."""
    name = function.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).stem if name == "__main__" and file else name


# The limits of a profile.
_MAX_SIZES = 16
_MAX_NAME = 64
# Calls whose values are remembered.
_MAX_FOUND = 4096
# Set in processes that measure candidates, and in those that they start.
_MEASURING = "GRIDGUARD_MEASURES_FUNCTIONS"
