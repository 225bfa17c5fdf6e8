"""What the scripts that run programs on a device share."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

NVCC = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def has(*modules):
    """Tell whether Python can import these modules, in a process of its own."""
    return not subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], capture_output=True).returncode


def has_nvcc():
    return shutil.which(NVCC) is not None


def build(folder, name, source, *options):
    """Compile a program of CUDA, and return its path."""
    path = os.path.join(folder, name)
    pathlib.Path(path + ".cu").write_text(source)
    subprocess.run([NVCC, "-std=c++17", "-w", *options, "-o", path, path + ".cu"], check=True)
    return path


def build_for_jax(folder, source, arch):
    """Compile a library with a custom call of JAX, and return its path; None if JAX or nvcc is missing."""
    include = [sys.executable, "-c", "import jax; print(jax.ffi.include_dir())"]
    headers = subprocess.run(include, capture_output=True, text=True)
    if headers.returncode or not has_nvcc():
        return None
    return build(folder, "jax_rows.so", source, arch, "-shared", "-Xcompiler", "-fPIC", "-I", headers.stdout.strip())


def merged(folder, start):
    """Read the reports of all processes: the files in a folder whose names begin with `start`."""
    return [json.loads(path.read_text()) for path in pathlib.Path(folder).iterdir() if path.name.startswith(start)]


def query(*fields):
    """Return what nvidia-smi says about the first device."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True).stdout
    return told.split("\n")[0].split(", ")


def write(path, report):
    text = json.dumps(report, indent=1)
    pathlib.Path(path).write_text(text + "\n")
    print(text[:3000])


def finish(path, report, failures):
    """Write the report, print the failures, and exit with 1 if there are any, or if nothing passed."""
    write(path, report)
    print("\n".join(failures))
    sys.exit(1 if failures or not report.get("passed", True) else 0)
