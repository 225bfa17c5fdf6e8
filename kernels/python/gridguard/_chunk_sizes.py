"""Finds sizes of chunks within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import profiler

from gridguard._native import GridguardError

# Each trial of a budget has at most this many times the items of the last one.
_GROWTH = 8
# The last trial is this close to the budget: to 1/16.
_CLOSE = 16
# Messages of allocators, and of launches that exceed a grid.
_SHORTAGES = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "invalid configuration argument",
    "CUDA error: invalid argument",
)


def is_shortage(error: Exception) -> bool:
    """Tell whether a chunk failed because it is too large for the memory or the grid of a launch."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SHORTAGES)


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Return the most memory that PyTorch allocates during a run. On a GPU this resets the peak statistics."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    if profiler._is_profiler_enabled:
        raise GridguardError("memory of the CPU cannot be measured in a profile: call once before it")
    with profiler.profile(profile_memory=True) as profile:
        run()
    live = peak = 0
    for event in profile.kineto_results.events():
        live += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, live)
    return peak


class Trial:
    """Finds the largest chunk within a budget of bytes, from the peaks of the first chunks of a batch."""

    def __init__(self, budget: int) -> None:
        self._budget, self._size, self._used = budget, 0, 0
        # The first chunk allocates what later ones share, for example the workspace of cuBLAS.
        self.is_warm = False
        self.next = 1
        """The size of the next chunk."""

    def add(self, size: int, peak: int) -> int | None:
        """Take the peak of a chunk, and return the size of all others as soon as it is known."""
        if not self.is_warm:
            self.is_warm = True
            return None
        if size <= self._size:
            return None
        if size == 1 and peak > self._budget:
            raise ValueError(
                f"memory is {self._budget} bytes for a chunk, but one item needs {peak}: pass at least {peak}"
            )
        growth = max(peak - self._used, 1) / (size - self._size)
        if peak > self._budget:
            return max(self._size + int((self._budget - self._used) / growth), 1)
        self._size, self._used = size, peak
        if size == 1:
            self.next = 2
            return None
        largest = size + int((self._budget - peak) / growth)
        # Graphs of these chunks stay until the backward pass, so the last one is far below the budget.
        if largest - size <= size // _CLOSE or peak >= self._budget // _GROWTH:
            return largest
        self.next = min(largest, _GROWTH * size)
        return None

    def fail(self) -> int:
        """Return the size after a chunk for which memory was too short."""
        return max(self._size, 1)
