"""Tests of `replace_attention` with the models of the packages that are installed, and with other versions of them."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import sys

import models
import pytest
import torch
from stand_in import replicate
from test_models import SWIN, TABPFN, for_each
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import gridguard.torch as ours
from gridguard import _models

pytestmark = pytest.mark.filterwarnings("ignore")

COSMOS, MOCHI = "diffusers: Cosmos VAE", "diffusers: Mochi VAE"
# The modules of each model.
REPLACED = {**dict.fromkeys(SWIN, 4), COSMOS: 10, MOCHI: 38, **dict.fromkeys(TABPFN, 2)}
# Models that compute without the values of their inputs.
STATIC = [name for name in REPLACED if name not in TABPFN]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Let small inputs have several chunks."""
    monkeypatch.setattr(_models, "_MIN_CHUNK", 10)
    monkeypatch.setattr(_models, "_FRAMES", 4)


def replaced(model):
    return [module for module in model.modules() if _models._is_replaced(module)]


@for_each(REPLACED)
@torch.no_grad()
def test_replaced_models_are_served_and_equal(on_cpu, name):
    model, call = models.make(name)
    want, names, types = call(model), list(model.state_dict()), list(map(repr, model.modules()))
    assert ours.replace_attention(model) == ours.replace_attention(model) == REPLACED[name] == len(replaced(model))
    with ours.installed():
        torch.testing.assert_close(call(model), want, atol=1e-5, rtol=1e-5)
    assert on_cpu().served >= min(4, REPLACED[name]) and on_cpu().pytorch == {} and on_cpu().copied == 0
    assert list(model.state_dict()) == names and list(map(repr, model.modules())) == types
    assert ours.restore_attention(model) == REPLACED[name]
    assert ours.restore_attention(model) == len(replaced(model)) == 0
    torch.testing.assert_close(call(model), want, atol=0, rtol=0)


@for_each(REPLACED)
@torch.no_grad()
def test_copies_and_replicas_are_replaced_and_have_their_own_weights(name):
    model, call = models.make(name)
    ours.replace_attention(model)
    want = call(model)
    pickled = pickle.dumps(model)
    copies = [copy.deepcopy(model), pickle.loads(pickled), pickle.loads(pickle.dumps(model, 0))]
    replica = replicate(model)
    for parameter in model.parameters():
        parameter.mul_(0.5)
    other = call(model)
    assert not torch.allclose(other, want)
    for one in copies:
        assert len(replaced(one)) == REPLACED[name]
        torch.testing.assert_close(call(one), want, atol=1e-5, rtol=1e-5)
        one.load_state_dict(model.state_dict())
        torch.testing.assert_close(call(one), other, atol=1e-5, rtol=1e-5)
    assert len(replaced(replica)) == REPLACED[name]
    # Methods beside `forward` belong to the replica, too.
    torch.testing.assert_close(call(replica), want, atol=1e-5, rtol=1e-5)


@for_each(STATIC)
@torch.no_grad()
def test_replaced_models_take_fake_tensors(name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, ours.installed():
        found = call(model)
    assert found.fake_mode is mode and found.shape == want.shape


@for_each([*SWIN, COSMOS, "tabpfn: v2"])
def test_replaced_modules_have_the_gradients_of_the_model(name):
    # In double precision only a wrong formula differs.
    model, call = models.make(name, torch.float64)
    want = models.gradients(model, call)
    assert ours.replace_attention(model) == REPLACED[name]
    torch.testing.assert_close(models.gradients(model, call), want, atol=1e-9, rtol=1e-7)


@for_each(REPLACED)
@torch.no_grad()
def test_replaced_models_are_right_under_autocast(on_cpu, name):
    model, call = models.make(name)
    want = call(model)
    # The half type of CPUs: f16 overflows in deep models.
    dtype = torch.float16 if name in SWIN else torch.bfloat16
    with torch.autocast("cpu", dtype):
        usual = call(model)
        ours.replace_attention(model)
        with ours.installed():
            found = call(model)
    assert found.dtype is usual.dtype and on_cpu().served >= min(4, REPLACED[name])
    # Swin V2 of torchvision divides by zero in f16.
    error, own = ((one.float() - want).abs().max().item() for one in (found, usual))
    assert error <= 2e-2 + (0.0 if own != own else 2 * own)


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
    for module in replaced(model):
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
        else:
            module.attn_drop.p = 0.5
    with torch.no_grad():
        first, second = (call(model.train()) for _ in range(2))
    torch.testing.assert_close(first, second)
    assert on_cpu().served == 0 and on_cpu().pytorch == {"dropout": 2 * REPLACED[name]}


# The others read the weights of the layer, too.
@for_each(["timm: Swin V1", COSMOS])
@torch.no_grad()
def test_an_adapter_of_a_layer_is_kept(name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    seen = []
    for module in replaced(model):
        layer = module.qkv if hasattr(module, "qkv") else module.to_out[0]
        if len(seen) % 2:
            layer.register_forward_hook(lambda *call: seen.append(1))
        else:
            layer.forward = lambda x, layer=layer: (seen.append(1), type(layer).forward(layer, x))[1]
    torch.testing.assert_close(call(model), want)
    # Only the encoder of Cosmos runs.
    assert len(seen) == 4


@for_each(["torchvision: Swin V1", "torchvision: Swin V2"])
@torch.no_grad()
def test_symbolic_traces_have_the_function_of_torchvision(name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    traced = torch.fx.symbolic_trace(model)
    assert any("shifted_window_attention" in str(node.target) for node in traced.graph.nodes)
    torch.testing.assert_close(call(traced), want)


@for_each([MOCHI])
def test_a_vae_of_mochi_is_not_changed_for_gradients(monkeypatch, name):
    monkeypatch.setattr(_models, "_in_chunks", None)
    model, call = models.make(name)
    ours.replace_attention(model)
    call(model).sum().backward()


@for_each([MOCHI])
@torch.no_grad()
def test_a_vae_of_mochi_concatenates_nothing_and_needs_less_memory(monkeypatch, name):
    from diffusers.models.autoencoders import autoencoder_kl_mochi as mochi

    # A small batch has several slices, as a large one has by default.
    monkeypatch.setattr(mochi.MochiDownBlock3D.forward, "__defaults__", (None, 10))
    monkeypatch.setattr(_models, "_FRAMES", 8)
    model, _ = models.make(name)
    frames = torch.randn(1, 3, 61, 32, 32)
    sizes = set()
    kinds = (mochi.Attention, mochi.MochiChunkedGroupNorm3D, mochi.MochiResnetBlock3D)

    def note(module, inputs, out):
        sizes.add((out if torch.is_tensor(out) else out[0]).numel())

    hooks = [one.register_forward_hook(note) for one in model.encoder.modules() if isinstance(one, kinds)]
    model.encode(frames)
    for hook in hooks:
        hook.remove()
    seen = []
    for count in (0, REPLACED[name]):
        assert count == 0 or ours.replace_attention(model) == count
        with ours.installed(), models.Watch() as watch:
            model.encode(frames)
        seen.append(watch)
    before, after = seen
    assert len(sizes & set(before.concatenated)) >= 3 and len(before.concatenated) > 10
    # What is left adds channels to the video.
    assert len(after.concatenated) == 1 and not sizes & set(after.concatenated)
    assert after.peak < 0.7 * before.peak


@for_each([COSMOS])
@pytest.mark.parametrize("over", ["Spatial", "Temporal"])
@torch.no_grad()
def test_attention_of_cosmos_concatenates_nothing_with_heads_of_512(on_cpu, name, over):
    module, x, mask = cosmos(over)
    want = module(x, mask)
    with models.Watch() as before:
        module(x, mask)
    ours.replace_attention(module)
    torch.testing.assert_close(module(x, mask), want, atol=1e-4, rtol=1e-4)
    assert on_cpu() == (1, {}, 0, 0)
    with models.Watch() as after:
        found = module(x, mask)
    # Each convolution concatenates no earlier frames to all of its input.
    assert before.concatenated == [x.numel()] * 4 and after.concatenated == []
    assert after.peak < before.peak and found.stride() == want.stride()
    half = found - module.to(torch.bfloat16)(x.bfloat16(), mask).float()
    assert half.abs().max() < 0.1


def cosmos(over):
    """Make an attention module of the released size, with its input."""
    place = importlib.import_module("diffusers.models.autoencoders.autoencoder_kl_cosmos")
    processor = getattr(place, f"Cosmos{over}AttentionProcessor2_0")()
    torch.manual_seed(0)
    module = place.CosmosCausalAttention(1, 512, processor=processor).eval()
    mask = torch.ones(5, 5).tril().bool() if over == "Temporal" else None
    return module, torch.randn(2, 512, 5, 3, 4), mask


class WindowAttention(nn.Module):
    """A version of timm's module that nobody has."""

    def forward(self, x, mask=None):
        return x


WindowAttention.__module__ = "timm.models.swin_transformer"
WITHOUT_SOURCE = type("WindowAttention", (nn.Module,), {"__module__": WindowAttention.__module__})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(WindowAttention, r"its source, \w{16}, is not that of the tested versions: timm 1"), (WITHOUT_SOURCE, "its source cannot be read: ")],
)
def test_another_version_of_a_package_is_left_with_one_warning(caplog, monkeypatch, kind, reason):
    # As if this file were timm's.
    monkeypatch.setitem(sys.modules, kind.__module__, sys.modules[__name__] if kind is WindowAttention else None)
    model = nn.Sequential(kind(), kind())
    assert ours.replace_attention(model) == ours.restore_attention(model) == 0
    assert type(model[0]) is type(model[1]) is kind
    [record] = caplog.records
    assert re.match(f"timm.models.swin_transformer.WindowAttention is not replaced: {reason}", record.getMessage())


@for_each(["timm: Swin V1"])
@torch.no_grad()
def test_another_version_of_a_package_loads_its_own_modules(monkeypatch, name):
    model, call = models.make(name)
    want = call(model)
    ours.replace_attention(model)
    pickled = pickle.dumps(model)
    monkeypatch.setattr(_models, "_difference", lambda kind: "another version")
    loaded = pickle.loads(pickled)
    assert replaced(loaded) == []
    torch.testing.assert_close(call(loaded), want, atol=0, rtol=0)


def test_other_models_are_not_changed_and_other_arguments_are_refused():
    model = nn.Linear(2, 2)
    assert ours.replace_attention(model) == ours.restore_attention(model) == 0
    for function in (ours.replace_attention, ours.restore_attention):
        with pytest.raises(TypeError, match="model is of type str: pass a torch.nn.Module"):
            function("model")
