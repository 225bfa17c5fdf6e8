"""Tunes functions that launch kernels: `gridguard.tune`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from gridguard import _arguments, _native
from gridguard._dependencies import Dependencies, UnreadableError, is_array

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class TuneError(_native.GridguardError):
    """A function cannot be tuned.

    `kind` says why: `mismatch` (it gives other outputs, or changes an input), `launch` (it raises, forks or returns no
    output), `timeout`, `crash`, `illegal`, or `ended` (its process does not start or end).
    """

    # A pickle passes the message, and sets the kind.
    def __init__(self, message: str, kind: str = "launch"):
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
    attained_percent: int | None
    """How much of what the device can move a call moves, if `bytes` is given."""
    flops_per_second: float | None
    """The operations in a second, if `flops` is given."""
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
    bytes: int | Callable[..., int] | None = None,
    flops: int | Callable[..., int] | None = None,
    timeout: float = 60.0,
    **parameters: Iterable[int],
) -> Callable[[Callable[P, R]], Tunable[P, R]]:
    """Tune a function that launches kernels, by CuPy, Triton, cuda.core, Numba or PyTorch, or that runs NumPy.

    ::

        @gridguard.tune(chunk="auto", BLOCK=[64, 128, 256], outputs=["y"])
        def double(x, y, *, chunk=0, BLOCK=0): ...

        double.tune(x, y)  # once, where the device is idle
        double(x, y)  # runs with the fastest values, on this device and these sizes

    Each of `parameters` lists values, the default first, and is passed by name. `chunk` is the number of items that
    the function should process at a time: all of them, half of them and so on (`"auto"`), or the listed ones.

    A candidate with another output than the default's, or than `reference`, never wins. The output is what the
    function returns, and the arguments named in `outputs`, which are overwritten before each check, or in `updates`,
    which are restored. `tolerance` allows a difference, relative to an element or to the mean magnitude.

    `bytes` is what any implementation must read and write, or a function of the sizes that it names, as
    `bytes=lambda x_0, x_1: 8 * x_0 * x_1`; `flops` the same of operations. With `bytes`, the search stops within 3 % of
    what the device can move, and the result says how much of that it reaches.

    `sizes` returns the sizes of a call by name, the number of items first. By default they are the shapes of all
    arrays, as `x_0`, and all whole numbers. `where` drops candidates. It gets the values and sizes that it names.
    `timeout` limits one check in seconds.

    Choices are stored in the user's profile of the device. A choice serves calls with the same sizes, types and other
    arguments, while the function and all that it names are the same; with near sizes, if `where` names sizes and allows
    them. Other calls run the first values.

    Raises TypeError for anything but an ordinary function of Python, and ValueError if the lists do not fit it.
    """
    options = {"outputs": list(outputs), "updates": list(updates), "tolerance": float(tolerance)}
    options |= {"bytes": bytes, "flops": flops}
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
        if len({*values}) < len(values):
            raise ValueError(f"{name} has a value twice: give each once")
    return lambda function: Tunable(function, lists, chunks, sizes, where, reference, timeout, options)


class Tunable(Generic[P, R]):
    """A function with values that can be tuned. A call passes the tuned ones, or else the first ones."""

    def __init__(self, function: Callable[P, R], parameters: dict[str, list[int]], chunks: list[int] | None, sizes: Any,
                 where: Any, reference: Any, timeout: float, options: dict[str, Any]):  # fmt: skip
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function that `def` defines: tune a function that calls it")
        for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction):
            if is_kind(function):
                raise TypeError(f"{function.__name__} runs after its call returns: tune the function that launches")
        functools.update_wrapper(self, function)
        self.function = function
        self.reference = reference
        self.options = options
        self._parameters, self._chunks, self._timeout = parameters, chunks, timeout
        self._sizes, self._where = sizes, where
        self._signature = inspect.signature(function)
        self._found: dict[Any, dict[str, int]] = {}
        self._said: set[str] = set()
        self._instance: tuple[Any, ...] = ()
        self._source = Dependencies(function, reference, options["outputs"], options["updates"])
        allowed = inspect.signature(where).parameters.values() if where else ()
        self._allowed = None if any(one.kind is one.VAR_KEYWORD for one in allowed) else [one.name for one in allowed]
        self._tuned = (*parameters, *(["chunk"] if chunks is not None else []))
        for name in (*self._tuned, *options["outputs"], *options["updates"]):
            if name not in self._signature.parameters:
                raise ValueError(f"{function.__name__} has no parameter {name}: add it")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        call: Any = self.function
        returned: R = call(*self._instance, *args, **(self.values(*args, **kwargs) | kwargs))
        return returned

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Tunable[P, R]: ...
    @overload
    def __get__(self: Tunable[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Tunable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _instance=(instance,))
        return bound

    def __reduce__(self) -> Any:
        return (getattr, (*self._instance, self.function.__name__)) if self._instance else self.function.__qualname__

    def values(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Return the values that a call with these arguments passes."""
        args = (*self._instance, *args)
        try:
            # Binding the arguments takes longer than this.
            brief: Any = (self._source.digest(), *[_brief(one) for one in args])
            if kwargs:
                brief += (*((name, _brief(value)) for name, value in kwargs.items()),)
            if self._sizes is not None:
                brief = (brief, *self._sizes(*args, **kwargs).items())
            found = self._found.get(brief)
            if found is None:
                if len(self._found) >= _MAX_FOUND:  # for example a scale that each call changes
                    self._found.clear()
                found = self._found[brief] = self._look_up(self._call(args, kwargs))
            return found
        except (UnreadableError, RecursionError) as error:
            self._say(f"the first values run, because {error}")
            return self.defaults(next(iter(self._shape(args, kwargs)[0].values())))

    def tune(self, *args: Any, time_limit: float | None = None, **kwargs: Any) -> TunedFunction:
        """Measure the candidates with these arguments in a child process, and store the fastest in the profile.

        The child imports the function's module, and gets a copy of the arguments by `pickle`. All results are kept in
        a journal: after a change of the lists, only what is new, what was close to the best and the default run again.
        A second search of the same function waits for the first.

        Raises TuneError if the default fails. A candidate that fails is left out.
        """
        time_limit = None if time_limit is None else _arguments.seconds("time_limit", time_limit)
        if _MEASURING in os.environ:
            text = "the program tunes when it is imported, or in a tuned function: call tune only below"
            raise TuneError(f'{text} `if __name__ == "__main__"`')
        args = (*self._instance, *args)
        try:
            call = self._call(args, kwargs)
        except (UnreadableError, RecursionError) as error:
            raise TuneError(f"{self.function.__name__} cannot be tuned: {error}") from error
        key, shape, _ = call
        tolerance = self.options["tolerance"]
        # With another time limit, a candidate that exceeded it may run again.
        journal = hashlib.sha256(repr((key, shape, tolerance, self._timeout)).encode()).hexdigest()[:32]
        search = _Search([*self._parameters.items()], self._chunks, lambda **values: self._allows(values, shape),
                         tolerance, self._needs("bytes", shape), self._needs("flops", shape), journal, time_limit,
                         self._timeout)  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="gridguard-") as folder:
            problem = Path(folder, "problem")
            problem.write_bytes(self._pickled(args, kwargs, key, dict(shape)))
            # As multiprocessing starts its processes.
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            command = [sys.executable, *flags, str(Path(__file__).with_name("_tuned_child.py"))]
            try:
                text = _until_free(_native.tune_function, command, str(problem), _Function(*call), search)
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
            attained_percent=found["attained_percent"],
            flops_per_second=found["flops_per_second"],
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

    def _look_up(self, call: Any) -> dict[str, int]:
        shape = call[1]
        items = shape[0][1]
        default = self.defaults(items)
        if items == 0:
            return default
        parameters, chunk, matched = _native.look_up_function(_Function(*call))
        if not parameters and chunk is None:
            if "edited" in matched:
                self._say("the first values run, because the function, or what it names, was edited since it was tuned")
            elif "tune this shape" in matched:
                self._say(_OTHER_SIZES)
            return default
        values = {**default, **{name: value for name, value in parameters if name in default}}
        if self._chunks is not None:
            values["chunk"] = min(items, items if chunk is None else chunk)
        # The profile is a file: it may be for other lists.
        known = all(values[name] in listed for name, listed in self._parameters.items())
        known = known and (not self._chunks or values["chunk"] in {min(items, one) for one in self._chunks})
        if not known or not self._allows(values, shape):
            return default
        # Only `where` can say that values compared at other sizes are right at these.
        sees_sizes = self._allowed is None or not {*self._allowed}.isdisjoint(dict(shape))
        if matched != "exact" and not sees_sizes:
            self._say(_OTHER_SIZES)
            return default
        return values

    def _allows(self, values: dict[str, int], shape: Sequence[tuple[str, int]]) -> bool:
        """Tell whether `where` allows values at sizes."""
        if self._where is None:
            return True
        offered = {**dict(shape), **values}
        names = offered if self._allowed is None else [name for name in self._allowed if name in offered]
        return bool(self._where(**{name: offered[name] for name in names}))

    def _needs(self, name: str, shape: Sequence[tuple[str, int]]) -> int | None:
        """Return the bytes or operations of a call with these sizes."""
        need, sizes = self.options[name], dict(shape)
        if callable(need):
            need = need(**{size: sizes[size] for size in inspect.signature(need).parameters})
        return None if need is None else _arguments.whole(name, need)

    def _say(self, text: str) -> None:
        """Log a text once."""
        if text not in self._said:
            self._said.add(text)
            logging.getLogger("gridguard").warning("%s: %s", self.function.__qualname__, text)

    def _shape(self, args: Any, kwargs: Any) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the sizes and the arguments of a call by name."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        if self._sizes is not None:
            shape = {name: int(size) for name, size in self._sizes(*args, **kwargs).items()}
        else:
            shape = {
                f"{name}_{place}": int(size)
                for name, value in bound.items()
                if is_array(value)
                for place, size in enumerate(value.shape)
            }
            whole = {name: value for name, value in bound.items() if type(value) is int and name not in self._tuned}
            shape |= {name: value for name, value in whole.items() if 0 <= value < 2**64}
        if not shape or len(shape) > _MAX_SIZES:
            raise ValueError(f"{self.function.__name__} has {len(shape)} sizes, not 1 to {_MAX_SIZES}: give sizes=")
        twice = {*shape} & {*self._tuned}
        if twice:
            raise ValueError(f"{self.function.__name__} has a size and a value named {min(twice)}: rename one")
        return shape, bound

    def _call(self, args: Any, kwargs: Any) -> Any:
        """Return the key, the shape and the device of a call."""
        shape, bound = self._shape(args, kwargs)
        arrays = [value for value in bound.values() if is_array(value)]
        # What is no array and no size, for example a flag.
        others = {
            name: value
            for name, value in bound.items()
            if value is not None and name not in (*shape, *self._tuned) and not is_array(value)
        }
        texts = (
            f"{name}={value!r}" if type(value) in _SCALARS else f"{name}: {Dependencies(_brief(value)).digest()}"
            for name, value in others.items()
        )
        variant = ", ".join(texts)
        if len(variant) > _MAX_NAME:
            variant = hashlib.sha256(variant.encode(errors="surrogatepass")).hexdigest()
        dtypes = " ".join(dict.fromkeys(str(array.dtype).removeprefix("torch.") for array in arrays))
        kernel = f"{_module_name(self.function)}.{self.function.__qualname__}"
        key = (kernel[-_MAX_NAME:], self._source.digest(), variant, dtypes[:_MAX_NAME])
        return key, tuple(shape.items()), _device(arrays)

    def _pickled(self, args: Any, kwargs: Any, key: Sequence[str], shape: dict[str, int]) -> bytes:
        function, name = self.function, self.function.__qualname__
        module = sys.modules.get(function.__module__)
        is_main = module is not None and module is sys.modules.get("__main__")
        try:
            found = functools.reduce(getattr, name.split("."), module)
        except AttributeError:
            found = None
        if getattr(found, "function", None) is not function or (is_main and not getattr(module, "__file__", None)):
            text = f"{name} cannot be imported by a child process: define it at the top of a file"
            raise TuneError(f"{text}, with the decorator `@gridguard.tune`")
        try:
            arguments = pickle.dumps((args, kwargs))
        except Exception as error:
            raise TuneError(f"the arguments cannot be pickled: {error}") from error
        preparation = spawn.get_preparation_data("gridguard")
        del preparation["authkey"]
        if not is_main and b"__main__" not in arguments:
            preparation = {part: value for part, value in preparation.items() if not part.startswith("init_main")}
        return pickle.dumps(
            {
                "preparation": preparation,
                "module": "__main__" if is_main else function.__module__,
                "name": name,
                "source": key[1],
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
    bytes: int | None
    flops: int | None
    journal: str
    time_limit: float | None
    timeout: float


def _brief(value: Any) -> Any:
    """Return what a choice may depend on: all but the elements of arrays."""
    kind = type(value)
    if kind in _SCALARS:
        return (kind, value)
    if is_array(value):
        device = getattr(value, "device", None)
        return (tuple(value.shape), value.dtype, getattr(device, "id", device))
    if kind in (tuple, list):
        return (kind, *map(_brief, value))
    if kind is dict:
        return (kind, *((_brief(name), _brief(one)) for name, one in value.items()))
    try:
        # Functions, classes and constants such as `torch.float16` are names.
        reduced = value if isinstance(value, (type, types.FunctionType)) else value.__reduce_ex__(4)
    except Exception as error:
        raise UnreadableError(f"an argument of type {kind.__qualname__} cannot be read") from error
    if not isinstance(reduced, tuple):
        return value
    return (kind, *(_brief([*part] if isinstance(part, Iterator) else part) for part in reduced))


def _until_free(function: Callable[..., str], *arguments: Any) -> str:
    """Call a function, again while another search has its journal."""
    while True:
        try:
            return function(*arguments)
        except BlockingIOError:
            time.sleep(0.1)


def _device(arrays: Iterable[Any]) -> int | None:
    """Return the ordinal of the first array on a device; None if all are on the host."""
    for array in arrays:
        if hasattr(array, "__cuda_array_interface__"):
            device = getattr(array, "device", None)
            index = getattr(device, "index", getattr(device, "id", None))
            return index if isinstance(index, int) else 0
    return None


def _module_name(function: Any) -> str:
    """Return the name of a function's module; for the main program that of its file."""
    name: str = function.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).stem if name == "__main__" and file else name


_OTHER_SIZES = "the first values run at other sizes than the tuned ones: tune them, or give a `where` that names sizes"
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
# The limits of a profile.
_MAX_SIZES = 16
_MAX_NAME = 64
# Calls whose values are remembered.
_MAX_FOUND = 4096
# Set in processes that measure candidates, and in those that they start.
_MEASURING = "GRIDGUARD_MEASURES_FUNCTIONS"
