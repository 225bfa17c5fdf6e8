"""Tests of `GRIDGUARD_INSTALL` in an environment with the files of the wheel. Needs PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import gridguard

PACKAGES = Path(gridguard.__file__).parents[1]
PLAIN = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "GRIDGUARD_INSTALL")}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of a new environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (site / "gridguard").symlink_to(PACKAGES / "gridguard")
    assert not list(PACKAGES.glob("gridguard*.pth")), "the wheel has no file that each program runs"
    assert change(folder / "bin/python", "install-start") == site / "gridguard-start.pth"
    # PyTorch and its dependencies may be in several folders.
    (site / "zz-torch.pth").write_text("\n".join(filter(None, sys.path)))
    return folder / "bin/python"


def change(python, what):
    changed = subprocess.run([python, "-m", "gridguard", what], env=PLAIN, capture_output=True, text=True, check=True)
    return Path(changed.stdout.strip())


def run(python, program, value=None, cwd=None):
    environment = PLAIN if value is None else {**PLAIN, "GRIDGUARD_INSTALL": value}
    ran = subprocess.run(
        [python, "-c", program], env=environment, cwd=cwd, capture_output=True, text=True, check=True, timeout=300
    )
    return ran.stdout, ran.stderr


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_imported_by_default(python, value):
    program = "import sys; print([name for name in sys.modules if 'gridguard' in name], sys.meta_path[0])"
    out, errors = run(python, program, value)
    assert out.startswith("[] ") and "gridguard" not in out + errors


def test_a_program_that_imports_pytorch_is_served(python):
    program = """
import sys
assert not {"torch", "gridguard.torch"} & sys.modules.keys()
import torch
torch.nn.functional.scaled_dot_product_attention(*[torch.zeros(2, 5, 16, 64)] * 3)
print(sys.modules["gridguard._install"]._is_active)
assert type(torch.__spec__.loader).__name__ == "SourceFileLoader"
assert "exec_module" not in vars(torch.__spec__.loader)
"""
    assert run(python, program, "1") == ("True\n", "")


def test_xformers_is_served_wherever_it_is_imported(python, tmp_path):
    package = tmp_path / "xformers/ops"
    package.mkdir(parents=True)
    (tmp_path / "xformers/__init__.py").touch()
    (package / "__init__.py").write_text("import torch\ndef memory_efficient_attention(): pass\n")
    program = "import xformers.ops; print(type(xformers.ops.memory_efficient_attention).__name__)"
    assert run(python, program, "1", tmp_path) == ("partial\n", "")
    assert run(python, program, "0", tmp_path) == ("function\n", "")


def test_a_program_goes_on_if_gridguard_cannot_be_installed(python, tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.1.0'\n")
    out, errors = run(python, "import torch; print(torch.__version__)", "1", tmp_path)
    assert out == "2.1.0\n"
    assert errors == (
        "GRIDGUARD_INSTALL: gridguard is not installed in this process: "
        "gridguard.torch needs PyTorch 2.4 or later, this is 2.1.0\n"
    )


def test_an_error_of_pytorchs_import_is_not_changed(python, tmp_path):
    (tmp_path / "torch.py").write_text("raise KeyError('broken')\n")
    program = """
for _ in range(2):
    try:
        import torch
    except KeyError as error:
        print(error)
"""
    assert run(python, program, "1", tmp_path) == ("'broken'\n" * 2, "")


def test_the_file_goes_as_it_came(python):
    file = change(python, "uninstall-start")
    assert not file.exists() and change(python, "install-start") == file and file.is_file()


def test_a_folder_whose_files_python_does_not_read_is_refused():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    start = [sys.executable, "-m", "gridguard", "install-start"]
    refused = subprocess.run(start, env=environment, capture_output=True, text=True)
    expected = f"gridguard: Python reads no file at its start in {PACKAGES}: install gridguard into an environment\n"
    assert (refused.returncode, refused.stderr) == (1, expected)


def test_another_value_is_refused_in_words(python):
    out, errors = run(python, "import sys; print('torch' in sys.modules)", "yes")
    assert out == "False\n"
    assert errors == "GRIDGUARD_INSTALL is 'yes', so gridguard is not installed in this process: set it to 1\n"
