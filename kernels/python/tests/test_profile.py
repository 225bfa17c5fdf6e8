"""Tests of `python -m gridguard.torch`, on the CPU. Needs PyTorch."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import torch.nn.functional as F
from stand_in import qkv

import gridguard.torch as ours
from gridguard import _attention, _native, _profile, _stats

PROGRAM = f"""
import torch
import torch.nn.functional as F

def attend(*sizes, dtype=torch.float32, **options):
    tensor = torch.randn(sizes, dtype=dtype)
    return F.scaled_dot_product_attention(tensor, tensor, tensor, **options)

class Steps:
    @staticmethod
    def run():
        layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        hidden = torch.randn(5, 16, 64)
        for _ in range(3):
            layer(hidden, hidden, hidden, need_weights=False)
        attend(2, 2, 6, 8, is_causal=True, dtype=torch.float64)
        attend(2, 2, {_native.MAX_LENGTH + 1}, 8)
        compiled = torch.compile(lambda: attend(2, 2, 6, 8, attn_mask=torch.ones(6, 6, dtype=torch.bool)))
        with torch.no_grad():
            compiled()

def fail():
    attend(2, 2, 6, 8)
    raise KeyError("a cause")

number = 1
"""


@pytest.fixture
def command(tmp_path):
    """Return a function that runs the command in a folder with a program."""
    (tmp_path / "steps.py").write_text(PROGRAM)

    def run(*arguments):
        line = [sys.executable, "-m", "gridguard.torch", *arguments]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def cells(report):
    """Return the rows of a report below its heading, without the columns of times."""
    lines = report.partition("\n\n")[0].splitlines()
    return [re.split(r" {2,}", line) for line in lines[1:]]


def test_a_program_is_reported_without_a_gpu(command, tmp_path):
    ran = command("steps:Steps.run", "--html", "report.html")
    assert ran.returncode == 0, ran.stderr
    lines = PROGRAM.splitlines()
    attend, layer = (
        next(at for at, line in enumerate(lines, 1) if call in line) for call in ("return F.", "layer(hidden")
    )
    attend = f"steps.py:{attend} attend"
    found = {(row[0], row[2], *row[3:]) for row in cells(ran.stdout)}
    assert found == {
        ("3", "served", "(5, 4, 16, 16) float32 with gradients", f"steps.py:{layer} run"),
        ("1", "dtype", "(2, 2, 6, 8) float64 causal", attend),
        ("1", "length", f"(2, 2, {_native.MAX_LENGTH + 1}, 8) float32", attend),
        ("1", "served", "(2, 2, 6, 8) float32 mask (6, 6) bool", attend),
    }
    assert sum(float(row[1].removesuffix(" %")) for row in cells(ran.stdout)) == pytest.approx(100, abs=0.3)
    summary = ran.stdout.partition("\n\n")[2]
    assert summary.startswith("6 calls of attention, 4 served: ") and "not measured, because there is no GPU" in summary
    assert f"length at {attend}: (2, 2, {_native.MAX_LENGTH + 1}, 8)" in summary
    assert (tmp_path / "report.html").read_text().count("<tr>") == 5


def test_a_failure_is_the_programs_and_the_report_remains(command):
    ran = command("steps:fail")
    assert ran.returncode == 1 and "KeyError: 'a cause'" in ran.stderr
    assert ran.stdout.count("served") == 2 and "1 calls of attention" in ran.stdout


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("steps", "'steps' is no MODULE:FUNCTION, for example train:main"),
        ("steps:", "'steps:' is no MODULE:FUNCTION"),
        ("unknown:main", "No module named 'unknown'"),
        ("steps:unknown", "module 'steps' has no attribute 'unknown'"),
        ("steps:number", "steps:number is a int: pass a function"),
    ],
)
def test_a_wrong_function_is_an_error_of_usage(tmp_path, monkeypatch, capsys, function, message):
    (tmp_path / "steps.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    # The command sets it.
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    with pytest.raises(SystemExit) as ended:
        _profile.main([function])
    printed = capsys.readouterr()
    assert ended.value.code == 2 and message in printed.err and printed.out == ""


def test_both_paths_are_measured_on_the_tensors_of_a_call(on_cpu):
    runs, tensors = [], qkv(2, 3, 6, 8)

    def timer(run):
        runs.append(run())
        return 500.0 if len(runs) % 2 else 100.0

    with _profile.Recorder(timer) as recorder:
        for requires_grad in (False, False, True):
            query = tensors[0].detach().requires_grad_(requires_grad)
            out = F.scaled_dot_product_attention(query, *tensors[1:])
            assert out.requires_grad is requires_grad
        F.scaled_dot_product_attention(*tensors, dropout_p=0.5)
    plain, dropout, trained = sorted(recorder.sites(), key=lambda site: site.call)
    assert (plain.calls, plain.pytorch, plain.kernels, plain.gain) == (2, 500.0, 100.0, 800.0)
    assert trained.call == plain.call + " with gradients" and trained.gain == 400.0
    assert (dropout.reason, dropout.pytorch, dropout.gain) == ("dropout", None, None)
    assert len(runs) == 4, "a site is measured once"
    report = _profile.text(recorder.sites(), True)
    assert "1.50 ms by PyTorch, 0.30 ms by the kernels" in report and "0.80" in report


def test_a_path_that_fails_is_reported(on_cpu):
    def timer(run):
        if not failures:
            failures.append(1)
            raise RuntimeError("CUDA error: invalid configuration argument\nmore")
        return 3.0

    failures = []
    with _profile.Recorder(timer) as recorder:
        F.scaled_dot_product_attention(*qkv(2, 3, 6, 8))
    (site,) = recorder.sites()
    assert site.gain is None and site.kernels == 3.0
    report = _profile.text([site], True)
    assert f"PyTorch failed at {site.place}: CUDA error: invalid configuration argument" in report


def test_recording_ends_and_changes_no_numbers():
    serve, count, tensors = _attention.serve_uncommon, _stats.count, qkv(2, 3, 6, 8)
    expected = F.scaled_dot_product_attention(*tensors)
    with pytest.raises(ZeroDivisionError), _profile.Recorder(None) as recorder:
        assert torch.equal(F.scaled_dot_product_attention(*tensors), expected)
        assert torch.equal(ours.scaled_dot_product_attention(*tensors), expected)
        with torch.inference_mode():
            assert torch.equal(F.scaled_dot_product_attention(*tensors), expected)
        1 / 0  # noqa: B018
    assert (_attention.serve_uncommon, _stats.count) == (serve, count)
    F.scaled_dot_product_attention(*tensors)
    assert sum(site.calls for site in recorder.sites()) == 3
    assert {site.reason for site in recorder.sites()} == {None}


def test_a_page_has_a_picture_and_no_markup_of_others():
    sites = [
        _profile.Site('<script>"&', "</td>", None, 100, None, 3, 5.0, 2.0),
        _profile.Site("other", "call", "<b>", 50, "</p><i>", 1),
    ]
    text = _profile.page(sites, True)
    assert all(tag not in text for tag in ("<script>", "<b>", "</td></td>", "<i>"))
    picture = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    widths = [float(bar.get("width")) for bar in picture.iter("rect")]
    assert widths == pytest.approx([400, 400 / 6], abs=0.1)
    assert [bar.text for bar in picture.iter("text")] == ['<script>"&: served', "other: <b>"]
    assert "http" not in text and _profile.page([], False).count("<tr>") == 1


def test_a_model_of_diffusers_is_recorded():
    pytest.importorskip("diffusers")
    import test_block

    model = test_block.unet()
    with _profile.Recorder(None) as recorder:
        found = test_block.run(model)
    assert torch.equal(found, test_block.run(model))
    sites = recorder.sites()
    frames = [site for site in sites if site.call.startswith(f"(64, 2, {test_block.FRAMES}, ")]
    assert frames and {site.reason for site in sites} == {None}
    assert all("attention_processor.py" in site.place for site in sites)
