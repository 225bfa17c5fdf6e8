"""The process that runs a function for `gridguard.tune`. The tuner starts this file."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pickle
import queue
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any


class Failed(Exception):
    """A candidate failed, in one of the tuner's ways."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Problem:
    """A function with its arguments."""

    def __init__(self, path: str):
        with open(path, "rb") as file:
            stored = pickle.load(file)
        sys.path[:] = stored["path"]
        if stored["main"] is not None:
            _import_main(stored["main"])
        __import__(stored["module"])
        tunable = functools.reduce(getattr, stored["name"].split("."), sys.modules[stored["module"]])
        self.function, self.reference, self.options = tunable.function, tunable.reference, tunable.options
        self.args, self.kwargs = pickle.loads(stored["arguments"])
        self.default, self.signature = stored["default"], tunable._signature
        bound = self.signature.bind_partial(*self.args, **self.kwargs).arguments
        self.arrays = {name: value for name, value in bound.items() if hasattr(value, "shape")}
        self.before = {name: _host(value) for name, value in self.arrays.items()}
        missing = [name for name in self._written() if name not in self.arrays]
        if missing:
            raise Failed("launch", f"{missing[0]} is no array: outputs and updates name arrays")
        self.expected: list[Any] | None = None
        self.repeats: dict[Any, int] = {}
        self.forks: list[bool] = []
        os.register_at_fork(after_in_parent=lambda: self.forks.append(True))

    def _written(self) -> list[str]:
        return self.options["outputs"] + self.options["updates"]

    def check(self, values: dict[str, int]) -> None:
        """Compare the output of a candidate with the reference."""
        if self.expected is None:
            first, second = self._output(self.default), self._output(self.default)
            text = "the default's second run gave another output than its first: name in `updates` what it changes; "
            self._compare(second, first, text)
            if self.reference is not None:
                self._restore()
                expected = [_host(one) for one in _arrays_in(self.reference(*self.args, **self.kwargs))]
                self._compare(first, expected, "the default's output differs from the reference: ")
                first = expected
            self.expected = first
        self._compare(self._output(values), self.expected, "the output differs from the default's: ")

    def sample(self, values: dict[str, int]) -> float:
        """Return the time of a call in nanoseconds, the mean of as many as take a fifth of a millisecond."""
        place = tuple(values.items())
        begun = time.perf_counter_ns()
        self._run(values)
        _synchronise()
        if place not in self.repeats:
            once = max(1, time.perf_counter_ns() - begun)
            self.repeats[place] = max(1, min(1000, 200_000 // once))
        repeats = self.repeats[place]
        begun = time.perf_counter_ns()
        for _ in range(repeats):
            self._run(values)
        _synchronise()
        return max(1.0, (time.perf_counter_ns() - begun) / repeats)

    def _run(self, values: dict[str, int]) -> Any:
        process = os.getpid()
        try:
            returned = self.function(*self.args, **{**self.kwargs, **values})
        except BaseException as error:
            if os.getpid() == process:
                _synchronise()
                # Without the lines of this file.
                trace = "".join(traceback.format_tb(error.__traceback__)[1:])
                text = f"it raised {type(error).__name__}: {error}\n{trace}"
                raise Failed("launch", text.strip()) from error
        if os.getpid() != process:
            os._exit(0)  # a fork of this process must not answer the tuner
        if self.forks:
            self.forks.clear()
            raise Failed("launch", "it forked: a process that it started may use the device meanwhile")
        return returned

    def _restore(self) -> None:
        """Restore updated arrays, and make outputs wrong, so that unwritten elements show."""
        for name in self.options["updates"]:
            _write(self.arrays[name], self.before[name])
        for name in self.options["outputs"]:
            _write(self.arrays[name], _wrong(self.before[name]))

    def _output(self, values: dict[str, int]) -> list[Any]:
        self._restore()
        returned = self._run(values)
        _synchronise()
        written = self._written()
        for name, before in self.before.items():
            if name not in written and not _same(_host(self.arrays[name]), before):
                text = f"it changed its input {name}: name it in `outputs`, or in `updates` if it also reads it"
                raise Failed("mismatch", text)
        output = [_host(self.arrays[name]) for name in written]
        output += [_host(one) for one in _arrays_in(returned)]
        if not output:
            raise Failed("launch", "it returned no output: return it, or name its argument in `outputs`")
        return output

    def _compare(self, output: list[Any], expected: list[Any], text: str) -> None:
        if len(output) != len(expected):
            raise Failed("mismatch", f"{text}it has {len(output)} arrays, not {len(expected)}")
        for place, (one, other) in enumerate(zip(output, expected, strict=True)):
            difference = _difference(one, other, self.options["tolerance"])
            if difference is not None:
                raise Failed("mismatch", f"{text}in array {place}, {difference}")


def _import_main(file: str) -> None:
    """Import the main program under another name, as multiprocessing does."""
    main = types.ModuleType("__gridguard_main__")
    sys.modules["__main__"] = sys.modules["__gridguard_main__"] = main
    main.__dict__.update(runpy.run_path(file, run_name="__gridguard_main__"))


def _arrays_in(returned: Any) -> list[Any]:
    if returned is None:
        return []
    if isinstance(returned, dict):
        returned = list(returned.values())
    if isinstance(returned, (list, tuple)):
        return [array for one in returned for array in _arrays_in(one)]
    return [returned]


def _host(value: Any) -> Any:
    """Return a copy as a NumPy array."""
    import numpy

    if hasattr(value, "copy_to_host"):  # Numba
        return value.copy_to_host()
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy().copy()
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):  # CuPy
        return value.get()
    if isinstance(value, (numpy.ndarray, numpy.generic, int, float, complex)):
        return numpy.array(value)
    raise Failed("launch", f"{type(value).__name__} is no array of NumPy, CuPy, Numba or PyTorch")


def _write(value: Any, host: Any) -> None:
    """Overwrite an array with one of NumPy."""
    if hasattr(value, "copy_to_device"):
        value.copy_to_device(host)
    elif hasattr(value, "detach"):
        import torch

        with torch.no_grad():
            value.copy_(torch.from_numpy(host))
    elif hasattr(value, "set") and hasattr(value, "__cuda_array_interface__"):
        value.set(host)
    else:
        value[...] = host


def _wrong(host: Any) -> Any:
    """Return an array of the same type with another value in each element."""
    import numpy

    if host.dtype.kind in "fc":
        return numpy.full_like(host, numpy.nan)
    return numpy.invert(host)


def _same(one: Any, other: Any) -> bool:
    return one.tobytes() == other.tobytes()


def _difference(output: Any, expected: Any, tolerance: float) -> str | None:
    """Return how an output differs from the expected one, relative to the element or to the mean magnitude."""
    import numpy

    if output.shape != expected.shape or (tolerance == 0 and output.dtype != expected.dtype):
        return f"{output.dtype} {list(output.shape)} is not {expected.dtype} {list(expected.shape)}"
    close = output == expected
    if tolerance > 0 and not close.all():
        wide = numpy.complex128 if expected.dtype.kind == "c" else numpy.float64
        with numpy.errstate(all="ignore"):
            apart = numpy.abs(output.astype(wide) - expected.astype(wide))
            magnitude = numpy.abs(expected.astype(wide))
            finite = magnitude[numpy.isfinite(magnitude)]
            mean = finite.mean() if finite.size else 0.0
            close |= apart <= tolerance * numpy.maximum(magnitude, mean)
    if close.all():
        return None
    place = tuple(int(index) for index in numpy.argwhere(~close)[0])
    return f"element {list(place)} is {output[place]}, not {expected[place]}; the tolerance is {tolerance}"


@functools.cache
def _driver() -> Any:
    """The driver, which libraries of the function have loaded."""
    return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def _synchronise() -> None:
    """Wait for the device, if the function has used one."""
    try:
        driver = _driver()
    except OSError:
        return
    code = driver.cuCtxSynchronize()
    # Success; the driver is not initialised; this thread has no context.
    if code not in (0, 3, 201):
        raise Failed("crash", f"cuCtxSynchronize returned {code}: the function broke the context")


def _requests(connection: socket.socket) -> Iterator[Any]:
    """Return the tuner's requests. This process ends with the tuner, also in the middle of a call."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            for line in connection.makefile("r", encoding="utf-8"):
                requests.put(json.loads(line))
        finally:
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)  # what the function started, too
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return iter(requests.get, None)


def _sendable(text: str) -> str:
    """Return the beginning of a text, as Unicode: names of files may be none."""
    return text[:_MAX_MESSAGE].encode(errors="replace").decode()


def main() -> None:
    """Answer the tuner's requests until it closes the connection."""
    os.environ["GRIDGUARD_MEASURES_FUNCTIONS"] = "1"
    with socket.socket(fileno=os.dup(0)) as connection, open(os.devnull, "r+") as nothing:
        os.dup2(nothing.fileno(), 0)

        def respond(number: int, message: Any) -> None:
            connection.sendall((json.dumps({"id": number, "message": message}) + "\n").encode())

        respond(0, {"Ok": _PROTOCOL})
        problem: Problem | None = None
        for request in _requests(connection):
            number, message = request["id"], request["message"]
            if message == "close":
                break
            try:
                ((name, body),) = message.items()
                result: Any = None
                if name == "open":
                    problem, result = Problem(body["problem"]), []
                elif problem is None:
                    raise Failed("launch", "no problem is open")
                else:
                    candidate = body["candidate"]
                    values = dict(candidate["parameters"])
                    if "chunk" in problem.default:
                        values["chunk"] = candidate["largest_chunk"]
                    if name == "check":
                        problem.check(values)
                    else:
                        result = {"time_ns": problem.sample(values), "clock_mhz": None}
                respond(number, {"Ok": result})
            except Failed as error:
                respond(number, {"Err": {"kind": error.kind, "message": _sendable(str(error))}})
            except Exception as error:
                text = f"it cannot be run: {type(error).__name__}: {error}"
                respond(number, {"Err": {"kind": "launch", "message": _sendable(text)}})


# The version of the tuner's protocol.
_PROTOCOL = 4
# Characters of a failure's message: a compiler may print megabytes.
_MAX_MESSAGE = 20_000

if __name__ == "__main__":
    main()
