"""Random calls of `gridguard.torch` on a GPU, in processes of their own: most calls compile a kernel, some of PyTorch's
kernels end the process, and a fault on the device ends a process's use of CUDA.

    python gpu_calls.py --seeds FIRST END STEP --seconds SECONDS
    python gpu_calls.py --alone SEED

`gpu.py` starts these. Each writes lines of JSON.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import logging
import subprocess
import sys
import time
from typing import Any

import torch
from calls import PYTORCH, compare, outcome, random_call

import gridguard.torch as ours

# Processes that may end at a call before a worker gives up.
MOST_ENDED = 30
# Of a call alone, of which most is for the imports.
ALONE_SECONDS = 120.0

# How a call was compared, besides the kinds of `compare`. PyTorch's own process ends at some masks and slices, and
# at the second call of a kind that failed once.
ALONE_RIGHT = "PyTorch ends the process, ours does not"
ALONE_PYTORCH = "PyTorch ends the process, also called by ours"
ALONE_BACKWARD = "PyTorch ends the process in its backward pass"


def check(calls: int, workers: int, seconds: float) -> tuple[list[str], collections.Counter, collections.Counter]:
    """The calls that are wrong, how many were compared in which way, and how many took which path."""
    wrong: list[str] = []
    kinds: collections.Counter[str] = collections.Counter()
    taken: collections.Counter[str] = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        end = time.monotonic() + seconds
        parts = [(first, calls, workers, end) for first in range(workers)]
        for some_wrong, some_kinds, some_taken in pool.map(lambda part: _in_processes(*part), parts):
            wrong += some_wrong
            kinds.update(some_kinds)
            taken.update(some_taken)
    return wrong, kinds, taken


def _in_processes(
    first: int, end: int, step: int, deadline: float
) -> tuple[list[str], collections.Counter, collections.Counter]:
    """As `check`. After a call that ends its process, that call runs alone, and the next process continues."""
    wrong: list[str] = []
    kinds: collections.Counter[str] = collections.Counter()
    taken: collections.Counter[str] = collections.Counter()

    def found(seed: int, kind: str, what: str | None, call: str) -> None:
        kinds[kind] += 1
        if what is not None:
            wrong.append(f"{seed}: {what}: {call}")
            # At once, in case that this check is ended.
            print(f"  WRONG {wrong[-1]}", flush=True)

    for _ in range(MOST_ENDED):
        seconds = max(0.0, deadline - time.monotonic())
        code, lines, errors = _child("--seeds", first, end, step, "--seconds", seconds, timeout=seconds + ALONE_SECONDS)
        for line in lines:
            if "kind" in line:
                found(line["seed"], line["kind"], line["wrong"], line["call"])
        taken.update(next((line["paths"] for line in reversed(lines) if "paths" in line), {}))
        if code == 0:
            return wrong, kinds, taken
        last = next((line for line in reversed(lines) if "stage" in line), None)
        if last is None:
            return [*wrong, f"exit {code} before the first call: {errors[-1500:]}"], kinds, taken
        seed, stage, call = last["seed"], last["stage"], last["call"]
        print(f"  exit {code} at {seed}, stage {stage}: {call}", flush=True)
        if stage == "PyTorch" or last["error"] is not None:
            found(seed, *_alone(seed, last["error"]), call)
        else:
            found(seed, f"exit {code}", errors[-1500:], call)
        first = seed + step
    return [*wrong, f"{MOST_ENDED} processes ended, the last at seed {first - step}"], kinds, taken


def _alone(seed: int, error: str | None) -> tuple[str, str | None]:
    """How a call was compared, and what is wrong with it, whose process PyTorch ended: by ours alone. `error` is the
    type of what PyTorch raised before."""
    code, lines, errors = _child("--alone", seed, timeout=ALONE_SECONDS)
    done = next((line for line in lines if "kind" in line), None)
    if done is None:
        if any("backward" in line for line in lines):
            return ALONE_BACKWARD, None
        if "left to PyTorch" in errors:
            return ALONE_PYTORCH, None
        return "alone", f"exit {code}: {errors[-1500:]}"
    if error is not None and done["error"] != error:
        return ALONE_RIGHT, f"{done['error']} instead of {error}"
    return ALONE_RIGHT, None if error is not None else done["wrong"]


def _child(*arguments: object, timeout: float) -> tuple[int, list[dict[str, Any]], str]:
    """The exit status, the lines and the errors of another process of this program."""
    command = [sys.executable, "-X", "faulthandler", __file__, *map(str, arguments)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout)
        code, out, errors = ran.returncode, ran.stdout, ran.stderr
    except subprocess.TimeoutExpired as error:
        out = error.stdout or b""
        out = out.decode(errors="replace") if isinstance(out, bytes) else out
        code, errors = -1, f"did not end in {timeout:.0f} s"
    # The last line may be cut.
    lines = [line for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    return code, [json.loads(line) for line in lines], errors


def _write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _seeds(seeds: range, seconds: float, device: str) -> None:
    """Writes each call before it runs, first by PyTorch alone, so that whoever reads it knows which one ended
    the process."""
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        call = random_call(seed, device)
        about = {"seed": seed, "call": str(call)}
        _write(**about, stage="PyTorch", error=None)
        theirs = outcome(call, PYTORCH)
        # A fault on the device shows here, and in every call after it.
        _synchronize(device)
        error = type(theirs).__name__ if isinstance(theirs, Exception) else None
        _write(**about, stage="ours", error=error)
        comparison = compare(call, ours.scaled_dot_product_attention, theirs)
        _synchronize(device)
        stats = ours.stats()
        _write(**about, kind=comparison.kind, wrong=comparison.wrong, paths={**stats.pytorch, "served": stats.served})


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

    # Says on stderr that PyTorch is called, before it is.
    logging.basicConfig(level=logging.INFO)
    comparison = compare(call, attention, None)
    _synchronize(device)
    _write(kind=comparison.kind, wrong=comparison.wrong, error=raised[0] if raised else None)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seeds", type=int, nargs=3)
    cli.add_argument("--seconds", type=float, default=ALONE_SECONDS)
    cli.add_argument("--alone", type=int)
    cli.add_argument("--device", default="cuda")
    options = cli.parse_args()
    if options.alone is not None:
        _one_alone(options.alone, options.device)
    else:
        _seeds(range(*options.seeds), options.seconds, options.device)


if __name__ == "__main__":
    main()
