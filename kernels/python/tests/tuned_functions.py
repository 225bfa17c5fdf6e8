"""Functions that the tests of `gridguard.tune` tune. A child process imports this file."""

import ctypes
import os
import sys
import time
from pathlib import Path

import gridguard

BLOCKS = [int(block) for block in os.environ.get("TUNED_BLOCKS", "16,4,64").split(",")]


def ran(block):
    """Note that a block ran, in the file that the test names."""
    if "TUNED_LOG" in os.environ:
        with Path(os.environ["TUNED_LOG"]).open("a") as log:
            log.write(f"{block}\n")


@gridguard.tune(chunk="auto", BLOCK=BLOCKS, outputs=["y"], where=lambda chunk, BLOCK: BLOCK <= 64)
def double(x, y, *, chunk, BLOCK):
    """Write 2 x to y; block 7 is wrong, and block 8 slow."""
    ran(BLOCK)
    for start in range(0, len(x), chunk):
        y[start : start + chunk] = 2 * x[start : start + chunk]
    if BLOCK == 7:
        y[-1] += 1
    if BLOCK == 8:
        time.sleep(0.05)


@gridguard.tune(BLOCK=[1, 2], tolerance=0.1)
def close(x, *, BLOCK):
    """Return x, or almost."""
    return {"sum": [x + 0.01 * BLOCK]}


@gridguard.tune(BLOCK=[1, 2], updates=["x"])
def add_one(x, *, BLOCK):
    """Add one in place."""
    x += 1


@gridguard.tune(BLOCK=[1, 2], reference=lambda x: x + 1)
def wrong(x, *, BLOCK):
    """Return another output than the reference."""
    return x + 2


@gridguard.tune(BLOCK=[0, 1], timeout=5)
def hanging(x, how, *, BLOCK):
    """Hang with block 1, or with both if `how` ends with an exclamation mark."""
    if BLOCK == 1 or how.endswith("!"):
        ctypes.PyDLL(None).sleep(1000)  # no other thread of Python runs
    return 2 * x


@gridguard.tune(BLOCK=[0, 1], timeout=600)
def hostile(x, how, *, BLOCK):
    """Do what `how` says with block 1, or with both if it ends with an exclamation mark."""
    if BLOCK == 1 or how.endswith("!"):
        match how.rstrip("!"):
            case "raises":
                raise ValueError("no such block")
            case "raises much":
                raise ValueError("a long text " * 100_000)
            case "raises bytes":
                raise ValueError(f"no file {os.fsdecode(bytes([255]))}")
            case "exits":
                sys.exit(7)
            case "exits at once":
                os._exit(0)
            case "tunes":
                close.tune(x)
            case "crashes":
                ctypes.string_at(0)
            case "forks":
                if os.fork() == 0:
                    time.sleep(0.1)
            case "prints":
                print('{"id": 3, "message": {"Ok": null}}\n' * 5000, flush=True)
                os.write(0, b"no\n")
            case "changes":
                x[0] = 7
            case "returns nothing":
                return None
            case "returns less":
                return x[1:]
            case "returns text":
                return "text"
    return 2 * x


@gridguard.tune(BLOCK=[1, 2, 3])
def halting(x, *, BLOCK):
    """Fail with block 2, and halt with block 3 if the test names a file for the number of the process."""
    ran(BLOCK)
    if BLOCK == 2:
        raise ValueError("no such block")
    if BLOCK == 3 and "TUNED_HALT" in os.environ:
        Path(os.environ["TUNED_HALT"]).write_text(f"{os.getpid()}\n")
        ctypes.PyDLL(None).sleep(1000)  # no other thread of Python runs
    return 2 * x
