"""Counts the calls of attention by the path that they took."""

from __future__ import annotations

import html
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gridguard import _launch, _native

SERVED, BACKWARD, COPIED, ALIGNED = "served", "backward", "copied", "aligned"
SLOWER = "slower"
"""PyTorch's kernels take less time, or were not compared."""
_MESSAGES = {
    COPIED: "tensors are copied for their strides",
    ALIGNED: "tensors are copied for PyTorch, whose kernels need multiples of 16 bytes",
}
_log = logging.getLogger("gridguard")


@dataclass(frozen=True)
class Stats:
    """Calls since the program started, by path. Calls that compiled code leaves to PyTorch are not counted."""

    served: int
    """Calls that the kernels served."""
    backward: int
    """Backward passes that the kernels served."""
    copied: int
    """Served calls and backward passes that copied their tensors first, because the kernels cannot read the strides."""
    pytorch: dict[str, int]
    """Calls that PyTorch served, by reason. A backward pass has the reason `backward pass: REASON`."""
    aligned: int
    """Forward and backward passes of PyTorch that copied tensors to addresses and rows at multiples of 16 bytes."""
    reader: str
    """How tensors are read: `dlpack`, or `attributes` before PyTorch 2.10, which takes longer."""
    nearest: dict[str, str] = field(default_factory=dict)
    """For reasons of sizes and types: those of the first call that PyTorch served, and the nearest ones of kernels."""

    def __str__(self) -> str:
        rows = [(path, str(calls), note) for path, calls, note in self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{path:{widths[0]}}  {calls:>{widths[1]}}  {note}".rstrip() for path, calls, note in rows)

    def _repr_html_(self) -> str:
        lines = []
        for at, row in enumerate(self._rows()):
            kind = "td" if at else "th"
            lines.append("".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in row))
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

    def _rows(self) -> Iterator[tuple[str, int | str, str]]:
        yield "path", "calls", "first call, and the most that kernels take"
        yield "kernels", self.served, ""
        yield "kernels, backward pass", self.backward, ""
        yield "copied for their strides", self.copied, ""
        for reason, calls in sorted(self.pytorch.items(), key=lambda row: -row[1]):
            yield f"PyTorch: {reason}", calls, self.nearest.get(reason, "")
        yield "copied for PyTorch", self.aligned, ""


def stats() -> Stats:
    """Return the number of calls on each path, and why PyTorch served them."""
    with _lock:
        counts, nearest = dict(_counts), dict(_nearest)
    for path, native in zip((SERVED, BACKWARD, SLOWER, "dropout"), _launch.kernels.counts):
        if native:
            counts[path] = counts.get(path, 0) + native
    if SLOWER in counts:
        nearest[SLOWER] = "; ".join(_launch.kernels.notes)
    served, backward = (counts.pop(path, 0) for path in (SERVED, BACKWARD))
    copied, aligned = (counts.pop(path, 0) for path in (COPIED, ALIGNED))
    return Stats(served, backward, copied, counts, aligned, _launch.kernels.reader, nearest)


def count(path: str, call: Sequence[Tensor] = ()) -> None:
    """Count a call: a path above, or the reason why PyTorch served query, key and value. Log each reason once."""
    if _native.ignores_calls():
        return
    with _lock:
        _counts[path] = _counts.get(path, 0) + 1
        is_first = _counts[path] == 1
    if is_first and path not in (SERVED, BACKWARD):
        near = nearest(path, *call) if call else None
        if near is not None:
            _nearest[path] = near
        text = _MESSAGES.get(path, f"left to PyTorch: {path}") + (f": {near}" if near else "")
        _log.info("%s (further calls are only counted)", text)


def nearest(reason: str, query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Return the sizes or types of a refused call, and the nearest ones that kernels take, if they are the reason.

    A device, a type or a layout may allow less.
    """
    tensors = (query, key, value)
    if reason == "dtype":
        taken = query.dtype if query.dtype in _launch.DTYPES else " or ".join(map(str, _launch.DTYPES))
        return f"{', '.join(str(tensor.dtype) for tensor in tensors)}; {taken} for all"
    if reason not in ("length", "shape") or any(tensor.dim() < 2 for tensor in tensors):
        return None
    limits = (_native.MAX_LENGTH, _native.MAX_HEAD_DIM)
    most = [(*tensor.shape[:-2], *map(min, tensor.shape[-2:], limits)) for tensor in tensors]
    given, taken = (", ".join(str(tuple(size)) for size in sizes) for sizes in ([one.shape for one in tensors], most))
    return f"{given}; {taken}" if given != taken else None


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


_counts: dict[str, int] = {}
_nearest: dict[str, str] = {}
_lock = threading.Lock()
# In a forked process the thread that held the lock is gone.
os.register_at_fork(after_in_child=_renew_lock)
