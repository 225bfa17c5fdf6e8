"""How many calls of attention took which path, and why."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from gridguard import _launch

_log = logging.getLogger("gridguard")


@dataclass(frozen=True)
class Stats:
    """How many calls since the program started took which path. Calls in compiled code are counted when they
    run, except those that PyTorch was chosen for when they were compiled."""

    served: int
    """Calls that the kernels served."""
    pytorch: dict[str, int]
    """Calls that PyTorch served, by reason."""
    reader: str
    """How tensors are read: `dlpack`, by PyTorch's C functions, or `attributes`, where it has none (before 2.10):
    then a call costs the host more."""


def stats() -> Stats:
    """How many calls took which path, and why."""
    with _counting:
        counts = dict(_counts)
    served = counts.pop(_SERVED, 0) + _launch.kernels.served
    return Stats(served, counts, _launch.kernels.reader)


_counts: dict[str, int] = {}
_counting = threading.Lock()


def _renew_lock() -> None:
    """In a forked process, where the thread that held the lock is gone."""
    global _counting
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def count(reason: str | None) -> None:
    """Counts a call that the kernels served, or PyTorch for a reason, which is logged once."""
    name = reason or _SERVED
    with _counting:
        count = _counts[name] = _counts.get(name, 0) + 1
    if count == 1 and reason is not None:
        _log.info("left to PyTorch: %s (further calls are only counted)", reason)


_SERVED = "served"
