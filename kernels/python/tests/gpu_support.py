"""What the checks on a GPU share: their command line, comparisons, times, threads and limits of memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gridguard.torch as ours

TYPES = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 2e-3}
# The length of a sample of launches back to back.
SAMPLE_US = 40_000


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of a script that takes the names of checks and a file for results."""
    cli = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--results", type=Path, help="write the results to this file")
    cli.add_argument("--skip", action="append", default=[], metavar="CHECK", help="run all checks but this one")
    cli.add_argument("checks", nargs="*", metavar="CHECK")
    return cli


def run_checks(
    checks: tuple[Callable[..., None], ...], arguments: tuple[Any, ...], options: Any, figures: dict[str, Any]
) -> int:
    """Run the chosen checks, write `figures` after each, and return the exit status."""
    figures["software"] = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, reader {ours.stats().reader}"
    print(figures)
    failed = {}
    names = [check.__name__ for check in checks]
    unknown = {*options.checks, *options.skip} - {*names}
    assert not unknown, f"no check {', '.join(unknown)}: there are {', '.join(names)}"
    chosen = {*(options.checks or names)} - {*options.skip}
    for check in [check for check in checks if check.__name__ in chosen]:
        begun = time.perf_counter()
        try:
            check(*arguments)
        except Exception:
            failed[check.__name__] = traceback.format_exc()
            print(f"FAILED {check.__name__}: {failed[check.__name__]}")
        figures[f"{check.__name__}, seconds"] = round(time.perf_counter() - begun, 1)
        print(f"{check.__name__}: {figures[f'{check.__name__}, seconds']} s", flush=True)
        if options.results:
            options.results.write_text(json.dumps({**figures, "failed": failed}, indent=1))
    print(ours.stats())
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with the number of each thread, each on a stream of its own."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                work(number)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not errors, errors[0]


@contextlib.contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let PyTorch allocate at most `more` bytes than it has reserved."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def profiles_in(place: str) -> Iterator[None]:
    """Keep profiles in a folder, or nowhere if `place` is "off", so that the user's are not read and not changed."""
    before, os.environ["GRIDGUARD_PROFILES"] = os.environ.get("GRIDGUARD_PROFILES"), place
    try:
        yield
    finally:
        del os.environ["GRIDGUARD_PROFILES"]
        os.environ.update({} if before is None else {"GRIDGUARD_PROFILES": before})


def peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of a call, and the bytes at its peak beside what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def show(row: dict[str, Any]) -> None:
    print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if value is not None), flush=True)


def device_us(function: Callable[..., Tensor], tensors: list[Tensor]) -> float:
    """Return the median time of launches between two events, with enough launches to hide the first one's latency."""
    samples = []
    calls = 3
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            function(*tensors)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / calls)
        calls = max(3, min(200, int(SAMPLE_US / samples[-1])))
    return round(statistics.median(samples[2:]), 2)


def host_us(function: Callable[..., Tensor], tensors: list[Tensor]) -> float:
    """Return the median host time of calls that the device keeps up with."""
    samples = []
    for _ in range(50):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(100):
            function(*tensors)
        samples.append((time.perf_counter() - begun) * 1e4)
    return round(statistics.median(samples), 2)


def qkv(*sizes: int, dtype: torch.dtype = torch.float16) -> list[Tensor]:
    return [torch.randn(*sizes, device="cuda", dtype=dtype) for _ in range(3)]


def close(found: Tensor, expected: Tensor, what: str, tolerance: float = 5e-3) -> None:
    error = (found.double() - expected.double()).abs().max().item()
    assert error <= tolerance * (1 + expected.abs().max().item()), f"{what}: off by {error:.3g}"
