#!/usr/bin/env python3
"""Lays out a wheel of gridguard as a repository that the package `kernels` of Hugging Face loads.

    hub.py WHEEL FOLDER

`kernels.get_local_kernel(FOLDER)` then returns the functions of `gridguard.torch`. The kernel imports its own files
by relative names only. Its operators have a name of their own, so that it and an installed gridguard may both be
loaded. A kernel has a variant for each architecture of the CPU and each CUDA version, which are all alike here: the
native module needs no CUDA library.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

# The oldest versions of PyTorch and of each CUDA release that the package supports.
TORCH, CUDA = "24", ("120", "130")
# NVRTC compiles the kernels for any device from the first on.
ARCHITECTURES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX"]
# What a kernel may not contain, by what replaces it. `{id}` is the name of its operators.
CHANGES = (
    (r"^(\s*)from gridguard import ", r"\1from . import "),
    (r"^(\s*)from gridguard\.(\w+) import ", r"\1from .\2 import "),
    (r'import_module\("gridguard\.', 'import_module(__name__ + ".'),
    (r"\btorch\.ops\.gridguard\b", "torch.ops.{id}"),
    (r'"gridguard::', '"{id}::'),
    (r'Library\("gridguard"', 'Library("{id}"'),
)
LEFT_OVER = re.compile(r"^\s*(from|import) gridguard\b", re.MULTILINE)
# Nothing imports these in a kernel.
UNUSED = {"__main__.py", "_start.py"}
INIT = '''"""Attention for PyTorch over short sequences, at any batch size."""

from .gridguard.torch import *  # noqa: F403
from .gridguard.torch import __all__  # noqa: F401
'''


def lay_out(package: Path, architecture: str, folder: Path) -> None:
    """Write the variants of a package for an architecture of the CPU."""
    files = {path.relative_to(package): path.read_bytes() for path in sorted(package.rglob("*")) if path.is_file()}
    files = {name: data for name, data in files.items() if "__pycache__" not in name.parts and name.name not in UNUSED}
    digest = hashlib.sha256(b"".join(str(name).encode() + data for name, data in files.items()))
    name_of_kernel = f"_gridguard_cuda_{digest.hexdigest()[:7]}"
    written = {Path("__init__.py"): INIT.encode()}
    for name, data in files.items():
        if name.suffix == ".py":
            data = relative(name, data.decode(), name_of_kernel).encode()
        written["gridguard" / name] = data
    metadata = {
        "name": "gridguard",
        "id": name_of_kernel,
        "version": 0,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ARCHITECTURES},
        "digest": {
            "algorithm": "sha256",
            "files": {
                str(name): base64.b64encode(hashlib.sha256(data).digest()).decode() for name, data in written.items()
            },
        },
    }
    for version in CUDA:
        variant = folder / "build" / f"torch-stable-abi{TORCH}-cu{version}-{architecture}-linux"
        if variant.exists():
            shutil.rmtree(variant)
        for name, data in written.items():
            (variant / name).parent.mkdir(parents=True, exist_ok=True)
            (variant / name).write_bytes(data)
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


def relative(name: Path, text: str, name_of_kernel: str) -> str:
    """Return a module with relative imports and the kernel's own operators. Raise ValueError if that is not all."""
    for pattern, replacement in CHANGES:
        text = re.sub(pattern, replacement.replace("{id}", name_of_kernel), text, flags=re.MULTILINE)
    # Examples in documentation are indented, and begin with a prompt or follow a colon.
    code = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    left = LEFT_OVER.search(code)
    if left is not None:
        raise ValueError(f"{name} has `{left.group().strip()}`, which a kernel must not import by this name")
    return text


def main() -> int:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("wheel", type=Path)
    cli.add_argument("folder", type=Path)
    options = cli.parse_args()
    architecture = next((one for one in ("x86_64", "aarch64") if options.wheel.stem.endswith(one)), None)
    if architecture is None:
        print(f"{options.wheel.name} is no wheel for x86_64 or aarch64", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as unpacked:
        shutil.unpack_archive(options.wheel, unpacked, "zip")
        lay_out(Path(unpacked) / "gridguard", architecture, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
