"""What tuned profiles say about this program's calls, and tuning of the shapes that they lack."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridguard import _arguments, _native

_KERNEL = "temporal_attention"


@dataclass(frozen=True)
class Choice:
    """How the launches of one shape of attention were chosen."""

    device: int
    """The device's ordinal."""
    shape: tuple[int, ...]
    """Items, heads, frames and head dimension, as the kernels see the call."""
    dtype: str
    """`f16`, `bf16` or `f32`."""
    variant: str
    """The kernel's variant and options."""
    matched: str
    """How an entry of the profiles matches: `exact`, `bucket` for the same powers of two, `neighbour at N octaves`,
    or `default` and why none does."""
    refused: str | None
    """Why the entry that matches was not used: then the launch is the default."""


@dataclass(frozen=True)
class Profile:
    """What is loaded for one device: the user's profile, then the built-in one."""

    device: int
    """The device's ordinal."""
    path: Path | None
    """The file of the user's profile, whether it exists or not; None if `GRIDGUARD_PROFILES` is `off`."""
    entries: int
    """Of both."""
    notices: tuple[str, ...]
    """What of the profiles is not used, or may be stale."""


@dataclass(frozen=True)
class Tuning:
    """What tuned profiles say about this program's calls so far."""

    profiles: tuple[Profile, ...]
    choices: tuple[Choice, ...]
    """Of each shape that the kernels served, the last used first."""
    misses: int
    """Shapes without an exact entry, which `tune` measures."""


@dataclass(frozen=True)
class Tuned:
    """What `tune` did."""

    profiles: tuple[Path, ...]
    """The files that it wrote to."""
    tuned: int
    """Shapes that were measured."""
    known: int
    """Shapes that these files had an entry for already."""
    left: int
    """Shapes that were not measured in time."""
    failures: tuple[str, ...]
    """Why shapes could not be tuned."""


def tuning() -> Tuning:
    """What tuned profiles say about this program's calls so far.

    A device is in it from its first served call on.
    """
    choices = [Choice(device, tuple(sizes), *rest) for device, sizes, *rest in _native.choices()]
    profiles = [Profile(*rest, tuple(notices)) for *rest, notices in _native.profiles()]
    return Tuning(tuple(profiles), tuple(choices), _native.misses())


def tune(
    command: str = "gridguard", *, device: _arguments.Number | None = None, time_limit: float | None = None
) -> Tuned:
    """Measures the fastest launches for the shapes of attention that this program called and the profiles lack, and
    writes them to the user's profile, which its later calls, and those of other programs, use.

    Call it when the device is otherwise idle, after calls of each shape: it runs the command `gridguard tune`, which
    is installed apart, in a process of its own, on `device`, by default the current one. It takes minutes; beyond
    `time_limit` seconds it begins no more shapes. Launches in CUDA graphs stay as they were captured.

    Raises GridguardError where the command is missing or fails; the shapes are then in the file that the error names.
    Raises TypeError or ValueError for a device that is no ordinal, or a time that is not positive.
    """
    device = None if device is None else _arguments.whole("device", device)
    time_limit = None if time_limit is None else _arguments.seconds("time_limit", time_limit)
    if _native.misses() == 0:
        return Tuned((), 0, 0, 0, ())
    program = shutil.which(command)
    if program is None:
        raise _native.GridguardError(f"no command {command}: cargo install gridguard-cli")
    if device is None:
        import torch

        device = torch.cuda.current_device()
    folder = Path(tempfile.mkdtemp(prefix="gridguard-"))
    shapes = folder / "misses.ron"
    _native.write_misses(shapes)
    arguments = [program, "tune", "--kernel", _KERNEL, "--shapes", str(shapes), "--device", str(device)]
    if time_limit is not None:
        arguments += ["--budget", f"{max(1, round(time_limit))}s"]
    try:
        # Its progress goes to this program's standard error.
        ran = subprocess.run([*arguments, "--format", "json"], stdout=subprocess.PIPE, text=True, check=False)
        tuned = _read(ran.stdout)
    except (OSError, ValueError, LookupError, TypeError) as error:
        text = f"{program} tune failed, the shapes are in {shapes}: {error}"
        raise _native.GridguardError(text) from error
    if not tuned.left and not tuned.failures:
        shutil.rmtree(folder, ignore_errors=True)
    _native.reload_profiles()
    return tuned


def _read(text: str) -> Tuned:
    """The summary of the command."""
    summary: dict[str, Any] = json.loads(text)
    failures = tuple(f"{one['problem']}: {one['error']}" for one in summary["tuned"] if "error" in one)
    return Tuned(
        profiles=tuple(map(Path, summary["profiles"])),
        tuned=len(summary["tuned"]) - len(failures),
        known=summary["known"],
        left=summary["left"],
        failures=failures,
    )
