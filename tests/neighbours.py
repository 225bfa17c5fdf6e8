#!/usr/bin/env python3
"""Runs a small CUDA program under `gridguard run` beside other tools and libraries, on a device."""

# neighbours.py build FOLDER: builds the programs for each CUDA runtime; needs nvcc, gcc and PyPI. Takes jemalloc, tcmalloc
#   and HAMi-core's libvgpu.so from the machine, or from the folders that NEIGHBOURS names, separated by colons.
# neighbours.py run GRIDGUARD FOLDER REPORT.json: runs them.
#
# Beside each neighbour the program must print and return the same as without gridguard, a refused launch must be
# explained, and `--fix` must repair it; or gridguard declines in words. What is missing is listed as not run.

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

import suite

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "neighbours")
# The version, its package, and the files in the package. PyPI has no static runtime of CUDA 11.8 to 12.8.
RUNTIMES = [
    ("11.8", "nvidia-cuda-runtime-cu11==11.8.89", ["libcudart.so.11.0"]),
    ("12.1", "nvidia-cuda-runtime-cu12==12.1.105", ["libcudart.so.12"]),
    # That of PyTorch 2.8.
    ("12.8", "nvidia-cuda-runtime-cu12==12.8.90", ["libcudart.so.12"]),
    ("12.9", "nvidia-cuda-runtime-cu12==12.9.79", ["libcudart.so.12", "libcudart_static.a"]),
    ("13.0", "nvidia-cuda-runtime==13.0.96", ["libcudart.so.13", "libcudart_static.a"]),
]
LIBRARIES = {
    "jemalloc": ["libjemalloc.so.2"],
    "tcmalloc": ["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"],
    "HAMi-core": ["libvgpu.so"],
}
LEGAL, REFUSED = 60_000, 70_000
DEEP = "was opened with RTLD_DEEPBIND: launches by CUDA functions that it has looked up are not seen"
UNSEEN_MODULE = "fix       not possible: its module was loaded by a function that is not watched"
OLD = "contains a CUDA runtime before 13. Launches that this runtime refuses are not fixed, and before 12.9 not seen"
SANITIZER = "compute-sanitizer replaces the driver's functions itself: run it without `gridguard run`"


def build(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    shutil.copy(os.path.join(SOURCES, "profiled.py"), folder)
    with tempfile.TemporaryDirectory() as work:
        image = os.path.join(work, "rows.fatbin")
        # Runtimes of CUDA 11 take no image that a newer nvcc has compressed.
        source = os.path.join(SOURCES, "rows.cu")
        subprocess.run([suite.NVCC, "-arch=sm_90", "-compress-mode=none", "-fatbin", "-o", image, source], check=True)
        compile_c(folder, "opener", "opener.c", "-ldl")
        for version, package, files in RUNTIMES:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", os.path.join(work, version)]
            subprocess.run([*download, package], check=True)
            [wheel] = glob.glob(os.path.join(work, version, "*.whl"))
            for file in files:
                kind = "static" if file.endswith(".a") else "shared"
                place = os.path.join(folder if kind == "shared" else work, version)
                os.makedirs(place, exist_ok=True)
                with zipfile.ZipFile(wheel) as packed:
                    [member] = [one for one in packed.namelist() if os.path.basename(one) == file]
                    with open(os.path.join(place, file), "wb") as out:
                        out.write(packed.read(member))
                libraries = [os.path.join(place, file), "-ldl", "-lrt", "-lpthread"]
                options = [f'-DIMAGE="{image}"', *libraries, f"-Wl,-rpath,$ORIGIN/{version}"]
                compile_c(folder, f"rows-{version}-{kind}", "rows.c", *options)
                if version == RUNTIMES[-1][0]:
                    compile_c(folder, f"plugin-{kind}.so", "rows.c", "-DPLUGIN", "-shared", "-fPIC", *options)
    places = [*filter(None, os.environ.get("NEIGHBOURS", "").split(":")), "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    for names in LIBRARIES.values():
        found = [path for name in names for place in places if os.path.exists(path := os.path.join(place, name))]
        if found:
            shutil.copy(found[0], folder)


def compile_c(folder, name, source, *options):
    command = ["gcc", "-O1", "-Wall", "-o", os.path.join(folder, name), os.path.join(SOURCES, source), *options]
    subprocess.run(command, check=True)


def run(command, settings):
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120)
    # Profilers and debuggers print lines of their own.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("launch ", "child "))]
    return (done.returncode, lines), done.stderr


def check(command, settings, declined=None):
    """Return the failures of one neighbour. `command` has a function of the launcher and the number of rows. `declined` are
    words in all reports, or, where only `--fix` is declined, in that of a launch which is not fixed."""
    alone = {rows: run(command([], rows), settings)[0] for rows in (LEGAL, REFUSED)}
    if len(alone[LEGAL][1]) == 0:
        return [f"without gridguard: {run(command([], LEGAL), settings)}"]
    failures = []

    def expect(what, seen, expected, texts, absent):
        result, err = seen
        wrong = result != expected or any(text not in err for text in texts) or any(text in err for text in absent)
        failures.extend([f"{what}: {seen}, expected {expected}, {texts}, and not {absent}"] if wrong else [])

    gridguard = [options.gridguard, "run", "--quiet"]
    named = ["launch refused", "grid.y is 70000 blocks"]
    unfixed = declined if declined == UNSEEN_MODULE else None
    declined = None if unfixed else declined
    watched = {rows: run(command([*gridguard, "--"], rows), settings) for rows in (LEGAL, REFUSED)}
    expect("legal", watched[LEGAL], alone[LEGAL], [declined] if declined else [], ["launch refused"])
    expect("refused", watched[REFUSED], alone[REFUSED], [declined] if declined else named, [])
    if not declined:
        right = (alone[LEGAL][0], [line.replace(f"sum {LEGAL}", f"sum {REFUSED}") for line in alone[LEGAL][1]])
        fixed = run(command([*gridguard, "--fix", "--"], REFUSED), settings)
        if unfixed:
            expect("not fixed", fixed, alone[REFUSED], [*named, unfixed], [])
        else:
            expect("fixed", fixed, right, [], ["launch refused"])
    return failures


def neighbours(folder, work):
    """Each neighbour: its name, its command, its environment, and the words of a refusal; or why it is not run."""

    def program(name, *more):
        return lambda launcher, rows: [*launcher, os.path.join(folder, name), str(rows), *more]

    def beneath(tool, program):
        return lambda launcher, rows: [*tool, *program(launcher, rows)]

    def above(tool, program):
        return lambda launcher, rows: [*launcher, *tool, *program([], rows)]

    newest = RUNTIMES[-1][0]
    plain = {kind: program(f"rows-{newest}-{kind}") for kind in ("static", "shared")}
    for version, _, files in RUNTIMES:
        for file in files:
            kind = "static" if file.endswith(".a") else "shared"
            words = OLD if kind == "static" and float(version) < 13 else UNSEEN_MODULE if float(version) < 12 else None
            yield f"CUDA {version}, {kind} runtime", program(f"rows-{version}-{kind}"), {}, words
    yield "CUDA 11.8, static runtime", None, {}, "PyPI has none"
    for kind, command in plain.items():
        yield f"LD_BIND_NOW, {kind} runtime", command, {"LD_BIND_NOW": "1"}, None
        yield f"a child by fork, {kind} runtime", program(f"rows-{newest}-{kind}", "fork"), {}, None
        plugin = os.path.join(folder, f"plugin-{kind}.so")
        yield f"dlopen with RTLD_LOCAL, {kind} runtime", program("opener", plugin, "local"), {}, None
        yield f"dlopen with RTLD_DEEPBIND, {kind} runtime", program("opener", plugin, "deep"), {}, DEEP
    for name, files in LIBRARIES.items():
        found = [path for file in files if os.path.exists(path := os.path.join(folder, file))]
        settings = {"LD_PRELOAD": found[0], "CUDA_DEVICE_MEMORY_LIMIT": "4g"} if found else {}
        settings |= {"CUDA_DEVICE_MEMORY_SHARED_CACHE": os.path.join(work, "hami.cache")} if found else {}
        yield name, plain["static"] if found else None, settings, None if found else "it was not packed"
    torch = suite.has("torch", "triton")
    script = lambda launcher, rows: [*launcher, sys.executable, os.path.join(folder, "profiled.py"), str(rows)]
    cache = {"TRITON_CACHE_DIR": os.path.join(work, "triton")}
    missing = "PyTorch or Triton is not installed"
    yield "PyTorch's profiler (CUPTI)", script if torch else None, cache, None if torch else missing
    nsys = ["nsys", "profile", "--trace=cuda", "--force-overwrite=true", "--output", os.path.join(work, "profile")]
    gdb = ["cuda-gdb", "--batch", "-ex", "run", "--args"]
    for name, tool, command in [("nsys", nsys, beneath(nsys, plain["static"])), ("cuda-gdb", gdb, above(gdb, plain["static"]))]:
        found = shutil.which(tool[0])
        yield name, command if found else None, {}, None if found else "it is not installed"


def main():
    passed, declined, not_run, failures = [], {}, {}, []
    with tempfile.TemporaryDirectory() as work:
        for name, command, settings, why in neighbours(options.folder, work):
            if not command:
                not_run[name] = why
                continue
            try:
                found = check(command, settings, why)
            except subprocess.TimeoutExpired as late:
                found = [str(late)]
            failures += [f"{name}: {one}" for one in found]
            if not found and why:
                declined[name] = why
            elif not found:
                passed.append(name)
        told = subprocess.run([options.gridguard, "run", "--", "compute-sanitizer", "true"], capture_output=True, text=True)
        if shutil.which("compute-sanitizer") is None:
            not_run["compute-sanitizer"] = "it is not installed"
        elif told.returncode == 2 and SANITIZER in told.stderr:
            declined["compute-sanitizer"] = SANITIZER
        else:
            failures.append(f"compute-sanitizer: {told}")
    report = {"passed": passed, "declined": declined, "not_run": not_run, "failed": len(failures)}
    suite.finish(options.report, report, failures)


parser = argparse.ArgumentParser()
parts = parser.add_subparsers(dest="part", required=True)
parts.add_parser("build").add_argument("folder", type=os.path.abspath)
runs = parts.add_parser("run")
runs.add_argument("gridguard", type=os.path.abspath)
runs.add_argument("folder", type=os.path.abspath)
runs.add_argument("report")
options = parser.parse_args()
if options.part == "build":
    build(options.folder)
else:
    main()
