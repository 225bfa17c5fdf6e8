#!/usr/bin/env python3
"""Runs kernels whose 32-bit indices wrap on a device, and programs of several frameworks in which none does."""

# wraps.py GRIDGUARD FOLDER REPORT.json [corpus|programs]
#
# FOLDER has guard/index/corpus as `index`, and may have candle/candle-plain.
#
# corpus: each pair of kernels runs one below its first bad size and at that size, where the faulty kernel must write the
# same memory as the mended one, and then another. The command must call the first launch safe and the second one not.
# Memory before the output catches negative indices. A few faulty loops do not end: they run in a process of their own.
#
# programs: each runs under `gridguard run --index` and checks what its launches write. No wrap may be reported, except in
# the one program that has one. Missing frameworks are listed. The run fails if PyTorch or Triton is missing.

import concurrent.futures
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import suite
from wraps_programs import PROGRAMS, PYTHON_START, SOURCES

MIB, GIB = 1 << 20, 1 << 30
# Half of the memory of a signed index of floats is before the output.
BEFORE = 8 * GIB + 64 * MIB
BYTES = 16 * GIB + 160 * MIB
# No kernel writes this number.
POISON = -7.5
# Several threads write different numbers to one element: only whether it was written is compared.
RACING = {"skipped", "blocks_stride"}
# The variable of the loop wraps back below its end.
ENDLESS = {"grid_stride", "grid_stride_unsigned", "wide_count", "blocks_stride"}
ENDLESS_SECONDS = 2
NOT_READY = 600
LAUNCHES = 1000


class Case:
    """A pair of kernels, as the sources in guard/index/corpus state it."""

    def __init__(self, source, text, name, sizes):
        self.source, self.name = source, name
        known, first = sizes.split("; first ")
        self.sizes = {size: int(value) for size, value in (pair.split("=") for pair in known.split())}
        size, value = first.split(";")[0].split("=")
        self.varied, self.first = size, int(value)
        self.signatures = {kind: self.signature(text, kind) for kind in ("faulty", "mended")}
        body = re.search(rf"{name}_faulty\(.*?\n\}}", text, re.DOTALL)[0]
        self.is_unsigned = "unsigned " in body

    def signature(self, text, kind):
        """The type and the name of each parameter."""
        parameters = re.search(rf"{self.name}_{kind}\((.*?)\)", text)[1].replace("const ", "\tconst ")
        return [one.strip(" ").rsplit(" ", 1) for one in parameters.split(",")]

    def sizes_with(self, value):
        return {**self.sizes, self.varied: value}

    def dimensions(self, value, of):
        sizes = self.sizes_with(value)
        return [sizes.get(f"{of}.{axis}", 1) for axis in "xyz"]

    def arguments(self, kind, value, out, read):
        sizes, arguments = self.sizes_with(value), []
        for type_, name in self.signatures[kind]:
            if type_.endswith("*"):
                arguments.append(ctypes.c_uint64(read if "const" in type_ else out))
            elif type_ == "Layout":
                arguments.append((ctypes.c_int * 3)(0, 0, sizes[name + "+8"]))
            else:
                types = {"int": ctypes.c_int, "unsigned": ctypes.c_uint, "wide": ctypes.c_int64, "size_t": ctypes.c_uint64}
                arguments.append(types[type_](sizes[name]))
        return arguments

    def options(self, value):
        """The sizes of a launch of the faulty kernel, as options of the command."""
        options = []
        for of in ("grid", "block"):
            options += [f"--{of}", ",".join(map(str, self.dimensions(value, of)))]
        names = [name for _, name in self.signatures["faulty"]]
        for size, number in self.sizes_with(value).items():
            if "." not in size:
                name, plus, offset = size.partition("+")
                options += ["--param", f"{names.index(name)}{plus}{offset}={number}"]
        return options


def cases(folder):
    for source in sorted(pathlib.Path(folder, "index").glob("*.cu")):
        text = source.read_text()
        for name, sizes in re.findall(r"// case (\w+): (.*)", text):
            yield Case(source.stem, text, name, sizes if "; first " in sizes else "; " + sizes)


class Driver:
    """The calls of the CUDA driver, in the current context."""

    def __init__(self):
        self.cuda, self.modules = ctypes.CDLL("libcuda.so.1"), {}

    def call(self, function, *arguments):
        result = getattr(self.cuda, function)(*arguments)
        if result:
            raise RuntimeError(f"{function}: error {result}")

    def launch(self, folder, case, kind, value, out, read):
        module = self.modules.get(case.source)
        if module is None:
            module = self.modules[case.source] = ctypes.c_void_p()
            text = pathlib.Path(folder, "index", "sm_90", case.source + ".ptx").read_bytes()
            self.call("cuModuleLoadData", ctypes.byref(module), text + b"\0")
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, f"{case.name}_{kind}".encode())
        arguments = case.arguments(kind, value, out, read)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        sizes = [ctypes.c_uint(size) for of in ("grid", "block") for size in case.dimensions(value, of)]
        self.call("cuLaunchKernel", function, *sizes, ctypes.c_uint(0), None, pointers, None)


def origin(case):
    return 0 if case.is_unsigned else BEFORE


def endless(folder, name):
    """Launches a faulty kernel at its first bad size, and says whether it ends."""
    case = next(case for case in cases(folder) if case.name == name)
    driver, device, context, memory = Driver(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    out = memory.value + origin(case)
    driver.launch(folder, case, "faulty", case.first, out, out)
    end = time.monotonic() + ENDLESS_SECONDS
    while (result := driver.cuda.cuStreamQuery(None)) == NOT_READY and time.monotonic() < end:
        time.sleep(0.01)
    print({0: "ends", NOT_READY: "does not end"}.get(result, f"fails with {result}"), flush=True)
    # Nothing else ends the kernel.
    os.kill(os.getpid(), signal.SIGKILL)


def verdict(gridguard, folder, case, value):
    ptx = pathlib.Path(folder, "index", "sm_90", case.source + ".ptx")
    command = [gridguard, "ptx", ptx, "--index", "--entry", case.name + "_faulty", "--format", "json", *case.options(value)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    try:
        return json.loads(ran.stdout)["entries"][0]["verdict"]
    except (ValueError, LookupError):
        return ran.stderr.strip()


def corpus(gridguard, folder):
    """Returns a row for each case, and whether all are right."""
    import torch

    driver = Driver()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        verdicts = {
            case.name: [pool.submit(verdict, gridguard, folder, case, case.first - down) for down in (1, 0)]
            for case in cases(folder)
        }
    written = [torch.empty(BYTES // 4, device="cuda") for _ in range(2)]
    read = torch.empty(BYTES // 4, device="cuda")
    for part in read.split(1 << 28):
        # Sums of these numbers are exact in any order.
        part.random_(0, 16)

    def differ(case, value):
        for memory, kind in zip(written, ("faulty", "mended")):
            memory.fill_(POISON)
            at = origin(case)
            driver.launch(folder, case, kind, value, memory.data_ptr() + at, read.data_ptr() + at)
            torch.cuda.synchronize()
        for one, other in zip(*(memory.split(1 << 28) for memory in written)):
            if case.name in RACING:
                one, other = one != POISON, other != POISON
            else:
                one, other = one.view(torch.int32), other.view(torch.int32)
            if not torch.equal(one, other):
                return "different"
        return "equal"

    rows = []
    for case in cases(folder):
        begun = time.monotonic()
        row = {"kernel": case.name, "first": f"{case.varied}={case.first}"}
        row["verdicts"] = [one.result() for one in verdicts[case.name]]
        row["below"] = differ(case, case.first - 1)
        row["at"] = "ends"
        if case.name in ENDLESS:
            command = [sys.executable, __file__, "--endless", folder, case.name]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
            row["at"] = ran.stdout.strip() or ran.stderr
        if row["at"] == "ends":
            row["at"] = differ(case, case.first)
        row["right"] = row["below"] == "equal" and row["at"] in ("different", "does not end")
        row["right"] &= row["verdicts"] == ["safe", "wraps"]
        print("right" if row["right"] else "WRONG", f"{time.monotonic() - begun:.2f} s", json.dumps(row), flush=True)
        rows.append(row)
    return rows, bool(rows) and all(row["right"] for row in rows)


def commands(folder, work):
    """The name and the command of each program. The command is None if something is missing."""
    for name, (modules, text) in PROGRAMS.items():
        path = pathlib.Path(work, f"program-{name}.py")
        path.write_text(PYTHON_START + text)
        yield name, [sys.executable, str(path)] if all(map(importlib.util.find_spec, modules)) else None
    for name, source in SOURCES.items():
        yield name, [suite.build(work, name, source, "-arch=sm_90")] if suite.has_nvcc() else None
    candle = pathlib.Path(folder, "candle", "candle-plain")
    yield "candle", [str(candle)] if candle.exists() else None


def program(gridguard, work, name, command):
    """Runs a program under the command, and returns a row with whether it is right."""
    reports = pathlib.Path(work, f"reports-{name}")
    reports.mkdir()
    # Caches are empty. Inductor has Triton's cache in its own.
    cache = {"compiled": "TORCHINDUCTOR_CACHE_DIR", "cupy": "CUPY_CACHE_DIR"}.get(name, "TRITON_CACHE_DIR")
    settings = {cache: f"{work}/cache-{name}", "CUPY_CACHE_IN_MEMORY": "1"}
    begun = time.monotonic()
    ran = subprocess.run(
        [gridguard, "run", "--index", "--report", reports / "report.json", "--", *command],
        capture_output=True, text=True, timeout=250, env={**os.environ, **settings},
    )
    row = {"program": name, "seconds": round(time.monotonic() - begun, 1), "status": ran.returncode}
    row |= {"checked": 0, "launches": 0, "kernels_compared": 0, "launches_compared": 0, "kernels_without_ptx": 0}
    # candle's program says what is right, others count.
    last = ran.stdout.strip().splitlines()[-1:] or [""]
    row["checked"] = int(last[0]) if last[0].isdigit() else ran.stdout.count(": right")
    row["wraps"] = []
    for told in suite.merged(reports, ""):
        coverage = told.get("index_coverage") or {"kernels": 0, "launches": 0, "kernels_without_ptx": 0}
        row["launches"] += told["launches"]
        row["kernels_compared"] += coverage["kernels"]
        row["launches_compared"] += coverage["launches"]
        row["kernels_without_ptx"] += coverage["kernels_without_ptx"]
        # The first index of each kernel.
        row["wraps"] += [f"{one['kernel']}: {wrap}" for one in told["indices"] for wrap in one.get("wraps", [])[:1]]
    said = ran.stderr.count("gridguard: a 32-bit index of")
    wrapping = name.endswith("-wraps")
    row["right"] = ran.returncode == 0 and row["checked"] > 0 and bool(row["wraps"]) == bool(said) == wrapping
    if not row["right"]:
        row["said"] = (ran.stdout + ran.stderr)[-3000:]
    # One piece: other programs print, too.
    sys.stdout.write(f"{'right' if row['right'] else 'WRONG'} {json.dumps(row)}\n")
    sys.stdout.flush()
    return row


def programs(gridguard, folder):
    """Returns the report of all programs, and whether all are right."""
    with tempfile.TemporaryDirectory() as work:
        all_ = list(commands(folder, work))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            rows = list(pool.map(lambda one: program(gridguard, work, *one), (one for one in all_ if one[1])))
        rows = json.loads(json.dumps(rows).replace(work, "FOLDER"))
    ordinary = [row for row in rows if not row["program"].endswith("-wraps")]
    compared = sum(row["launches_compared"] for row in ordinary)
    report = {"missing": [name for name, command in all_ if not command], "launches_compared": compared, "programs": rows}
    is_right = all(row["right"] for row in rows) and compared >= LAUNCHES
    return report, is_right and not {"triton", "compiled"} & set(report["missing"])


def main():
    if sys.argv[1] == "--endless":
        return endless(*sys.argv[2:])
    gridguard, folder, path, *part = sys.argv[1:]
    gridguard, is_right = os.path.abspath(gridguard), True
    device, driver = suite.query("name", "driver_version")
    report = {
        "device": device,
        "driver": driver,
        "commit": os.environ.get("GRIDGUARD_COMMIT", "unknown"),
        "date": os.environ.get("GRIDGUARD_DATE", time.strftime("%Y-%m-%d")),
    }
    # The programs have the device's memory to themselves.
    for name, run in (("programs", programs), ("corpus", corpus)):
        if part in ([], [name]):
            report[name], fine = run(gridguard, folder)
            is_right &= fine
    suite.write(path, report)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
