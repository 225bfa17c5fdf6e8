"""Tests of tuned profiles and of tuning, on the guard's fake CUDA driver. Needs gcc, but no GPU and no PyTorch."""

from __future__ import annotations

import stat

import pytest
from test_launch import BACKWARD, fake, run  # noqa: F401

# A served call.
CALL = """
from gridguard import _tuning
kernels.submit(tensors, *options)
"""
# The parameters of a kernel with strides.
STRIDED = "8,8,8,8,8,4,96,4"


@pytest.fixture
def command(tmp_path):
    """Make a command `gridguard` that writes its arguments and the shapes, and runs a script."""

    def command(script):
        path = tmp_path / "gridguard"
        path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncp "$3" {tmp_path}/shapes\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return command


def test_each_shape_reports_how_it_was_chosen(run, tmp_path):  # noqa: F811
    program = CALL + """
(profile,) = _tuning.tuning().profiles
print(profile.device, profile.path.parent, profile.entries > 50, profile.notices, _tuning.tuning().misses)
for choice in _tuning.tuning().choices:
    print(choice.device, choice.shape, choice.dtype, choice.rejected, choice.matched)
"""
    (profile, choice), launches = run(program, GRIDGUARD_PROFILES=str(tmp_path / "profiles"))
    assert len(launches) == 1
    # The fake device has a built-in profile.
    assert profile == f"0 {tmp_path}/profiles True () 1"
    assert choice.startswith("0 (2, 3, 16, 64) f16 None default, because ")


def test_an_entry_also_serves_its_shape_with_strides(run):  # noqa: F811
    program = """
from gridguard import _tuning
for tensor in tensors:
    tensor.shape, tensor.stride = (15360, 5, 16, 64), lambda: STRIDES
print(kernels.submit(tensors, *options), kernels.submit(tensors, None, True, 0.125, False))
for choice in _tuning.tuning().choices:
    print("causal" in choice.variant, "strided" in choice.variant, choice.matched)
print(_tuning.tuning().misses)
"""
    # The kernel may have been edited since the device was tuned.
    kept = (
        "exact",
        "default, because it is confirmed on this device (exact)",
        "default, because the kernel was edited since it was tuned: re-tune it",
        "default, because the kernel was not tuned: tune it",
    )
    for strides, cubin in (("(5120, 1024, 64, 1)", {}), ("(5120, 64, 320, 1)", {"GRIDGUARD_FAKE_NVRTC_CUBIN": STRIDED})):
        written, launches = run(program.replace("STRIDES", strides), **cubin)
        assert written[0] == "None None" and len(launches) >= 2
        is_strided = str(bool(cubin))
        for line, causal in zip(written[1:3], ("True", "False")):
            assert line in [f"{causal} {is_strided} {matched}" for matched in kept]
        assert written[3] in ("0", "1")


def test_gradients_report_how_they_were_chosen(run, tmp_path):  # noqa: F811
    program = """
from gridguard import _tuning
print(kernels.submit_backward(gradients, None, None, False, 0.125))
for choice in _tuning.tuning().choices:
    print(choice.shape, choice.dtype, choice.variant, choice.matched)
print(_tuning.tuning().misses)
print(kernels.submit_backward(gradients, None, None, True, 0.125), _tuning.tuning().misses)
"""
    written, _ = run(program, GRIDGUARD_PROFILES=str(tmp_path / "profiles"), **BACKWARD)
    assert written[0] == "None" and written[2] == "1"
    assert written[1].startswith("(2, 3, 16, 64) f16 backward x default, ")
    assert written[3] == "None 1", "no entry serves causal gradients, so they are not measured"


def test_an_unusable_profile_is_reported(run, tmp_path):  # noqa: F811
    program = CALL + "print(_tuning.tuning().profiles[0].path)"
    profiles = tmp_path / "profiles"
    path = run(program, GRIDGUARD_PROFILES=str(profiles))[0][0]
    profiles.mkdir()
    (profiles / path.rpartition("/")[2]).write_text("no profile")
    program = CALL + "print(*_tuning.tuning().profiles[0].notices)"
    (notice,), _ = run(program, GRIDGUARD_PROFILES=str(profiles))
    assert notice.startswith(f"reject: user profile {path}: "), notice


def test_tuning_measures_missed_shapes_and_reloads_the_profiles(run, tmp_path, command):  # noqa: F811
    document = '{"profiles": ["/p/device.ron"], "tuned": [{"problem": "p", "report": {}}], "left": 0, "known": 0}'
    program = CALL + f"""
print(_tuning.tune({str(command(f"echo '{document}'"))!r}, device=0, time_limit=90))
print(_tuning.tuning())
kernels.submit([Tensor() for _ in range(4)], *options)
print(len(_tuning.tuning().choices), _tuning.tuning().misses)
print(_tuning.tune("no-such-command", device=0) if _tuning.tuning().misses == 0 else "missed again")
"""
    written, _ = run(program, GRIDGUARD_PROFILES=str(tmp_path / "profiles"))
    assert written == [
        "Tuned(profiles=(PosixPath('/p/device.ron'),), tuned=1, known=0, left=0, failures=())",
        "Tuning(profiles=(), choices=(), misses=0)",
        "1 1",
        "missed again",
    ]
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:2] == ["tune", "--shapes"]
    kernels = ["--kernel", "temporal_attention", "--kernel", "attention_backward"]
    assert arguments[3:] == ["--device", "0", *kernels, "--budget", "90s", "--format", "json"]
    shapes = (tmp_path / "shapes").read_text()
    assert 'shape: [("items", 2), ("heads", 3), ("frames", 16), ("head_dim", 64)]' in shapes
    assert "strided" not in shapes, "launch parameters are tuned for contiguous tensors"


def test_a_failed_command_keeps_the_shapes(run, tmp_path, command):  # noqa: F811
    program = CALL + f"""
import pathlib
for program in ("no-such-command", {str(command("exit 2"))!r}):
    try:
        _tuning.tune(program, device=0)
    except _native.GridguardError as error:
        text = str(error)
        print(text.replace({str(tmp_path)!r}, ""))
print(pathlib.Path(text.split("shapes are in ")[1].split(":")[0]).exists(), _tuning.tune(device=0))
"""
    written, _ = run(program, GRIDGUARD_PROFILES=str(tmp_path / "profiles"))
    assert written[0] == (
        "no command no-such-command on PATH: install it in a checkout with `cargo install --path autotune/cli`"
    )
    assert written[1].startswith("/gridguard tune failed, the shapes are in ")
    assert written[2] == "True Tuned(profiles=(), tuned=0, known=0, left=0, failures=())"
