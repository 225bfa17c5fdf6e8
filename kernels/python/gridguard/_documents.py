"""Launch checks, explanations of failures and limits, as Python objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from gridguard import _native
from gridguard._arguments import Bytes, Number, seconds, size_in_bytes, whole
from gridguard._command import find_command

Size = Number | Sequence[Number]
"""One to three numbers along x, y and z; missing ones are 1."""

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceLimits:
    """The limits and resources of a device."""

    name: str
    compute_capability: tuple[int, int]
    max_grid: tuple[int, int, int]
    max_block: tuple[int, int, int]
    max_threads_per_block: int
    warp_size: int
    max_registers_per_block: int
    register_allocation_unit: int
    warp_allocation_granularity: int
    max_shared_bytes_per_block: int
    max_shared_bytes_per_block_opt_in: int
    reserved_shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    multiprocessors: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int
    cooperative_launch: bool
    cluster_launch: bool
    max_portable_cluster_blocks: int
    max_parameter_bytes: int


@dataclass(frozen=True)
class Violation:
    """A rule that a launch violates."""

    rule: str
    """The rule's stable id, for example `grid-dim-y`."""
    requested: int
    limit: int | None
    unit: str | None
    message: str


@dataclass(frozen=True)
class Launch:
    """One launch of a plan: its first item, its number of items, and its grid."""

    start: int
    items: int
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """How to launch: as a whole or in chunks."""

    strategy: str
    listed: tuple[Launch, ...]
    """The launches, or the first 4,096 of more."""
    omitted_launches: int = 0
    """The number of launches that are not listed."""

    def __len__(self) -> int:
        return len(self.listed) + self.omitted_launches

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches. Raises GridguardError if only the first ones are listed."""
        if self.omitted_launches:
            raise _native.GridguardError(
                f"the plan has {len(self)} launches, of which {len(self.listed)} are listed: split the batch before"
            )
        return self.listed


@dataclass(frozen=True)
class Verdict:
    """Whether a launch is legal. True unless it is rejected."""

    legality: Literal["legal", "chunked", "rejected"]
    opts_in: bool
    """Whether the kernel must opt in to more dynamic shared memory than the default limit."""
    violations: tuple[Violation, ...]
    """The rules that the unsplit launch violates; if rejected, also why it cannot be split."""
    plan: Plan | None

    def __bool__(self) -> bool:
        return self.legality != "rejected"


@dataclass(frozen=True)
class Batch:
    """The axis of the grid along which items are independent, so that the launch may be split."""

    axis: Literal["x", "y", "z"]
    items: int
    blocks_per_item: int = 1


@dataclass(frozen=True)
class Cause:
    """A possible cause of a failure, and its remedy."""

    id: str
    cause: str
    remedy: str
    fault: str


@dataclass(frozen=True)
class Line:
    """A line of a log; number 0 is a remark that is not in it."""

    line: int
    text: str


@dataclass(frozen=True)
class Consequence:
    """A failure that another one explains."""

    id: str
    title: str
    line: int
    text: str


@dataclass(frozen=True)
class Failure:
    """A failure in a text, and its cause."""

    id: str
    """The stable id of the cause."""
    title: str
    code: int | None
    owner: str
    platform: str
    confidence: str
    """constraint, reason, call and status name the cause; after generic and word, the text does not say."""
    fault: str
    """launch, program, environment, hardware, another-process or unknown."""
    memory: str | None
    """The memory that ran out: device, pinned, host, address-space, pool, shared or shared-memory-file."""
    is_sticky: bool
    """Whether every later CUDA call of the process fails."""
    is_late: bool
    """Whether a later, unrelated call may have reported it."""
    cause: str
    remedy: str
    may: tuple[Cause, ...]
    """The possible causes, if the text does not say."""
    command: str | None
    evidence: tuple[Line, ...]
    times: int
    captures: dict[str, str]
    consequences: tuple[Consequence, ...]
    source: str


@dataclass(frozen=True)
class Explanation:
    """The failures in a text, the deciding one first. False if there are none; `str` is the text for people."""

    platform: str
    lines: int
    failures: tuple[Failure, ...]
    report: str
    assumed: str | None
    """The failure that was assumed, if the text is only part of its name or message."""

    def __bool__(self) -> bool:
        return bool(self.failures)

    def __str__(self) -> str:
        return self.report if self.failures else "no failure recognized\n"


@dataclass(frozen=True)
class Problem:
    """A finding about the driver, a device, a library or a profile."""

    subject: str
    level: Literal["good", "warning", "unknown", "bad"]
    what: str
    remedy: str | None = None


@dataclass(frozen=True)
class Report:
    """Whether this machine can run CUDA. True if nothing is bad or unknown."""

    findings: tuple[Problem, ...]

    def __bool__(self) -> bool:
        return all(one.level in ("good", "warning") for one in self.findings)


def limits(gpu: str | None = None, *, device: Number | None = None) -> DeviceLimits:
    """Return the limits of a GPU in the catalogue, or of a device of this machine by ordinal.

    `gpu` is a name or alias, for example `h200` or `sm_86`; by default `any`. Raises ValueError for an unknown name,
    and GridguardError if there is no such device.
    """
    return _built(DeviceLimits, json.loads(_native.limits(_name(gpu), _ordinal(device))))


def gpus() -> list[DeviceLimits]:
    """Return the limits of all GPUs in the catalogue."""
    return [_built(DeviceLimits, one) for one in json.loads(_native.gpus())]


def check(
    grid: Size,
    block: Size,
    *,
    gpu: str | None = None,
    device: Number | None = None,
    batch: Batch | None = None,
    dynamic_shared_bytes: Bytes = 0,
    cluster: Size | None = None,
    cooperative: bool = False,
    dependent: bool = False,
    parameter_bytes: Bytes = 0,
    kernel: dict[str, Any] | None = None,
    opt_in: bool = True,
) -> Verdict:
    """Check a launch against the limits of a GPU, and plan how to split it along the axis of `batch` if it is illegal.

    `gpu` and `device` choose the GPU as in `limits`. `kernel` describes the kernel by the names of
    `gridguard check --requests`, for example `max_threads_per_block`. `opt_in` is whether the kernel opts in to large
    shared memory if needed. Sizes are integers, also of NumPy, or floats without a fraction. Sizes in bytes may be
    texts, for example "48KiB".

    Raises ValueError or TypeError for an invalid size or name, and GridguardError if there is no such device.
    """
    request: dict[str, Any] = {
        "grid": _size("grid", grid),
        "block": _size("block", block),
        "dynamic_shared_bytes": size_in_bytes("dynamic_shared_bytes", dynamic_shared_bytes),
        "cooperative": cooperative,
        "dependent": dependent,
        "parameter_bytes": size_in_bytes("parameter_bytes", parameter_bytes),
        "kernel": {name: _of_kernel(name, value) for name, value in (kernel or {}).items()},
    }
    if cluster is not None:
        request["cluster"] = _size("cluster", cluster)
    if batch is not None:
        if batch.axis not in ("x", "y", "z"):
            raise ValueError(f"batch.axis is {batch.axis!r}: pass 'x', 'y' or 'z'")
        request["batch"] = {
            "axis": batch.axis,
            "items": whole("batch.items", batch.items),
            "blocks_per_item": whole("batch.blocks_per_item", batch.blocks_per_item),
        }
    verdict = json.loads(_native.check(json.dumps(request), _name(gpu), _ordinal(device), opt_in))
    return Verdict(
        legality=verdict["verdict"],
        opts_in=verdict["opts_in"],
        violations=tuple(_built(Violation, one) for one in verdict["violations"]),
        plan=verdict["plan"]
        and _built(Plan, {**verdict["plan"], "listed": verdict["plan"]["launches"]}, listed=Launch),
    )


def plan(grid: Size, block: Size, batch: Batch | None = None, **options: Any) -> Plan:
    """Return the plan of a launch. Takes the options of `check`.

    Raises GridguardError with all violations if no plan is legal, and the errors of `check`.
    """
    verdict = check(grid, block, batch=batch, **options)
    if verdict.plan is None:
        raise _native.GridguardError("\n".join(one.message for one in verdict.violations))
    return verdict.plan


def explain(text: str, *, gpu: str | None = None, device: Number | None = None) -> Explanation:
    """Explain a CUDA error code, name or message, or the failures in a log.

    `gpu` and `device` choose a GPU as in `limits`. Launches in the text are checked against it.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {text!r}, of type {type(text).__name__}: pass a str, for example str(error)")
    document, report, assumed = _native.explain(text, _name(gpu), _ordinal(device))
    explained = json.loads(document)
    return Explanation(
        platform=explained["platform"],
        lines=explained["lines"],
        failures=tuple(
            _built(Failure, one, may=Cause, evidence=Line, consequences=Consequence) for one in explained["failures"]
        ),
        report=report,
        assumed=assumed,
    )


def doctor(command: str = "gridguard", *, timeout: float = 120.0) -> Report:
    """Find out whether this machine can run CUDA, and how to fix it.

    Runs the command `gridguard doctor` of the wheel, or else of PATH, which examines the driver in its own process.
    Raises GridguardError if the command is missing or does not respond.
    """
    limit = seconds("timeout", timeout)
    program = find_command(command)
    try:
        ran = subprocess.run(
            [program, "doctor", "--format", "json"],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        findings = json.loads(ran.stdout)["findings"]
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise _native.GridguardError(f"{program} doctor failed: {error}") from error
    return Report(tuple(_built(Problem, one) for one in findings))


def _built(kind: type[T], document: dict[str, Any], **items: type) -> T:
    """Make an object from a JSON document, without unknown fields. `items` gives the types of elements of lists."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    values = {name: value for name, value in document.items() if name in known}
    for name, value in values.items():
        if isinstance(value, list):
            item = items.get(name)
            values[name] = tuple(_built(item, one) if item else one for one in value)
    return kind(**values)


def _size(name: str, size: Size) -> tuple[int, ...]:
    try:
        given = (size,) if isinstance(size, str) else tuple(size)  # type: ignore[arg-type]
    except TypeError:
        given = (size,)
    sizes = tuple(whole(name, one) for one in given)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} has {len(sizes)} numbers: pass one to three, along x, y and z")
    return sizes + (1,) * (3 - len(sizes))


def _of_kernel(name: str, value: Any) -> Any:
    """Convert a number in a kernel's description. The native module checks other values."""
    if isinstance(value, str) and "bytes" in name:
        return size_in_bytes(f"kernel[{name!r}]", value)
    is_number = hasattr(value, "__index__") or hasattr(value, "is_integer")
    if is_number and not isinstance(value, bool):
        return whole(f"kernel[{name!r}]", value)
    return value


def _ordinal(device: Number | None) -> int | None:
    return None if device is None else whole("device", device)


def _name(gpu: str | None) -> str | None:
    if gpu is None or isinstance(gpu, str):
        return gpu
    raise TypeError(f'gpu is {gpu!r}: pass a name such as "h200", or a device of this machine by device=0')
