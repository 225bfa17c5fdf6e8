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
    copied: int
    """Of these, calls whose tensors were copied first, for the kernels cannot read their strides."""
    pytorch: dict[str, int]
    """Calls that PyTorch served, by reason."""
    aligned: int
    """Forward and backward passes of PyTorch whose tensors were copied first, for some did not begin, or have rows, at
    multiples of 16 bytes."""
    reader: str
    """How tensors are read: `dlpack`, by PyTorch's C functions, or `attributes`, where it has none (before 2.10):
    then a call costs the host more."""


def stats() -> Stats:
    """How many calls took which path, and why."""
    with _counting:
        counts = dict(_counts)
    served = counts.pop(_SERVED, 0) + _launch.kernels.served
    aligned = counts.pop(_ALIGNED, 0)
    return Stats(served, counts.pop(_COPIED, 0), counts, aligned, _launch.kernels.reader)


_counts: dict[str, int] = {}
_counting = threading.Lock()


def _renew_lock() -> None:
    """In a forked process, where the thread that held the lock is gone."""
    global _counting
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def count(reason: str | None) -> None:
    """Counts a call that the kernels served, or PyTorch for a reason, which is logged once."""
    if _add(reason or _SERVED) == 1 and reason is not None:
        _log.info("left to PyTorch: %s (further calls are only counted)", reason)


def count_copied() -> None:
    """Counts a call whose tensors were copied, which is logged once."""
    if _add(_COPIED) == 1:
        _log.info("tensors are copied for their strides (further calls are only counted)")


def count_aligned() -> None:
    """Counts a pass of PyTorch whose tensors were copied, which is logged once."""
    if _add(_ALIGNED) == 1:
        _log.info("tensors are copied for PyTorch, whose kernels need multiples of 16 bytes (further ones are only counted)")


def _add(name: str) -> int:
    """Counts a call by a name, and returns how many there are."""
    with _counting:
        count = _counts[name] = _counts.get(name, 0) + 1
    return count


_SERVED = "served"
_COPIED = "copied"
_ALIGNED = "aligned"
