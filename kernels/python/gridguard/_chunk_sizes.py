"""Finds sizes of chunks: within a budget of memory, or the fastest one, which is kept beside the user's profiles."""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd import profiler

from gridguard._native import GridguardError

Size = tuple[int, int]
"""The items of a chunk, and the number of streams."""

# Each trial of a budget has at most this many times the items of the last one.
_GROWTH = 8
# The last trial is this close to the budget: to 1/16.
_CLOSE = 16
# A smaller chunk is better if it is this much faster. None of its halves is tried if it is this much slower.
_FASTER, _SLOWER = 0.98, 1.5
_RUNS = 3
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


def fit(budget: int, items: int, peak: Callable[[int], int]) -> int:
    """Return the largest chunk within a budget of bytes, from the peaks of growing chunks."""
    # The first run allocates what later runs share, for example the workspace of cuBLAS.
    peak(1)
    size, used, step = 1, peak(1), 2
    if used > budget:
        raise ValueError(f"memory is {budget} bytes for a chunk, but one item needs {used}: pass at least {used}")
    while size < items:
        step = min(step, items)
        try:
            more = peak(step)
        except Exception as error:
            if not is_shortage(error):
                raise
            return size
        growth = max(more - used, 1) / (step - size)
        if more > budget:
            return size + int((budget - used) / growth)
        size, used = step, more
        largest = size + int((budget - used) / growth)
        if largest - size <= size // _CLOSE:
            return min(largest, items)
        step = min(largest, _GROWTH * size)
    return items


def fastest(largest: int, streams: int, run: Callable[[int, int], None], device: torch.device) -> Size:
    """Return the size and the number of streams with the shortest run, of `largest` and its halves."""
    found: dict[Size, float] = {}
    size, shortage = largest, ""
    while True:
        here = []
        for count in range(1, streams + 1):
            try:
                here.append(_seconds(lambda: run(size, count), device))
            except Exception as error:
                if not is_shortage(error):
                    raise
                # Not the error itself, whose traceback keeps tensors.
                shortage = str(error)
                continue
            if here[-1] < _FASTER * min(found.values(), default=math.inf):
                found = {(size, count): here[-1]}
        if size == 1 or (here and min(here) > _SLOWER * min(found.values())):
            break
        size = math.ceil(size / 2)
    if not found:
        raise GridguardError(f"no size of chunks has enough memory: {shortage}")
    return next(iter(found))


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    samples = []
    for _ in range(_RUNS + 1):
        begun = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples[1:])


def _path() -> Path | None:
    """Return the file of sizes in the folder of the user's profiles."""
    folder = os.environ.get("GRIDGUARD_PROFILES")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return None if folder == "off" else Path(folder or caches / "gridguard" / "profiles", "chunks.json")


def load() -> dict[str, Size]:
    """Return the sizes that were stored, by kind of call."""
    path = _path()
    try:
        entries = json.loads(path.read_text()) if path is not None and path.exists() else {}
        return {key: (max(int(size), 1), max(int(streams), 1)) for key, (size, streams) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logging.getLogger("gridguard").warning("sizes of chunks in %s are not used: %s", path, error)
        return {}


def store(key: str, found: Size) -> None:
    """Keep a size for later programs, unless `GRIDGUARD_PROFILES` is `off`."""
    path = _path()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Other programs read the old file or the new one.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({**load(), key: found}, file, indent=1)
        Path(file.name).replace(path)
