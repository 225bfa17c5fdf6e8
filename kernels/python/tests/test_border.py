"""Tests of which implementation serves a call: borders, choices and measurements. Needs PyTorch."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch
from stand_in import compute, qkv, serve_on_cpu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import gridguard.torch as ours
from gridguard import _launch, _measure, _native, _pytorch

SHIPPED = Path(__file__).parents[3] / "bench-data" / "borders" / "nvidia-h200.ron"
CLASSES = ("forward", "forward causal", "forward masked", "training", "training causal", "training masked")
call = torch.nn.functional.scaled_dot_product_attention


def border(head_dim, rows, dtype="f32"):
    sizes = ", ".join(f'("{name}", {most})' for name, most in [("head_dim", head_dim), *zip(CLASSES, rows)])
    return f'(kernel: "attention_border", source: "", dtypes: "{dtype}", shape: [{sizes}], confirmed: ""),'


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Return a function that writes the user's profile, and opens kernels with it."""
    monkeypatch.setenv("GRIDGUARD_PROFILES", str(tmp_path))

    def opened(*entries, gpu="h200"):
        header = SHIPPED.read_text().split("entries: [")[0]
        if entries:
            (tmp_path / SHIPPED.name).write_text(f"{header}entries: [{' '.join(entries)}])")
        kernels = _native.Attention(torch)
        _native.set_stand_in(kernels, compute, gpu)
        return kernels

    return opened


def test_the_users_borders_precede_the_shipped_ones(profiles):
    kernels, shipped = profiles(border(64, [8, 16, 8, 4, 4, 4])), profiles(gpu="h100")
    assert kernels.borders(-1, "f32") == [(64, [8, 16, 8, 4, 4, 4])]
    for rows, options, slower in [(8, (False,) * 3, False), (9, (False,) * 3, True), (16, (False, True, False), False)]:
        assert kernels.is_slower(*qkv(1, 1, rows, 64), *options) is slower
    # Types without borders keep the shipped ones, which are stricter for GPUs that were not measured.
    own, other = (dict(one.borders(-1, "f16")) for one in (kernels, shipped))
    assert all(most <= own[width][at] for width, row in other.items() for at, most in enumerate(row)) and own != other
    assert kernels.notes == ["measured on NVIDIA H200"]
    assert shipped.notes == ["not measured on NVIDIA H100 80GB HBM3: stricter borders than those of NVIDIA H200"]


@pytest.mark.parametrize(
    "entries, problem",
    [
        ([border(64, [8] * 6), border(64, [16] * 6)], "two entries differ for f32 and head dimension 64: remove one"),
        ([border(64, [8, 8, 8, 8, 8, 600])], "names our kernels for training masked, 600 rows of f32 and head dimension 64"),
        ([border(1000, [8] * 6)], "names our kernels for forward, 8 rows of f32 and head dimension 1000"),
        ([border(64, [8] * 6, "f64")], "has an unknown type"),
        ([border(64, [8] * 5)], "has an unknown type, class or size, or lacks one"),
    ],
)
def test_contradictory_and_impossible_borders_are_not_used_and_noted(profiles, entries, problem):
    shipped, kernels = profiles(), profiles(*entries)
    assert problem in kernels.notes[-1] and kernels.notes[-1].startswith("the user's profile is not used here: ")
    assert kernels.borders(-1, "f32") == shipped.borders(-1, "f32") != []


@pytest.fixture
def measuring(profiles, monkeypatch, tmp_path):
    """Serve CPU tensors with the borders of a GPU that was not measured, and measure. Return the kernels and the profile's path."""
    serve_on_cpu(monkeypatch)
    kernels = profiles(gpu="l4")
    monkeypatch.setattr(_launch, "kernels", kernels)
    monkeypatch.setattr(_measure, "_paused_until", 0.0)
    ours.install(measure=True)
    yield kernels, tmp_path / "nvidia-l4.ron"
    ours.uninstall()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("is_faster", [False, True])
def test_a_shape_that_no_entry_decides_is_measured_once_and_kept(measuring, profiles, monkeypatch, is_faster, grad):
    tensors, calls, (kernels, path) = qkv(1, 2, 100, 72, dtype=torch.float16, requires_grad=grad), [], measuring
    times = [5] * 9, [9 if is_faster else 3] * 9

    def measure(*given):
        calls.append(given)
        assert _measure_once(*given) is not None
        return times

    _measure_once = _measure.measure
    monkeypatch.setattr(_measure, "measure", measure)
    for _ in range(2):
        call(*tensors)
    kind = (False, False, grad)
    assert len(calls) == 1 and kernels.is_slower(*tensors, *kind) is not is_faster
    # No sample counts as a call.
    stats = ours.stats()
    assert (stats.served, stats.backward) == (2 * is_faster, 0) and stats.pytorch == ({} if is_faster else {"slower": 2})
    # Another process reads the answer. Another version of either implementation would not.
    assert profiles(gpu="l4").is_slower(*tensors, *kind) is not is_faster
    text = path.read_text()
    assert f'source: "gridguard {_native.__version__}, PyTorch {torch.__version__}", variant: "{CLASSES[3 * grad]}"' in text
    path.write_text(re.sub("gridguard [^,]*, PyTorch", "gridguard 0.0.1, PyTorch", text))
    assert profiles(gpu="l4").is_slower(*tensors, *kind)
    path.write_text(text.replace('("queries", 100)', '("queries", 600)').replace('("ours", 0)', '("ours", 1)'))
    assert f"names our kernels for {CLASSES[3 * grad]}, 600 rows" in profiles(gpu="l4").notes[-1]


def test_nothing_is_kept_if_it_is_no_time_to_measure_or_a_measurement_fails(measuring, monkeypatch):
    tensors, (kernels, path) = qkv(1, 2, 100, 64), measuring
    monkeypatch.setattr(_measure, "measure", lambda *given: None)
    call(*tensors)
    monkeypatch.setattr(_measure, "measure", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call(*tensors)
    assert kernels.is_slower(*tensors, False, False, False) and not path.exists()
    # Shapes that our kernels cannot serve are PyTorch's without a measurement, and so are all after `install()`.
    call(*qkv(1, 1, 1000, 8))
    ours.install()
    call(*tensors)


def short(*given):
    raise torch.cuda.OutOfMemoryError("short")


@pytest.mark.parametrize("fail", [short, lambda *given: [][0]])
def test_a_measurement_that_fails_is_not_repeated_at_once(measuring, monkeypatch, fail):
    tensors, attempts = qkv(1, 2, 100, 64), []
    monkeypatch.setattr(_measure, "_times", lambda *given: attempts.append(1) or fail())
    expected = _pytorch.unserved(*tensors)
    for _ in range(3):
        torch.testing.assert_close(call(*tensors), expected)
    assert len(attempts) == 1 and not measuring[1].exists()


def test_what_slows_pytorch_only_in_this_program_is_not_kept(measuring):
    tensors = qkv(1, 2, 100, 64)
    with sdpa_kernel(SDPBackend.MATH):
        call(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        call(*tensors)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not measuring[1].exists()
    call(*tensors)
    assert measuring[1].exists()


def test_nothing_is_measured_in_a_job_and_no_checkpoint_sees_a_measurement(measuring):
    tensors, (kernels, path) = qkv(1, 2, 100, 64, requires_grad=True), measuring
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        call(*tensors)
    finally:
        torch.distributed.destroy_process_group()
    assert not path.exists() and not kernels.measures
    kernels.measures = True
    checkpoint(lambda *inputs: call(*inputs).sin(), *tensors, use_reentrant=False).sum().backward()
    assert "attention_choice" in path.read_text()


def test_threads_get_one_answer(measuring, monkeypatch):
    tensors, begun, go, calls = qkv(1, 2, 100, 64), threading.Event(), threading.Event(), []

    def measure(*given):
        calls.append(given)
        begun.set()
        assert go.wait(60)
        return [1] * 9, [2] * 9

    monkeypatch.setattr(_measure, "measure", measure)
    first = threading.Thread(target=call, args=tensors)
    first.start()
    assert begun.wait(60)
    call(*tensors)
    call(*qkv(1, 2, 101, 64))
    go.set()
    first.join(60)
    call(*tensors)
    assert len(calls) == 1 and not measuring[0].is_slower(*tensors, False, False, False)
