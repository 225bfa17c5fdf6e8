"""How tuned profiles choose this program's launches, and tuning of the shapes without an entry."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridguard import _arguments, _native
from gridguard._command import find_command


@dataclass(frozen=True)
class Choice:
    """How the launch of one shape of attention or its gradients was chosen."""

    device: int
    """The device ordinal."""
    shape: tuple[int, ...]
    """Items, heads, frames and head dimension of the launch."""
    dtype: str
    """`f16`, `bf16` or `f32`."""
    variant: str
    """The kernel's variant and options. That of gradients begins with `backward`."""
    matched: str
    """`exact`, `row N of the decision list`, `bucket` (the same powers of two), `neighbour at N octaves`, or `default` with the reason."""
    rejected: str | None
    """Why the matching entry was not used; the launch is then the default."""


@dataclass(frozen=True)
class Profile:
    """The profiles loaded for one device: the user's, then the built-in one."""

    device: int
    """The device ordinal."""
    path: Path | None
    """The file of the user's profile, even if it does not exist; None if `GRIDGUARD_PROFILES` is `off`."""
    entries: int
    """The number of entries in both."""
    notices: tuple[str, ...]
    """Entries that are not used or may be stale."""


@dataclass(frozen=True)
class Tuning:
    """How profiles chose this program's launches so far."""

    profiles: tuple[Profile, ...]
    choices: tuple[Choice, ...]
    """One for each shape that the kernels served, the last used first, and then one for each of their gradients."""
    misses: int
    """The number of shapes without an exact entry, which `tune` measures."""


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`."""

    profiles: tuple[Path, ...]
    """The files that it wrote."""
    tuned: int
    """Shapes that were measured."""
    known: int
    """Shapes that already had an entry in these files."""
    left: int
    """Shapes that were not measured within the time limit."""
    failures: tuple[str, ...]
    """Why shapes could not be tuned."""


def tuning() -> Tuning:
    """Return how profiles chose this program's launches so far, on each device with a served call."""
    choices = [Choice(device, tuple(sizes), *rest) for device, sizes, *rest in _native.choices()]
    profiles = [Profile(*rest, tuple(notices)) for *rest, notices in _native.profiles()]
    return Tuning(tuple(profiles), tuple(choices), _native.misses())


def compare_profiles(group: Any = None, *, action: str = "raise") -> str:
    """Check that all ranks of a job choose alike, and return the digest of this rank's choices.

    Call it on every rank of `group` at the start, after `torch.distributed.init_process_group`. Ranks with other
    profiles may run kernels with other numerics. If a digest differs, it raises GridguardError, or warns with
    `action="warn"`. The message names the ranks.
    """
    if action not in ("raise", "warn"):
        raise ValueError(f'action is {action!r}: pass "raise" or "warn"')
    import torch
    from torch import distributed

    own = _native.profile_digest(torch.cuda.current_device() if torch.cuda.is_available() else None)
    digests: list[Any] = [own]
    if distributed.is_available() and distributed.is_initialized():
        digests *= distributed.get_world_size(group)
        distributed.all_gather_object(digests, own, group)
    try:
        _native.compare_digests(digests)
    except _native.GridguardError as error:
        if action == "raise":
            raise
        warnings.warn(str(error), stacklevel=2)
    return own


def tune(
    command: str = "gridguard", *, device: _arguments.Number | None = None, time_limit: float | None = None
) -> Tuned:
    """Measure the shapes without an exact entry, and write them to the user's profile, which later calls use.

    Call it after one call of each shape, when the device is idle. It runs the command `gridguard tune` of the
    wheel, or else of PATH, on `device`, by default PyTorch's current one. After `time_limit` seconds it starts no
    further shape. Launches in captured CUDA graphs do not change.

    Raises GridguardError if the command is missing or fails; the error names the file with the shapes. Raises TypeError
    or ValueError if the device is no ordinal or the time is not positive.
    """
    device = None if device is None else _arguments.whole("device", device)
    time_limit = None if time_limit is None else _arguments.seconds("time_limit", time_limit)
    if _native.misses() == 0:
        return Tuned((), 0, 0, 0, ())
    program = find_command(command)
    if device is None:
        import torch

        device = torch.cuda.current_device()
    folder = Path(tempfile.mkdtemp(prefix="gridguard-"))
    shapes = folder / "misses.ron"
    _native.write_misses(shapes)
    arguments = [program, "tune", "--shapes", str(shapes), "--device", str(device)]
    for kernel in ("temporal_attention", "attention_backward"):
        arguments += ["--kernel", kernel]
    if time_limit is not None:
        arguments += ["--budget", f"{max(1, round(time_limit))}s"]
    try:
        # The command reports its progress on this program's standard error.
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
    summary: dict[str, Any] = json.loads(text)
    failures = tuple(f"{one['problem']}: {one['error']}" for one in summary["tuned"] if "error" in one)
    return Tuned(
        profiles=tuple(map(Path, summary["profiles"])),
        tuned=len(summary["tuned"]) - len(failures),
        known=summary["known"],
        left=summary["left"],
        failures=failures,
    )
