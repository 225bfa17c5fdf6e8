"""The command `python -m gridguard.torch`: the calls of attention in a program, and the gain by the kernels."""

from __future__ import annotations

import argparse
import contextlib
import html
import importlib
import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _install, _launch, _native, _pytorch, _stats

Timer = Callable[[Callable[[], Any]], float]
"""Returns the microseconds of a call."""

# Frames of these packages are not the call site.
_PACKAGES = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
_COUNTED_BESIDE = {_stats.SERVED, _stats.BACKWARD, _stats.COPIED, _stats.ALIGNED}
# Samples of a measurement, and the length of each.
_SAMPLES, _SAMPLE_US = 5, 5000


@dataclass
class Site:
    """Calls of attention at one place, with the same sizes, type and options."""

    place: str
    call: str
    reason: str | None
    """Why PyTorch serves them, or None."""
    bytes: int
    """The size of query, key, value, mask and output in one call."""
    near: str | None
    """The sizes or types of an unserved call, and the nearest ones that kernels take."""
    calls: int = 0
    pytorch: float | str | None = None
    """Microseconds of a call, why PyTorch fails, or None if the call is not measured."""
    kernels: float | str | None = None

    @property
    def gain(self) -> float | None:
        """Microseconds that the kernels save in all calls."""
        both = (self.pytorch, self.kernels)
        return self.calls * (both[0] - both[1]) if all(isinstance(one, float) for one in both) else None


class Recorder:
    """Records the calls of attention while it is open. Without a timer, calls on a CPU are judged as if on a GPU."""

    def __init__(self, timer: Timer | None) -> None:
        self._sites: dict[tuple[str, str, str | None], Site] = {}
        self._timer = timer
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._serve, self._count = _attention.serve_uncommon, _stats.count
        self._installed = _install.installed()

    def __enter__(self) -> Recorder:
        with contextlib.nullcontext() if self._timer else _as_on_gpu():
            self._installed.__enter__()
        _attention.serve_uncommon, _stats.count = self._recorded, self._counted
        _record(True)
        return self

    def __exit__(self, *error: object) -> None:
        _record(False)
        _attention.serve_uncommon, _stats.count = self._serve, self._count
        self._installed.__exit__(None, None, None)

    def sites(self) -> list[Site]:
        """Return the sites by their bytes, the largest first."""
        return sorted(self._sites.values(), key=lambda site: -site.calls * site.bytes)

    def _counted(self, path: str, call: Any = ()) -> None:
        self._count(path, call)
        if path not in _COUNTED_BESIDE and self._thread.__dict__.get("reason", "") is None:
            self._thread.reason = path

    def _recorded(self, call: _pytorch.Call, types: tuple[type, ...] = _pytorch.PLAIN) -> Tensor | None:
        if self._thread.__dict__.get("is_measuring") or _pytorch.is_compiling():
            return self._serve(call, types)
        self._thread.reason = None
        on_cpu = self._timer is None and call[0].device.type == "cpu"
        with contextlib.ExitStack() as judged:
            if on_cpu:
                judged.enter_context(self._lock)
                judged.enter_context(_as_on_gpu())
            out = self._serve(call, types)
        reason = self._thread.reason
        key = (_place(), _described(call), reason)
        with self._lock:
            is_first = key not in self._sites
            if is_first:
                self._sites[key] = Site(*key, _bytes(call), _stats.nearest(reason, *call[:3]) if reason else None)
            site = self._sites[key]
            site.calls += 1
        if is_first and reason is None and self._timer is not None:
            # Without records, as in a program: calls of other threads are not recorded meanwhile.
            self._thread.is_measuring = True
            _record(False)
            try:
                site.pytorch, site.kernels = (_measured(self._timer, one, call) for one in _FUNCTIONS)
            finally:
                _record(True)
                self._thread.is_measuring = False
        # The output of a judged call was not computed.
        return None if on_cpu else out


def _record(on: bool) -> None:
    """Pass all calls to the Python code of this package, or common ones to the native code again."""
    for kernels in (_launch.kernels, _install._dispatched.kernels):
        if kernels is not None:
            kernels.is_recorded = on


@contextlib.contextmanager
def _as_on_gpu() -> Iterator[None]:
    """Check calls on the CPU as if on a GPU, and launch nothing."""
    kept = (_launch.DEVICE_TYPE, _launch.SERVED_DEVICE, _launch.kernels)
    judge = _native.Attention(torch, stand_in=lambda *launch: None)
    _launch.DEVICE_TYPE, _launch.SERVED_DEVICE, _launch.kernels = "cpu", "is_cpu", judge
    try:
        yield
    finally:
        _launch.DEVICE_TYPE, _launch.SERVED_DEVICE, _launch.kernels = kept


def _place() -> str:
    """Return the innermost frame outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_PACKAGES, "<")):
        frame = frame.f_back
    path = frame.f_code.co_filename
    roots = [root + os.sep for root in (os.getcwd(), *sys.path) if root and path.startswith(root + os.sep)]
    return f"{path[max(map(len, roots), default=0):]}:{frame.f_lineno} {frame.f_code.co_name}"


def _described(call: _pytorch.Call) -> str:
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa = call
    sizes = [tuple(tensor.shape) for tensor in (query, key, value)]
    text = ", ".join(map(str, sizes[:1] if len(set(sizes)) == 1 else sizes))
    words = [text, str(query.dtype).removeprefix("torch.")]
    words += [] if mask is None else [f"mask {tuple(mask.shape)} {str(mask.dtype).removeprefix('torch.')}"]
    words += ["causal"] * bool(is_causal) + ["grouped"] * bool(enable_gqa) + ["dropout"] * bool(dropout_p)
    words += [] if scale is None else [f"scale {scale:.4g}"]
    return " ".join([*words, "with gradients"] if _needs_grad(call) else words)


def _needs_grad(call: _pytorch.Call) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in call[:4])


def _bytes(call: _pytorch.Call) -> int:
    query, key, value, mask = call[:4]
    return sum(one.numel() * one.element_size() for one in (query, query, key, value, mask) if one is not None)


def _theirs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *options: Any) -> Tensor:
    dropout_p, is_causal, scale, enable_gqa = options
    return _pytorch.unserved(query, key, value, mask, dropout_p, is_causal, **_pytorch.keywords(scale, enable_gqa))


_FUNCTIONS = (_theirs, _attention.scaled_dot_product_attention)


def _measured(timer: Timer, function: Callable[..., Tensor], call: _pytorch.Call) -> float | str:
    """Return the time of a call on its own tensors, with gradients if it has them, or why it fails."""
    needs_grad = _needs_grad(call)
    given = [(one, one is not None and needs_grad and one.requires_grad) for one in call[:4]]
    tensors = [one if one is None else one.detach().requires_grad_(need) for one, need in given]
    wanted = [one for one in tensors if one is not None and one.requires_grad]

    def run() -> None:
        out = function(*tensors, *call[4:])
        if needs_grad:
            torch.autograd.grad(out, wanted, torch.ones_like(out))

    try:
        return timer(run)
    except RuntimeError as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _device_us(run: Callable[[], Any]) -> float:
    """Return the median time of calls back to back on the current stream."""
    samples, calls = [], 1
    for _ in range(_SAMPLES + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / calls)
        calls = max(1, min(200, int(_SAMPLE_US / max(samples[-1], 1.0))))
    return statistics.median(samples[2:])


_COLUMNS = ("calls", "bytes", "kernels", "PyTorch us", "kernels us", "gain ms", "call", "call site")


def _rows(sites: list[Site]) -> Iterator[tuple[str, ...]]:
    total = sum(site.calls * site.bytes for site in sites) or 1
    for site in sites:
        both = (site.pytorch, site.kernels)
        times = ["" if one is None else f"{one:.1f}" if isinstance(one, float) else "fails" for one in both]
        gain = "" if site.gain is None else f"{site.gain / 1e3:.2f}"
        share = f"{100 * site.calls * site.bytes / total:.1f} %"
        yield str(site.calls), share, site.reason or "served", *times, gain, site.call, site.place


def _summary(sites: list[Site], is_measured: bool) -> list[str]:
    total = sum(site.calls * site.bytes for site in sites)
    served = [site for site in sites if site.reason is None]
    share = 100 * sum(site.calls * site.bytes for site in served) / (total or 1)
    calls = sum(site.calls for site in sites)
    lines = [f"{calls} calls of attention, {sum(site.calls for site in served)} served: {share:.1f} % of the bytes"]
    lines += [f"{site.reason} at {site.place}: {site.near}" for site in sites if site.near is not None]
    if not is_measured:
        lines.append("The gain is not measured, because there is no GPU. A device may leave more calls to PyTorch.")
        return lines
    compared = [site for site in served if site.gain is not None]
    theirs = sum(site.calls * site.pytorch for site in compared) / 1e3
    ours = sum(site.calls * site.kernels for site in compared) / 1e3
    lines.append(f"Attention at the compared call sites: {theirs:.2f} ms by PyTorch, {ours:.2f} ms by the kernels")
    for site in served:
        errors = {"PyTorch": site.pytorch, "the kernels": site.kernels}
        lines += [f"{whose} failed at {site.place}: {one}" for whose, one in errors.items() if isinstance(one, str)]
    return lines


def text(sites: list[Site], is_measured: bool) -> str:
    """Return the report as a table."""
    rows = [_COLUMNS, *_rows(sites)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *_summary(sites, is_measured)])


def page(sites: list[Site], is_measured: bool) -> str:
    """Return the report as a page, with one bar for the bytes of each site."""
    height, most = 24, max((site.calls * site.bytes for site in sites), default=0) or 1
    bars = []
    for at, site in enumerate(sites):
        color, width = "#3a7" if site.reason is None else "#aaa", 400 * site.calls * site.bytes / most
        label = html.escape(f"{site.place}: {site.reason or 'served'}")
        bars.append(
            f'<rect y="{at * height}" width="{width:.1f}" height="{height - 4}" fill="{color}"/>'
            f'<text x="{width + 6:.1f}" y="{at * height + 15}">{label}</text>'
        )
    picture = f'<svg width="1000" height="{len(sites) * height}" role="img" aria-label="bytes">{"".join(bars)}</svg>'
    rows = "".join(
        f"<tr>{''.join(f'<{kind}>{html.escape(cell)}</{kind}>' for cell in row)}</tr>"
        for kind, row in (("th", _COLUMNS), *(("td", row) for row in _rows(sites)))
    )
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in _summary(sites, is_measured))
    style = "body{font:14px sans-serif;margin:2em}td,th{padding:2px 8px;text-align:left}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Calls of attention</title>'
        f"<style>{style}</style><h1>Calls of attention</h1>{paragraphs}<h2>Bytes of each call site</h2>{picture}"
        f"<table>{rows}</table></html>\n"
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    cli = argparse.ArgumentParser(
        prog="python -m gridguard.torch",
        description="Runs a function, and reports its calls of PyTorch's attention: which ones the kernels serve, why "
        "not the others, and on a GPU the time of both. Code for torch.compile runs uncompiled.",
    )
    cli.add_argument("function", metavar="MODULE:FUNCTION", help="a function without arguments")
    cli.add_argument("--html", type=Path, metavar="FILE", help="also write the report as a page")
    options = cli.parse_args(arguments)
    module, _, name = options.function.partition(":")
    if not module or not name:
        cli.error(f"{options.function!r} is no MODULE:FUNCTION, for example train:main")
    # Compiled code has no Python frames to report.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        function = attrgetter(name)(importlib.import_module(module))
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != module:
            raise
        cli.error(str(error))
    if not callable(function):
        cli.error(f"{options.function} is a {type(function).__name__}: pass a function")
    is_measured = torch.cuda.is_available() and torch.version.hip is None
    recorder = Recorder(_device_us if is_measured else None)
    try:
        with recorder:
            function()
    finally:
        # Also of a function that fails.
        sites = recorder.sites()
        print(text(sites, is_measured))
        if options.html is not None:
            options.html.write_text(page(sites, is_measured), encoding="utf-8")
