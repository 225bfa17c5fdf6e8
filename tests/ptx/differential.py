#!/usr/bin/env python3
"""Compares rewritten kernels with their originals on a GPU. Needs the driver, Python and NumPy."""

#     differential.py FOLDER OUTPUT.json [--entry PATTERN] [--seconds N] [--no-timing]
#     differential.py FOLDER --dry-run
#
# FOLDER has the output of `tests/ptx.sh pack`: rewritten modules of candle's kernels as cubins, with their reports.
#
# Each entry runs once unmodified. Then each of its forms runs in 1, 2, 3 and 7 uneven parts, on each axis that it reads
# and on several, and must write the same bytes. A run without the last part must write other bytes, so that the
# comparison can fail. Grids that the driver refuses run through the forms and are compared with NumPy. Last, each form
# and its original are timed in turn on the same grid.
#
# `--dry-run` makes all launches without a GPU, and checks their parameters against the reports.

import argparse
import datetime
import fnmatch
import itertools
import json
import os
import math
import pathlib
import statistics
import struct
import subprocess
import sys
import time

import numpy as np

import candle_launches as candle
import words
from candle_launches import Input, Output
from gpu import NOT_FOUND, CudaError, Gpu

PARTS = (1, 2, 3, 7)
FORMS = ("shifted", "folded")
ROUNDS, SAMPLE_MS = 21, 0.4


class Wrong(Exception):
    """What an entry did wrong, other than a CUDA error."""


def cut(count, parts):
    """The first and the number of each of `parts` uneven parts, the last ones largest."""
    parts, ends = min(parts, count), [0]
    for part in range(1, parts + 1):
        even = count * part * (part + 1) // (parts * (parts + 1))
        ends.append(min(max(even, ends[-1] + 1), count - (parts - part)))
    return [(first, end - first) for first, end in itertools.pairwise(ends)]


def pieces(form, grid, parts):
    """The grid and words of each launch of a form: `parts` for each axis, for a folded one those of x."""
    if form == "folded":
        for first, count in cut(math.prod(grid), parts[0]):
            yield (count, 1, 1), words.folded_words(grid, first)
        return
    for corner in itertools.product(*map(cut, grid, parts)):
        yield tuple(count for _, count in corner), words.shifted_words(grid, [first for first, _ in corner])


def plans(axes):
    """Every form, with the axes that are cut and the parts of each axis."""
    for axis in axes:
        for count in PARTS:
            yield "shifted", axis, tuple(count if other == axis else 1 for other in "xyz")
    if len(axes) > 1:
        for count in (2, 3):
            yield "shifted", axes, tuple(count if other in axes else 1 for other in "xyz")
    for count in PARTS:
        yield "folded", "flat", (count, 1, 1)


class Entry:
    """An entry of a report, with what makes its launches."""

    def __init__(self, family, report):
        self.family, self.report, self.name = family, report, report["name"]
        self.forms = report["forms"]
        self.make = candle.maker(family, self.name)
        read = {*report["reads_block_index"], *report["reads_grid_size"]}
        self.axes = "".join(axis for axis in "xyz" if axis in read) or "x"

    def check(self, launch):
        count, size = len(launch.arguments), launch.layout()[1]
        if (count, size) != (self.report["parameters"], self.report["parameter_bytes"]):
            raise Wrong(f"{count} arguments of {size} bytes, but the report has {self.report['parameters']} "
                        f"of {self.report['parameter_bytes']}")

    def parameters(self, own, form_words):
        """The kernel's own parameters, followed by the parameters of a form."""
        return bytes(own).ljust(self.forms["parameter_offset"], b"\0") + struct.pack(f"<{len(form_words)}I", *form_words)


def read(folder):
    """The entries that have launches, and by file those that do not, with the reason."""
    entries, left = [], {}
    for path in sorted(folder.glob("*.json")):
        for report in json.loads(path.read_text())["entries"]:
            if "forms" not in report:
                left[report["name"]] = "refused: " + report["refusal"]["message"]
            elif candle.maker(path.stem, report["name"]) is None:
                left[report["name"]] = "nothing here makes its launches"
            else:
                entries.append(Entry(path.stem, report))
    if not entries:
        sys.exit(f"no report of candle's kernels in {folder}")
    return entries, left


class Run:
    """The launches of one entry with their arguments on the device; frees them at the end of a `with`."""

    def __init__(self, gpu, functions, entry, launch):
        self.gpu, self.functions, self.entry, self.launch = gpu, functions, entry, launch
        entry.check(launch)
        offsets, size = launch.layout()
        self.own, self.pointers = bytearray(size), []
        try:
            for argument, offset in zip(launch.arguments, offsets):
                if isinstance(argument, np.generic):
                    text = argument.tobytes()
                else:
                    text = struct.pack("<Q", self.place(argument).value)
                self.own[offset:offset + len(text)] = text
        except CudaError:
            self.close()
            raise

    def place(self, argument):
        is_input = isinstance(argument, Input)
        pointer = self.gpu.allocate(argument.array.nbytes if is_input else argument.bytes)
        self.pointers.append(pointer)
        if is_input:
            self.gpu.upload(pointer, argument.array)
        else:
            self.out = pointer
        return pointer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        while self.pointers:
            try:
                self.gpu.free(self.pointers.pop())
            except CudaError:
                # A sticky error, which the launch has reported.
                pass

    def prepare(self, form, grid, parameters):
        return self.gpu.prepare(self.functions[form], grid, self.launch.block, self.launch.shared, parameters)

    def original(self):
        return [self.prepare("original", self.launch.grid, self.own)]

    def form(self, form, parts):
        return [self.prepare(form, grid, self.entry.parameters(self.own, form_words))
                for grid, form_words in pieces(form, self.launch.grid, parts)]

    def output(self, launches):
        """What these launches write."""
        output = self.launch.output
        if output.start is None:
            self.gpu.set_bytes(self.out, candle.PATTERN, output.bytes)
        else:
            self.gpu.upload(self.out, output.start)
        for launch in launches:
            launch()
        self.gpu.synchronize()
        return self.gpu.download(self.out, output.bytes)


def compare(run):
    """The comparisons of a legal launch, by result."""
    expected = run.output(run.original())
    if not np.array_equal(expected, run.output(run.original())):
        raise Wrong("the original does not write the same bytes twice")
    equal, different = [], []
    for form, axes, parts in plans(run.entry.axes):
        launches = run.form(form, parts)
        what = f"{form} on {axes} in {'x'.join(str(one) for one in parts if one > 1) or 1}: {len(launches)} launches"
        (equal if np.array_equal(expected, run.output(launches)) else different).append(what)
    for form in FORMS:
        axis = run.entry.axes[0]
        parts = tuple(2 if form == "folded" and at == "x" or form == "shifted" and at == axis else 1 for at in "xyz")
        if np.array_equal(expected, run.output(run.form(form, parts)[:-1])):
            different.append(f"{form} without its last part writes the same: the comparison shows nothing")
    return equal, different


def beyond():
    """Launches that the driver refuses, with what NumPy computes for them."""
    many = 70_001

    def rows_of(kind, to_float):
        (launch,) = candle.maker("quantized", f"get_rows_{kind}")(grid=(2, many))
        table, rows = launch.arguments[0].array, launch.arguments[1].array
        return f"get_rows_{kind}", launch, lambda: to_float(table).reshape(3, -1)[rows]

    def q8_0(table):
        blocks = table.reshape(-1, 34)
        scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
        return blocks[:, 2:].view(np.int8).astype(np.float32) * scale

    def quantized_rows():
        (launch,) = candle.maker("quantized", "quantize_q8_1")(rows=many)
        x, columns, padded = launch.arguments[0].array, int(launch.arguments[2]), int(launch.arguments[3])

        def expected():
            values = np.zeros((many, padded), np.float32)
            values[:, :columns] = x.reshape(many, columns)
            values = values.reshape(-1, 32)
            most = np.abs(values).max(1, keepdims=True)
            scale = most / np.float32(127)
            with np.errstate(invalid="ignore"):
                ratio = np.where(most == 0, np.float32(0), values / scale).astype(np.float64)
            whole = (np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)).astype(np.int8)
            halves = np.hstack([scale, values.sum(1, keepdims=True)]).astype(np.float16)
            return np.hstack([halves.view(np.uint8), whole.view(np.uint8)])

        return "quantize_q8_1", launch, expected

    def experts(rows, batch, chosen):
        """Scales of 1 and sums of few small whole numbers: exact in every order."""
        random, one = np.random.default_rng(5), np.array([1.0], np.float16).view(np.uint8)
        weights, inputs = (random.integers(0, 8, (blocks, 34 + extra), np.uint8)
                           for blocks, extra in ((3 * rows * 8, 0), (batch * 8, 2)))
        weights[:, :2] = inputs[:, :2] = one
        inputs[:, 2:4] = 0
        (launch,) = candle.maker("quantized", "indexed_moe_forward_q8_0_q8_1")(
            grid=(rows, batch, chosen), weights=Input(weights.reshape(-1)), inputs=Input(inputs.reshape(-1)))

        def expected():
            # An expert begins where it would with blocks of 256 values.
            at = np.arange(3)[:, None, None] * rows + np.arange(rows)[None, :, None] * 8 + np.arange(8)
            matrices = weights[at][..., 2:].reshape(3, rows, 256).astype(np.float32)
            vectors = inputs[:, 4:].reshape(batch, 256).astype(np.float32)
            chosen_experts = launch.arguments[2].array.reshape(batch, chosen)
            products = np.einsum("ern,bn->ber", matrices, vectors)
            return products[np.arange(batch)[:, None], chosen_experts]

        return "indexed_moe_forward_q8_0_q8_1", launch, expected

    yield "y", lambda: rows_of("f32", lambda table: table)
    yield "y", lambda: rows_of("f16", lambda table: table.astype(np.float32))
    yield "y", lambda: rows_of("bf16", lambda table: (table.astype(np.uint32) << 16).view(np.float32))
    yield "y", lambda: rows_of("q8_0", q8_0)
    yield "y", quantized_rows
    yield "y", lambda: experts(2, many, 2)
    yield "z", lambda: experts(2, 3, many)
    yield "yz", lambda: experts(1, 66_000, 66)
    yield "zy", lambda: experts(1, 66, 66_000)


def compare_beyond(run, axes, expected):
    """The comparisons of a launch that the driver refuses."""
    expected = np.ascontiguousarray(expected()).reshape(-1).view(np.uint8)
    try:
        run.original()[0]()
        raise Wrong("the driver accepts the grid")
    except CudaError as error:
        if error.sticky or error.name != "CUDA_ERROR_INVALID_VALUE":
            raise
    equal, different = [], []
    for form, parts in [("folded", (count, 1, 1)) for count in PARTS] + [
            ("shifted", tuple(max(count, 2) if axis in axes else 1 for axis in "xyz")) for count in PARTS[1:]]:
        launches = run.form(form, parts)
        what = f"{form} in {'x'.join(map(str, parts))}: {len(launches)} launches"
        (equal if np.array_equal(expected, run.output(launches)) else different).append(what)
    return equal, different


def timed(run):
    """The median ratio of each form's time to the original's, and the original's microseconds."""
    launches = {"original": run.original(), **{form: run.form(form, (1, 1, 1)) for form in FORMS}}
    start, end = run.gpu.event(), run.gpu.event()

    def sample(form, repeat):
        launch = launches[form][0]
        # The device is busy when the first event is recorded, so that no wait for the host counts.
        launch()
        run.gpu.record(start)
        for _ in range(repeat):
            launch()
        run.gpu.record(end)
        return run.gpu.milliseconds(start, end) / repeat

    run.output(launches["original"])
    repeat = min(20, max(1, round(SAMPLE_MS / min(sample("original", 3) for _ in range(3)))))
    ratios, times, order = {form: [] for form in FORMS}, [], list(launches)
    for _ in range(ROUNDS):
        taken = {form: sample(form, repeat) for form in order}
        order = order[1:] + order[:1]
        times.append(taken["original"])
        for form in FORMS:
            ratios[form].append(taken[form] / taken["original"])
    return {"microseconds": round(1000 * statistics.median(times), 2),
            **{form: round(statistics.median(ratios[form]), 4) for form in FORMS}}


class Session:
    """A run over all entries. It keeps the measurements when the device fails."""

    def __init__(self, folder, entries, deadline):
        self.gpu, self.folder, self.deadline = Gpu(), folder, deadline
        self.entries = {entry.name: entry for entry in entries}
        self.modules, self.functions = {}, {}
        self.compared, self.beyond, self.timing, self.wrong, self.left = [], [], [], [], {}

    def find(self, entry):
        """The functions of an entry and its forms; None if the module was assembled without it."""
        if entry.family not in self.modules:
            self.modules[entry.family] = self.gpu.module(self.folder / f"{entry.family}.cubin")
        if entry.name not in self.functions:
            names = {"original": entry.name, **{form: entry.forms[form] for form in FORMS}}
            try:
                self.functions[entry.name] = {
                    form: self.gpu.function(self.modules[entry.family], name) for form, name in names.items()}
            except CudaError as error:
                if error.name != NOT_FOUND:
                    raise
                self.left[entry.name], self.functions[entry.name] = "not assembled", None
        return self.functions[entry.name]

    def each(self, entry, what, launches, measure):
        """`measure` for each launch of an entry, if there is time; notes errors with the entry's name."""
        if time.monotonic() > self.deadline:
            self.wrong.append(f"{entry.name}: {what}: no time left")
            return
        try:
            if (functions := self.find(entry)) is None:
                return
            for launch in launches():
                with Run(self.gpu, functions, entry, launch) as run:
                    measure(run)
        except (CudaError, Wrong) as error:
            self.wrong.append(f"{entry.name}: {what}: {error}")
            if getattr(error, "sticky", False):
                raise

    def note(self, rows, run, what, compared):
        equal, different = compared
        rows.append({"entry": run.entry.name, "family": run.entry.family, "launch": what,
                     "grid": run.launch.grid, "block": run.launch.block, "axes": run.entry.axes,
                     "equal": equal, "different": different})
        self.wrong += [f"{run.entry.name}: {what}: {one}" for one in different]

    def compare_all(self):
        for entry in self.entries.values():
            self.each(entry, "comparison", entry.make,
                      lambda run: self.note(self.compared, run, run.launch.what, compare(run)))

    def beyond_all(self):
        for axes, make in beyond():
            name, launch, expected = make()
            if name in self.entries:
                self.each(self.entries[name], f"beyond the limit on {axes}", lambda: [launch], lambda run: self.note(
                    self.beyond, run, f"beyond the limit on {axes}", compare_beyond(run, axes, expected)))

    def time_all(self):
        for family, names in candle.TIMED.items():
            for name in names:
                if name in self.entries:
                    entry = self.entries[name]
                    self.each(entry, "timing", lambda: entry.make(large=True), lambda run: self.timing.append(
                        {"entry": name, "family": family, "grid": run.launch.grid, "block": run.launch.block,
                         **timed(run)}))


def summary(timing):
    """The median of each form by family, the median of those, and the worst entry."""
    families = {}
    for family in dict.fromkeys(row["family"] for row in timing):
        rows = [row for row in timing if row["family"] == family]
        families[family] = {form: statistics.median(row[form] for row in rows) for form in FORMS}
    return {"families": families, **{form: {
        "median": statistics.median(one[form] for one in families.values()),
        "worst": max((row[form], row["entry"]) for row in timing)} for form in FORMS}} if timing else {}


def table(session, timing):
    print(f"{'family':10} {'entries':>7} {'launches':>8} {'equal':>6} {'different':>9} {'shifted':>8} {'folded':>8}")
    for family in dict.fromkeys(row["family"] for row in session.compared):
        rows = [row for row in session.compared + session.beyond if row["family"] == family]
        ratios = timing.get("families", {}).get(family, {})
        print(f"{family:10} {len({row['entry'] for row in rows}):7} {len(rows):8} "
              f"{sum(len(row['equal']) for row in rows):6} {sum(len(row['different']) for row in rows):9} "
              + " ".join(f"{ratios[form]:8.4f}" if ratios else " " * 8 for form in FORMS))
    print(f"{len(session.beyond)} launches beyond the limits")
    for form in FORMS if timing else ():
        ratio, name = timing[form]["worst"]
        print(f"{form}: median of the families {timing[form]['median']:.4f}, worst {ratio:.4f} ({name})")


def dry_run(entries, left):
    """All launches without a device, and the words of all their parts."""
    launches, wrong = 0, []
    for entry in entries:
        timed_names = candle.TIMED[entry.family]
        for large in (False, True) if entry.name in timed_names else (False,):
            for launch in entry.make(large=large):
                launches += 1
                try:
                    entry.check(launch)
                except Wrong as error:
                    wrong.append(f"{entry.name}: {error}")
                for form, _, parts in plans(entry.axes):
                    covered = sum(math.prod(grid) for grid, _ in pieces(form, launch.grid, parts))
                    if covered != math.prod(launch.grid):
                        wrong.append(f"{entry.name}: {form} in {parts} launches {covered} blocks of {launch.grid}")
                if not any(isinstance(argument, Output) for argument in launch.arguments):
                    wrong.append(f"{entry.name}: no output")
    names = {entry.name: entry for entry in entries}
    for axes, make in beyond():
        name, launch, expected = make()
        if name not in names:
            continue
        launches += 1
        names[name].check(launch)
        size = expected().nbytes
        if size != launch.output.bytes or all(blocks <= 65_535 for blocks in launch.grid[1:]):
            wrong.append(f"{name}: {size} bytes expected of {launch.output.bytes}, grid {launch.grid}")
    wrong += [f"{name}: timed, but unknown" for family in candle.TIMED.values() for name in family if name not in names]
    families = {family: sum(entry.family == family for entry in entries) for family in candle.ENTRIES}
    print(f"{len(entries)} entries, {launches} launches; {len(left)} entries without: {json.dumps(families)}")
    return wrong


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]
    except OSError:
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--entry", default="*", help="a pattern of entry names")
    parser.add_argument("--seconds", type=float, default=90, help="what has not begun by then counts as wrong")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    words.check()
    entries, left = read(options.folder)
    if options.dry_run:
        wrong = dry_run(entries, left)
        for one in wrong:
            print(f"wrong: {one}", file=sys.stderr)
        return 1 if wrong else 0
    if options.output is None:
        parser.error("the path of the report is missing")
    begun = time.monotonic()
    entries = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, options.entry)]
    session = Session(options.folder, entries, begun + options.seconds)
    try:
        # The short and most important checks run first, in case the device fails.
        session.beyond_all()
        session.compare_all()
        if not options.no_timing:
            session.time_all()
    except CudaError as error:
        session.wrong.append(f"the device can do nothing more after {error}")
    if not session.compared:
        session.wrong.append("no entry was compared")
    timing = summary(session.timing)
    options.output.write_text(json.dumps({
        "device": session.gpu.name, "driver": driver_version(), "cuda": session.gpu.cuda_version,
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("GRIDGUARD_COMMIT", "unknown"),
        "seconds": round(time.monotonic() - begun, 1),
        "entries": len({row["entry"] for row in session.compared}),
        "comparisons": sum(len(row["equal"]) + len(row["different"]) for row in session.compared + session.beyond),
        "wrong": session.wrong, "timing_summary": timing, "timing": session.timing,
        "beyond": session.beyond, "compared": session.compared, "left_out": {**left, **session.left},
    }, indent=1, default=int) + "\n")
    table(session, timing)
    for one in session.wrong:
        print(f"wrong: {one}", file=sys.stderr)
    return 1 if session.wrong else 0


sys.exit(main())
