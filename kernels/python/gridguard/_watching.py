"""The launches that the driver refuses in a part of a program that runs under `gridguard run`."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gridguard import _native


@dataclass(frozen=True)
class Frame:
    """A frame of the Python stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class RefusedLaunch:
    """Equal launches of one thread that the driver refused."""

    kernel: str
    """The kernel's name in the device code."""
    error: str
    """Name, code and meaning of the error."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    violations: tuple[str, ...]
    """The broken rules, each with value, limit and remedy."""
    times: int
    """How often it was refused."""
    thread: int
    """The thread, as `threading.get_native_id()` has it."""
    frames: tuple[Frame, ...]
    """The Python frames of the first one, the innermost first."""
    stack: tuple[str, ...]
    """Its native frames."""

    def __str__(self) -> str:
        place = f" at {self.frames[0]}" if self.frames else ""
        return f"{self.kernel}{place}: {'; '.join(self.violations) or self.error}"


@contextlib.contextmanager
def watching() -> Iterator[list[RefusedLaunch]]:
    """Collect the launches that the driver refuses in a block of code, for example for one request.

    The list is filled when the block ends::

        with gridguard.watching() as refused:
            output = model(batch)
            torch.cuda.synchronize()
        if refused:
            raise RuntimeError(f"stale output: {refused[0]}")

    The program must run under `gridguard run`; else UnavailableError is raised. Launches of all threads count, since
    PyTorch's backward pass has threads of its own: compare `thread` if requests run at the same time. At most 256
    different launches are kept.
    """
    library = ctypes.CDLL(None)
    try:
        begin, read, end = (getattr(library, f"gridguard_watch_{name}") for name in ("begin", "read", "end"))
    except AttributeError:
        message = "the launches of this program are not watched: start it with `gridguard run -- python3 ...`"
        raise _native.UnavailableError(message) from None
    begin.restype, begin.argtypes = ctypes.c_uint64, ()
    read.restype, read.argtypes = ctypes.c_size_t, (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)
    end.restype, end.argtypes = None, ()
    refused: list[RefusedLaunch] = []
    begun = begin()
    try:
        yield refused
    finally:
        refused += map(_refused, json.loads(_document(read, begun)))
        end()


def _document(read: Any, begun: int) -> bytes:
    """Read the document. Other threads may make it longer meanwhile."""
    size = 0
    while True:
        text = ctypes.create_string_buffer(size + 1)
        needed = read(begun, text, size + 1)
        if needed <= size:
            return text.value or b"[]"
        size = needed


def _refused(watched: dict[str, Any]) -> RefusedLaunch:
    launch = watched["launch"]
    request = launch["request"]
    return RefusedLaunch(
        kernel=launch["kernel"],
        error=launch["error"],
        grid=tuple(request["grid"]),
        block=tuple(request["block"]),
        dynamic_shared_bytes=request["dynamic_shared_bytes"],
        violations=tuple(launch["violations"]),
        times=watched["times"],
        thread=watched["thread"],
        frames=tuple(Frame(frame["file"], frame["line"], frame["function"]) for frame in launch["python"]),
        stack=tuple(launch["stack"]),
    )
