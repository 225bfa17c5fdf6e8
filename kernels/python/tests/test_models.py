"""Tests of models of other packages, for those that are installed. PyTorch's own result is the reference."""

from __future__ import annotations

import copy
import pickle

import models
import pytest
import torch
from torch import nn

import gridguard.torch as ours
from gridguard import _models

pytestmark = pytest.mark.filterwarnings("ignore")

# Models that call PyTorch's function, and how many calls of one inference stay in PyTorch.
UNSERVED = {
    **{f"diffusers: {name}": {} for name in ("AnimateDiff", "SVD", "I2VGen-XL", "ModelScope", "Latte", "Mochi VAE")},
    # Attention over a frame has 64 keys, too many for a copy to contiguous rows.
    "diffusers: Cosmos VAE": {"strides": 2},
    **dict.fromkeys(("tabpfn: v2", "tabpfn: v2.6", "tabicl: TabICL"), {}),
}
SWIN = {f"{package}: Swin V{version}": 4 for package in ("torchvision", "timm") for version in (1, 2)}
REPLACED = {"diffusers: Mochi VAE": 3, **SWIN}


def for_each(names):
    """Run a test for the models that are installed. Without any, there is no such test."""
    found = [name for name in names if name in models.installed()]
    return pytest.mark.parametrize("name", found) if found else lambda test: None


@for_each(UNSERVED)
@torch.no_grad()
def test_install_serves_attention(on_cpu, name):
    model, call = models.make(name)
    want = call(model)
    with ours.installed():
        found = call(model)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
    assert on_cpu().served > 1 and on_cpu().pytorch == UNSERVED[name]


@for_each(REPLACED)
@torch.no_grad()
def test_replaced_models_are_served_and_equal(on_cpu, monkeypatch, name):
    # The small input has more than one chunk.
    monkeypatch.setattr(_models, "_MIN_CHUNK", 10)
    model, call = models.make(name)
    want, names = call(model), list(model.state_dict())
    assert ours.replace_attention(model) == ours.replace_attention(model) == REPLACED[name]
    with ours.installed():
        torch.testing.assert_close(call(model), want, atol=1e-5, rtol=1e-5)
    assert on_cpu().served >= REPLACED[name] and on_cpu().pytorch == {}
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(call(other), want, atol=1e-5, rtol=1e-5)
    assert ours.restore_attention(model) == REPLACED[name]
    assert ours.restore_attention(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())


@for_each(SWIN)
def test_replaced_windows_have_the_gradients_of_the_model(name):
    # In double precision only a wrong formula differs.
    model, call = models.make(name, torch.float64)
    gradients = []
    for count in (0, REPLACED[name]):
        assert count == 0 or ours.replace_attention(model) == count
        model.train().zero_grad()
        call(model).square().sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters()})
    assert all(one is not None for one in gradients[0].values())
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-7)


@for_each(SWIN)
@torch.no_grad()
def test_replaced_windows_are_right_in_half_precision(on_cpu, name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(call(model).float(), want, atol=2e-2, rtol=2e-2)
    assert on_cpu().served == REPLACED[name]


@for_each(SWIN)
@torch.no_grad()
def test_replaced_windows_compile_into_one_graph(on_cpu, name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(call(compiled), want, atol=1e-5, rtol=1e-5)
    assert on_cpu().served == REPLACED[name]


@for_each(SWIN)
def test_dropout_of_attention_stays_in_pytorch(on_cpu, name):
    model, call = models.make(name)
    ours.replace_attention(model)
    for module in model.modules():
        if "forward" in vars(module) and hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
        elif "forward" in vars(module):
            module.attn_drop.p = 0.5
    with torch.no_grad():
        first, second = (call(model.train()) for _ in range(2))
    torch.testing.assert_close(first, second)
    assert on_cpu().served == 0 and on_cpu().pytorch == {"dropout": 2 * REPLACED[name]}


# The others read the weights of the layer, too.
@for_each(["timm: Swin V1"])
@torch.no_grad()
def test_an_adapter_of_a_layer_is_kept(on_cpu, name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    seen = []
    for module in model.modules():
        if hasattr(module, "qkv"):
            module.qkv.register_forward_hook(lambda *call: seen.append(1))
    torch.testing.assert_close(call(model), want)
    assert len(seen) == REPLACED[name] and on_cpu().served == 0


@for_each(["torchvision: Swin V1", "torchvision: Swin V2"])
@torch.no_grad()
def test_symbolic_traces_have_the_function_of_torchvision(name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    traced = torch.fx.symbolic_trace(model)
    assert any("shifted_window_attention" in str(node.target) for node in traced.graph.nodes)
    torch.testing.assert_close(call(traced), want)


@for_each(["diffusers: Mochi VAE"])
def test_a_block_of_mochi_is_not_changed_for_gradients(monkeypatch, name):
    monkeypatch.setattr(_models, "_MIN_CHUNK", 10)
    monkeypatch.setattr(_models, "_in_chunks", None)
    model, call = models.make(name)
    ours.replace_attention(model)
    call(model).sum().backward()


@for_each(["torchvision: Swin V1"])
def test_another_replacement_is_kept(name):
    model, _ = models.make(name)
    module = model.features[1][0].attn
    module.forward = other = lambda x: x
    assert ours.replace_attention(model) == ours.restore_attention(model) == REPLACED[name] - 1
    assert module.forward is other


def test_other_models_are_not_changed_and_other_arguments_are_refused():
    model = nn.Linear(2, 2)
    assert ours.replace_attention(model) == ours.restore_attention(model) == 0
    for function in (ours.replace_attention, ours.restore_attention):
        with pytest.raises(TypeError, match="model is of type str: pass a torch.nn.Module"):
            function("model")
