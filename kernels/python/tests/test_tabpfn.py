"""Tests of `replace_attention` with TabPFN's own models. Its own result is the reference."""

from __future__ import annotations

import importlib

import models
import pytest
import torch
from test_models import TABPFN, for_each
from torch import nn

import gridguard.torch as ours
from gridguard import _tabpfn

pytestmark = pytest.mark.filterwarnings("ignore")

OF_FEATURES = "per_sample_attention_between_features"


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """Let small tables have several chunks, and return the sizes of the chunks."""
    sizes = []
    norm_sum = _tabpfn._norm_sum

    def noted(norm, added, *others):
        sizes.append(len(added))
        norm_sum(norm, added, *others)

    monkeypatch.setattr(_tabpfn, "_CELLS", 70)
    monkeypatch.setattr(_tabpfn, "_norm_sum", noted)
    return sizes


def block_of(name, dtype=torch.float32):
    """Make a model, and return its first block and a state for it."""
    model, _ = models.make(name, dtype)
    block = model.blocks[0] if hasattr(model, "blocks") else next(one for one in model.modules() if is_block(one))
    return block, torch.randn(1, 50, 7, 48, dtype=dtype)


def is_block(module):
    return type(module).__name__ == "TabPFNBlock"


@for_each(TABPFN)
@pytest.mark.parametrize("known", [1, 30, 50])
@pytest.mark.parametrize("factor", [None, 4])
@torch.no_grad()
def test_a_table_runs_in_chunks_of_its_rows(on_cpu, runs, name, known, factor):
    block, state = block_of(name)
    want, _ = block([state.clone()], known, factor)
    kept = state.clone()
    assert ours.replace_attention(block) == 1
    container = [state]
    found, cached = block(container, known, factor)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
    assert cached is None and container == [] and max(runs) == 70
    # Rows of seven cells: five chunks of ten rows for features and for the MLP.
    assert runs[:5] == runs[-5:] == [70] * 5 and sum(runs) == 3 * state[0, ..., 0].numel()
    # Without a factor the package computes new tensors.
    assert factor is not None or torch.equal(state, kept)
    assert on_cpu().pytorch == {} and on_cpu().copied == 0


@for_each(TABPFN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("state_dtype", [torch.float32, None])
@torch.no_grad()
def test_types_are_those_of_the_package_under_autocast(on_cpu, runs, name, dtype, state_dtype):
    block, state = block_of(name)
    exact, _ = block(state, 30, None)
    state = state.to(state_dtype or dtype)
    with torch.autocast("cpu", dtype):
        want, _ = block(state, 30, None)
        ours.replace_attention(block)
        found, _ = block(state, 30, None)
    # On a GPU some norms of bf16 return f32.
    assert found.dtype is want.dtype and bool(runs) == (state.dtype is not torch.bfloat16)
    error, own = ((one - exact).norm() / exact.norm() for one in (found, want))
    assert error < 1.2 * own + 1e-4
    assert on_cpu().pytorch == {}


@for_each(TABPFN)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_has_the_gradients_of_the_package(on_cpu, runs, name, autocast):
    block, state = block_of(name)
    state.requires_grad_()

    def gradients():
        block.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, autocast):
            out, _ = block([state], 30, None)
        [of_state] = torch.autograd.grad(out.float().cos().sum(), state, retain_graph=True)
        out.float().cos().sum().backward(inputs=list(block.parameters()))
        return [of_state, *(one.grad for one in block.parameters())]

    want = gradients()
    ours.replace_attention(block)
    for gradient, one in zip(gradients(), want, strict=True):
        assert gradient.dtype is one.dtype
        assert (gradient - one).norm() <= (2e-2 if autocast else 1e-5) * one.norm()
    assert runs == [] and on_cpu().pytorch == {} and on_cpu().backward > 0


class Adapter(nn.Linear):
    """Stands for LoRA and other layers that compute more than their weight."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked(block):
    block.per_column_attention_between_cells.q_projection.register_forward_hook(lambda *call: 2 * call[-1])


def adapted(block):
    block.mlp[0].__class__ = Adapter


def with_bias(block):
    block.mlp[-1].bias = nn.Parameter(torch.randn(48))


def offloaded(block):
    attention = getattr(block, OF_FEATURES)
    attention.forward = lambda x: 2 * type(attention).forward(attention, x)


@for_each(["tabpfn: v2.6"])
@pytest.mark.parametrize("change", [hooked, adapted, with_bias, offloaded])
@torch.no_grad()
def test_a_changed_block_runs_itself(runs, name, change):
    block, state = block_of(name)
    plain, _ = block(state, 30, None)
    change(block)
    want, _ = block(state, 30, None)
    ours.replace_attention(block)
    found, _ = block(state, 30, None)
    torch.testing.assert_close(found, want, atol=0, rtol=0)
    assert runs == [] and not torch.allclose(found, plain)


@for_each(["tabpfn: v2.6"])
@pytest.mark.parametrize("known", [0, 51])
@torch.no_grad()
def test_odd_tables_run_in_the_package(runs, name, known):
    block, state = block_of(name)
    ours.replace_attention(block)

    def result(sizes, count):
        try:
            return block(state.expand(sizes), count, None)[0].shape
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            return str(error)

    calls = [((1, 50, 7, 48), known), ((2, 50, 7, 48), 30)]
    found = [result(*call) for call in calls]
    ours.restore_attention(block)
    assert found == [result(*call) for call in calls] and runs == []


@for_each(["tabpfn: v2.6"])
def test_transforms_and_compiled_code_see_the_package(runs, name):
    block, state = block_of(name, torch.float64)
    want = torch.autograd.functional.vjp(lambda x: block(x, 30, None)[0], state, state)[1]
    ours.replace_attention(block)
    out, pull = torch.func.vjp(lambda x: block(x, 30, None)[0], state)
    torch.testing.assert_close(pull(state)[0], want)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(block, backend="eager")
        torch.testing.assert_close(compiled(state, 30, None)[0], out)
    assert runs == []


class Backend:
    """A backend of a user for attention over rows."""

    name = "other"
    seen: list = []

    def is_preferred(self, spec):
        return spec.seq_len_kv == 30

    def run(self, q_BSHD, k_BSJD, v_BSJD, **others):  # noqa: N803
        self.seen.append(tuple(q_BSHD.shape))
        query, key, value = (one.transpose(1, 2) for one in (q_BSHD, k_BSJD, v_BSJD))
        return nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2)


@for_each(["tabpfn: v2.6"])
@torch.no_grad()
def test_a_backend_that_the_user_registered_attends_over_rows(name):
    block, state = block_of(name)
    want, _ = block(state, 30, None)
    registry = importlib.import_module("tabpfn.architectures.shared.attention_backends")
    ours.replace_attention(block)
    registry.register_attention_backend(Backend())
    try:
        found, _ = block(state, 30, None)
    finally:
        registry.unregister_attention_backend("other")
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
    # Three chunks of known rows, and two of others.
    assert Backend.seen == [(7, 10, 3, 16)] * 5


@for_each(["tabpfn: v2.6"])
@torch.no_grad()
def test_a_batch_that_pytorch_refuses_runs_in_the_slices_of_the_package(monkeypatch, name):
    block, state = block_of(name)
    want, _ = block(state, 30, None)
    ours.replace_attention(block)
    monkeypatch.setattr(_tabpfn._pytorch, "MAX_SLICE", 20)
    found, _ = block(state, 30, None)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


@for_each(["tabpfn: v2.6"])
def test_a_state_that_a_backward_pass_needs_is_not_overwritten_unnoticed(name):
    block, state = block_of(name)
    ours.replace_attention(block)
    leaf = torch.ones((), requires_grad=True)
    product = leaf * state
    with torch.no_grad():
        block(state, 30, 4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        block(torch.randn(1, 50, 7, 48), 30, 4)
