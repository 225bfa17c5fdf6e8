"""Counts the calls of attention by the path that they took."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from gridguard import _launch

SERVED, BACKWARD, COPIED, ALIGNED = "served", "backward", "copied", "aligned"
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


def stats() -> Stats:
    """Return the number of calls on each path, and why PyTorch served them."""
    with _lock:
        counts = dict(_counts)
    served = counts.pop(SERVED, 0) + _launch.kernels.served
    backward, copied, aligned = (counts.pop(path, 0) for path in (BACKWARD, COPIED, ALIGNED))
    return Stats(served, backward, copied, counts, aligned, _launch.kernels.reader)


def count(path: str) -> None:
    """Count a call: a path above, or the reason why PyTorch served it. Log each reason once."""
    with _lock:
        _counts[path] = _counts.get(path, 0) + 1
        is_first = _counts[path] == 1
    if is_first and path not in (SERVED, BACKWARD):
        _log.info("%s (further calls are only counted)", _MESSAGES.get(path, f"left to PyTorch: {path}"))


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


_counts: dict[str, int] = {}
_lock = threading.Lock()
# In a forked process the thread that held the lock is gone.
os.register_at_fork(after_in_child=_renew_lock)
