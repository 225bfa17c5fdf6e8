"""Tests of checks, explanations and limits. Needs neither PyTorch nor a GPU."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import gridguard
from gridguard import Batch, GridguardError, UnavailableError, _native

ROOT = Path(__file__).parents[3]


def test_the_examples_of_the_documentation_run():
    assert doctest.testmod(gridguard) == doctest.TestResults(failed=0, attempted=4)
    for name, examples in (("kernels/python/README.md", 4), ("docs/pytorch.md", 9)):
        found = doctest.testfile(str(ROOT / name), module_relative=False)
        assert found == doctest.TestResults(failed=0, attempted=examples), name


def test_watching_says_how_to_start_a_program_that_is_not_watched():
    with pytest.raises(UnavailableError, match=r"start it with `gridguard run -- python3"), gridguard.watching():
        pass


def test_the_functions_for_pytorch_are_found_without_an_import_of_their_module():
    with pytest.raises(AttributeError, match=r"no 'install'; .* in gridguard\.torch"):
        gridguard.install()
    if importlib.util.find_spec("torch"):
        assert callable(gridguard.torch.install)
    else:
        with pytest.raises(ImportError, match=r"needs PyTorch .*: pip install torch"):
            gridguard.torch.install()


def test_limits_have_the_fields_of_the_commands_document():
    names = {field.name for field in dataclasses.fields(gridguard.DeviceLimits)}
    assert names == json.loads(_native.limits("h200", None)).keys()
    h200 = gridguard.limits("h200")
    assert (h200.name, h200.compute_capability, h200.max_grid[1]) == ("NVIDIA H200", (9, 0), 65_535)
    assert gridguard.limits().max_grid == (2_147_483_647, 65_535, 65_535)
    assert h200 in gridguard.gpus()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver")
def test_a_device_without_a_driver_is_an_error_with_the_complete_report():
    with pytest.raises(GridguardError, match="no CUDA driver library found") as error:
        gridguard.limits(device=0)
    assert "Install the driver" in str(error.value)


def test_a_launch_that_is_too_large_is_rejected_or_split():
    grid, block = (1, 76_800, 1), (128, 1, 1)
    rejected = gridguard.check(grid, block, gpu="h200")
    assert not rejected and rejected.legality == "rejected" and rejected.plan is None
    [violation] = rejected.violations
    assert (violation.rule, violation.requested, violation.limit) == ("grid-dim-y", 76_800, 65_535)

    split = gridguard.check(grid, block, batch=Batch("y", 15_360, blocks_per_item=5))
    assert split and split.legality == "chunked"
    plan = gridguard.plan(grid, block, Batch("y", 15_360, blocks_per_item=5))
    assert plan == split.plan and len(plan) == 2
    assert plan.launches[1] == gridguard.Launch(start=7680, items=7680, grid=(1, 38_400, 1))
    many = gridguard.plan((1, 1_000_000_000), block, Batch("y", 1_000_000_000))
    assert len(many) > len(many.listed) == 4096
    with pytest.raises(GridguardError, match=f"the plan has {len(many)} launches, of which 4096 are listed"):
        many.launches  # noqa: B018
    with pytest.raises(GridguardError, match="grid.y is 76800 blocks"):
        gridguard.plan(grid, block)
    assert gridguard.check(76_800, 128).legality == "legal"


def test_every_argument_of_a_check_reaches_the_request():
    rules = {violation.rule for violation in gridguard.check((1, 70_000), 2048, gpu="t4").violations}
    assert rules == {"grid-dim-y", "block-dim-x", "threads-per-block"}
    large = gridguard.check(1, 32, gpu="h200", dynamic_shared_bytes=100_000)
    assert large.legality == "legal" and large.opts_in
    assert not gridguard.check(1, 32, gpu="h200", dynamic_shared_bytes=100_000, opt_in=False)
    assert not gridguard.check(1, 32, gpu="t4", cluster=2)
    assert not gridguard.check(1, 32, gpu="h200", parameter_bytes=40_000)
    assert not gridguard.check(1, 512, gpu="h200", kernel={"max_threads_per_block": 256})
    assert not gridguard.check(1_000_000, 32, gpu="h200", cooperative=True)
    assert not gridguard.check(1, 32, gpu="t4", dependent=True)


def test_a_message_a_number_and_a_log_are_explained():
    explanation = gridguard.explain("CUDA error: invalid configuration argument")
    [failure] = explanation.failures
    assert (failure.title, failure.code, failure.confidence) == ("cudaErrorInvalidConfiguration", 9, "generic")
    assert str(explanation).startswith("cudaErrorInvalidConfiguration (9)")
    sticky = gridguard.explain("700").failures[0]
    assert sticky.is_sticky and sticky.may[0].fault == "unknown"
    memory = gridguard.explain("Amount of dynamic shared memory exceeds device limit (100.000 KiB > 48.000 KiB).").failures[0]
    assert (memory.memory, memory.fault, memory.captures["limit"]) == ("shared", "launch", "48.000 KiB")
    assumed = gridguard.explain("misaligned address")
    assert assumed.failures[0].title == "CUDA_ERROR_MISALIGNED_ADDRESS"
    log = gridguard.explain("epoch 1\nCUDA error: an illegal memory access was encountered\nepoch 2\n")
    assert (log.lines, log.failures[0].evidence[0].line) == (3, 2)
    nothing = gridguard.explain("all is well", gpu="h200")
    assert not nothing and str(nothing) == "no failure recognized\n"


def test_the_commands_report_is_read_and_its_failures_are_errors(tmp_path):
    def command(text: str) -> str:
        path = tmp_path / "gridguard"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return os.fspath(path)

    finding = {"subject": "driver", "level": "bad", "what": "no response", "remedy": "reboot"}
    document = json.dumps({"good": 0, "findings": [finding]})
    report = gridguard.doctor(command(f"echo '{document}'; exit 1"))
    assert not report and report.findings == (gridguard.Problem(**finding),)
    assert gridguard.doctor(command("echo '{\"findings\": []}'"))
    for text in ("echo no JSON", "exit 3", "echo '[]'", "echo '{}'"):
        with pytest.raises(GridguardError, match="doctor failed"):
            gridguard.doctor(command(text))
    with pytest.raises(GridguardError, match="cargo install --path autotune/cli"):
        gridguard.doctor("no-such-command")


def test_the_wheels_command_comes_before_one_on_the_path(tmp_path):
    package = Path(shutil.copytree(Path(gridguard.__file__).parent, tmp_path / "packages" / "gridguard"))

    def command(folder: Path, text: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "gridguard").write_text(f"#!/bin/sh\necho {text} $@\nexit 3\n")
        (folder / "gridguard").chmod(0o700)

    def run() -> tuple[int, str]:
        search = {"PATH": str(tmp_path / "path"), "PYTHONPATH": str(package.parent), "HOME": str(tmp_path)}
        words = [sys.executable, "-m", "gridguard", "limits", "h200"]
        ran = subprocess.run(words, env=search, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    if os.access(Path(sysconfig.get_path("scripts")) / "gridguard", os.X_OK):
        # The installed wheel has one.
        status, text = run()
        assert status == 0 and "NVIDIA H200" in text
        return
    status, text = run()
    assert status == 1 and text.startswith("gridguard: no command gridguard on PATH")
    command(tmp_path / "path", "path")
    assert run() == (3, "path limits h200\n")
    command(package.parent / "bin", "wheel")
    assert run() == (3, "wheel limits h200\n")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            'import platform; modules["gridguard._native"] = None; platform.libc_ver = lambda: ("", ""); import gridguard',
            "needs Linux with glibc 2.17 or later",
        ),
        ('modules["torch"] = None; import gridguard.torch', "needs PyTorch 2.4 or later: pip install"),
        (
            'import types; modules["torch"] = types.SimpleNamespace(__version__="2.3.1+cu121"); import gridguard.torch',
            "this is 2.3.1",
        ),
    ],
)
def test_what_the_package_needs_is_named(program, message):
    words = [sys.executable, "-c", f"from sys import modules; {program}"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and message in ran.stderr, ran.stderr
