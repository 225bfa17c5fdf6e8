"""The process that runs a function for `gridguard.tune`. The tuner starts this file."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import spawn
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
        spawn.prepare(stored["preparation"])
        __import__(stored["module"])
        tunable = functools.reduce(getattr, stored["name"].split("."), sys.modules[stored["module"]])
        self.function, self.reference, self.options = tunable.function, tunable.reference, tunable.options
        if tunable._source.digest() != stored["source"]:
            text = "code or globals that it names are not what a new process imports: restart the program, or set them"
            raise Failed("launch", f"{text} where they are imported")
        self.args, self.kwargs = pickle.loads(stored["arguments"])
        self.default, self.signature = stored["default"], tunable._signature
        bound = self.signature.bind_partial(*self.args, **self.kwargs).arguments
        self.arrays = {name: value for name, value in bound.items() if hasattr(value, "shape")}
        self.before = {name: _host(value) for name, value in self.arrays.items()}
        missing = [name for name in self._written() if name not in self.arrays]
        if missing:
            raise Failed("launch", f"{missing[0]} is no array: outputs and updates name arrays")
        self.expected: list[Any] | None = None
        self.wrong = {name: _wrong(self.before[name]) for name in self.options["outputs"]}
        self.repeats: dict[Any, int] = {}
        self.forks: list[bool] = []
        os.register_at_fork(after_in_parent=lambda: self.forks.append(True))

    def _written(self) -> list[str]:
        return self.options["outputs"] + self.options["updates"]

    def check(self, values: dict[str, int]) -> None:
        """Compare the output of a candidate with the reference."""
        if self.expected is None:
            first = self._output(self.default)
            # An element that the default does not write differs in its second run.
            self.wrong = {name: _wrong(output) for name, output in zip(self.options["outputs"], first)}
            second = self._output(self.default)
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
        self._run(values)
        synchronise = _synchronise()
        if place not in self.repeats:
            once = self._time(values, 1, synchronise)
            self.repeats[place] = max(1, min(1000, int(200_000 / once)))
        return self._time(values, self.repeats[place], synchronise)

    def _time(self, values: dict[str, int], repeats: int, synchronise: Callable[[], Any] | None) -> float:
        """Time calls of the function and, if it has used a device, the wait for its work."""
        function, args, kwargs = self.function, self.args, {**self.kwargs, **values}

        def timed() -> float:
            rounds = range(repeats)
            begun = time.perf_counter_ns()
            for _ in rounds:
                function(*args, **kwargs)
            if synchronise is not None:
                synchronise()
            return max(1.0, (time.perf_counter_ns() - begun) / repeats)

        time_ns: float = self._guarded(timed)
        _synchronise()
        return time_ns

    def _run(self, values: dict[str, int]) -> Any:
        return self._guarded(lambda: self.function(*self.args, **{**self.kwargs, **values}))

    def _guarded(self, run: Callable[[], Any]) -> Any:
        process = os.getpid()
        try:
            returned = run()
        except BaseException as error:
            if os.getpid() == process:
                _synchronise()
                # Without the lines of this file.
                trace = "".join(traceback.format_tb(error.__traceback__)[2:])
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
            _write(self.arrays[name], self.wrong[name])

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
        return numpy.where(numpy.isnan(host), numpy.zeros_like(host), numpy.full_like(host, numpy.nan))
    return numpy.invert(host)


def _same(one: Any, other: Any) -> bool:
    return one.tobytes() == other.tobytes()


def _difference(output: Any, expected: Any, tolerance: float) -> str | None:
    """Return how an output differs from the expected one, relative to the element or to the mean magnitude."""
    import numpy

    if output.shape != expected.shape or (tolerance == 0 and output.dtype != expected.dtype):
        return f"{output.dtype} {list(output.shape)} is not {expected.dtype} {list(expected.shape)}"
    close = (output == expected) | ((output != output) & (expected != expected))
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


def _synchronise() -> Callable[[], Any] | None:
    """Wait for the device if the function has used one, and return the driver's function that waits."""
    try:
        # Libraries of the function have loaded it.
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    code = driver.cuCtxSynchronize()
    # The driver is not initialised; this thread has no context.
    if code in (3, 201):
        return None
    if code != 0:
        raise Failed("crash", f"cuCtxSynchronize returned {code}: the function broke the context")
    synchronise: Callable[[], Any] = driver.cuCtxSynchronize
    return synchronise


def _end_with(connection: socket.socket) -> None:
    """End this process with the tuner, and all that it has started, even in the middle of a call that never returns."""
    process = os.getpid()
    if os.fork() != 0:
        return
    # The tuner must notice that this process closes the connection.
    connection.close()
    os.closerange(0, 2)
    # The tuner reads the standard error.
    tuner = select.poll()
    tuner.register(2, select.POLLERR)
    tuner.poll()
    if os.getpgrp() == process:
        os.killpg(0, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    os._exit(1)


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

        _end_with(connection)
        respond(0, {"Ok": _PROTOCOL})
        problem: Problem | None = None
        for line in connection.makefile("r", encoding="utf-8"):
            request = json.loads(line)
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
