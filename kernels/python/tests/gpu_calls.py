"""Random calls of `gridguard.torch` on a GPU, in processes that PyTorch's kernels or a fault on the device may end."""

# Each worker is a process that imports PyTorch but does not initialise CUDA. It forks the processes that make the
# calls. These write lines of JSON.

from __future__ import annotations

import concurrent.futures
import dataclasses
import faulthandler
import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections import Counter as Counts
from collections.abc import Callable
from typing import Any

import torch
from calls import NOT_ALIGNED, REFUSED_LAYOUTS, Call, compare, random_call, reference

import gridguard.torch as ours
from gridguard import _launch, _native

# All kernels are checked, also those that take longer than PyTorch's.
_launch.kernels = _native.Attention(torch, compares=False)
# A worker gives up after this number of ended processes.
MOST_ENDED = 30
ALONE_SECONDS = 120.0

# More kinds of comparison than `compare` has. PyTorch ends the process at some masks and slices, and at the second
# call of a kind that failed once.
ALONE_RIGHT = "PyTorch ends the process, ours does not"
ALONE_PYTORCH = "PyTorch ends the process, also called by ours"
ALONE_BACKWARD = "PyTorch ends the process in its backward pass"


@dataclasses.dataclass
class Found:

    wrong: list[str] = dataclasses.field(default_factory=list)
    kinds: Counts = dataclasses.field(default_factory=Counts)
    labels: Counts = dataclasses.field(default_factory=Counts)
    """The number of calls by mode, and of unaligned ones, without those that ended their process."""
    paths: Counts = dataclasses.field(default_factory=Counts)
    seconds: float = 0.0
    """The time of the slowest worker, without its imports."""


def check(
    calls: int, workers: int, seconds: float, device: str = "cuda", initializer: Callable[[], None] | None = None
) -> Found:
    """Compare random calls, fewer if a worker needs more than `seconds`. Each worker calls `initializer` first."""
    found = Found()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, initializer) as pool:
        parts = [pool.submit(_in_processes, range(first, calls, workers), seconds, device) for first in range(workers)]
        for part in concurrent.futures.as_completed(parts):
            some = part.result()
            found.wrong += some.wrong
            found.kinds.update(some.kinds)
            found.labels.update(some.labels)
            found.paths.update(some.paths)
            found.seconds = max(found.seconds, some.seconds)
    return found


def _in_processes(seeds: range, seconds: float, device: str) -> Found:
    """Compare calls in processes. A call that ends its process is repeated alone, and another process continues."""
    found = Found()
    begun = time.monotonic()
    deadline = begun + seconds

    def add(seed: int, kind: str, what: str | None, call: str) -> None:
        found.kinds[kind] += 1
        if what is not None:
            found.wrong.append(f"{seed}: {what}: {call}")
            # Flushed, in case this check is killed.
            print(f"  WRONG {found.wrong[-1]}", flush=True)

    for _ in range(MOST_ENDED):
        timeout = max(0.0, deadline - time.monotonic()) + ALONE_SECONDS
        code, lines, errors = _child(_seeds, seeds, deadline, device, timeout=timeout)
        for line in lines:
            if "kind" in line:
                add(line["seed"], line["kind"], line["wrong"], line["call"])
                found.labels.update(line["labels"])
        found.paths.update(next((line["paths"] for line in reversed(lines) if "paths" in line), {}))
        found.seconds = time.monotonic() - begun
        if code == 0:
            return found
        last = next((line for line in reversed(lines) if "stage" in line), None)
        if last is None:
            found.wrong.append(f"exit {code} before the first call: {errors[-1500:]}")
            return found
        seed, stage, call = last["seed"], last["stage"], last["call"]
        print(f"  exit {code} at {seed}, stage {stage}: {call}", flush=True)
        if stage == "PyTorch" or last["error"] is not None:
            add(seed, *_alone(seed, last["error"], device), call)
        else:
            add(seed, f"exit {code}", errors[-1500:], call)
        seeds = seeds[seeds.index(seed) + 1 :]
    found.wrong.append(f"{MOST_ENDED} processes ended, and {len(seeds)} calls are left")
    return found


def _alone(seed: int, error: str | None, device: str) -> tuple[str, str | None]:
    """Compare a call that ended its process, by ours alone. `error` is the type that PyTorch raised, if any."""
    code, lines, errors = _child(_one_alone, seed, device, timeout=ALONE_SECONDS)
    done = next((line for line in lines if "kind" in line), None)
    if done is None:
        if any("backward" in line for line in lines):
            return ALONE_BACKWARD, None
        if "left to PyTorch" in errors:
            return ALONE_PYTORCH, None
        return "alone", f"exit {code}: {errors[-1500:]}"
    if error is None or (done["error"] is None and (done["compiled"] or any(text in error for text in REFUSED_LAYOUTS))):
        return ALONE_RIGHT, done["wrong"]
    return ALONE_RIGHT, None if error.startswith(f"{done['error']}(") else f"{done['error']} instead of {error}"


def _child(
    function: Callable[..., None], *arguments: object, timeout: float
) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit status, the lines and the errors of a forked process that calls a function."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        target = (out.fileno(), err.fileno(), function, *arguments)
        process = multiprocessing.get_context("fork").Process(target=_redirected, args=target)
        process.start()
        process.join(timeout)
        in_time = process.exitcode is not None
        process.kill()
        process.join()
        code = process.exitcode if in_time else -1
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        written, errors = texts
    if not in_time:
        errors = f"did not end in {timeout:.0f} s"
    # The last line may be incomplete.
    lines = [line for line in written.splitlines() if line.startswith("{") and line.endswith("}")]
    return code, [json.loads(line) for line in lines], errors


def _redirected(out: int, errors: int, function: Callable[..., None], *arguments: object) -> None:
    os.dup2(out, 1)
    os.dup2(errors, 2)
    faulthandler.enable()
    function(*arguments)


def _write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _seeds(seeds: range, deadline: float, device: str) -> None:
    """Compare calls, PyTorch first, and write each one before it runs: the last line names the call that ended this."""
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        call = random_call(seed, device)
        about = {"seed": seed, "call": str(call)}
        _write(**about, stage="PyTorch", error=None)
        theirs = reference(call)
        # A fault on the device is reported here and by every later call.
        _synchronize(device)
        error = repr(theirs) if isinstance(theirs, Exception) else None
        _write(**about, stage="ours", error=error)
        comparison = compare(call, ours.scaled_dot_product_attention, theirs)
        _synchronize(device)
        stats = ours.stats()
        own = {path: getattr(stats, path) for path in ("served", "backward", "copied", "aligned")}
        paths = {**stats.pytorch, **own}
        _write(**about, kind=comparison.kind, wrong=comparison.wrong, labels=labels(call), paths=paths)


def labels(call: Call) -> list[str]:
    return [call.mode, *([] if call.is_aligned() else [NOT_ALIGNED])]


def _one_alone(seed: int, device: str) -> None:
    call = random_call(seed, device)
    raised: list[str] = []

    def attention(*arguments: Any, **options: Any) -> torch.Tensor:
        try:
            out = ours.scaled_dot_product_attention(*arguments, **options)
        except Exception as error:
            raised.append(type(error).__name__)
            raise
        _synchronize(device)
        _write(backward=True)
        return out

    # Announces a call of PyTorch on stderr.
    logging.basicConfig(level=logging.INFO)
    comparison = compare(call, attention, None)
    _synchronize(device)
    error = raised[0] if raised else None
    _write(kind=comparison.kind, wrong=comparison.wrong, error=error, compiled=call.mode.startswith("compiled"))


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
