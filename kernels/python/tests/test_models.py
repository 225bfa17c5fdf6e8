"""Tests of models of other packages, for those that are installed. PyTorch's own result is the reference."""

from __future__ import annotations

import models
import pytest
import torch

import gridguard.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")

# Models that call PyTorch's function, and how many calls of one inference stay in PyTorch.
UNSERVED = {
    **{f"diffusers: {name}": {} for name in ("AnimateDiff", "SVD", "I2VGen-XL", "ModelScope", "Latte", "Mochi VAE")},
    # Attention over a frame has 64 keys, too many for a copy to contiguous rows.
    "diffusers: Cosmos VAE": {"strides": 2},
    **dict.fromkeys(("tabpfn: v2", "tabpfn: v2.5", "tabpfn: v2.6", "tabpfn: v3", "tabicl: TabICL"), {}),
}
# Models that call PyTorch's function, and whose modules are replaced, too.
TABPFN = [f"tabpfn: {version}" for version in ("v2", "v2.5", "v2.6")]
SWIN = [f"{package}: Swin V{version}" for package in ("torchvision", "timm") for version in (1, 2)]


def for_each(names):
    """Run a test for the models that are installed. Without any, there is no such test."""
    found = [name for name in names if name in models.installed()]
    return pytest.mark.parametrize("name", found) if found else lambda test: None


@for_each(UNSERVED)
@pytest.mark.parametrize("autocast", [False, True])
@torch.no_grad()
def test_install_serves_attention(on_cpu, name, autocast):
    model, call = models.make(name)
    with torch.autocast("cpu", torch.bfloat16, autocast):
        want = call(model)
        with ours.installed():
            found = call(model)
    if autocast:
        assert (found.float() - want.float()).abs().max() / want.float().std() < 0.1
    else:
        torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
    assert on_cpu().served > 1 and on_cpu().pytorch == UNSERVED[name]


@for_each([*UNSERVED, *SWIN])
def test_training_has_the_gradients_of_the_model(on_cpu, name):
    model, call = models.make(name)
    want = models.gradients(model, call)
    replaced = ours.replace_attention(model)
    assert (replaced > 0) == (name in SWIN + TABPFN or "VAE" in name)
    with ours.installed():
        found = models.gradients(model, call)
    assert found.keys() == want.keys() and len(want) > 10
    for key, gradient in want.items():
        error = (found[key] - gradient).abs().max().item()
        assert error <= 1e-4 * gradient.abs().max().item() + 1e-7, f"{key}: {error}"
    counts = on_cpu()
    # A backward pass runs for each call whose inputs need gradients.
    assert counts.served >= counts.backward > 1 and counts.pytorch == {}


def blocks():
    """Yield blocks over frames with the sizes of the released models: names, calls of attention and arguments."""
    from diffusers.models.attention import BasicTransformerBlock, TemporalBasicTransformerBlock
    from diffusers.models.transformers.transformer_temporal import TransformerTemporalModel

    frames, text = torch.randn(2 * 14, 6, 320), torch.randn(2 * 6, 1, 1024)
    block = TemporalBasicTransformerBlock(320, 320, 5, 64, cross_attention_dim=1024)
    yield "SVD", block, 2, {"hidden_states": frames, "num_frames": 14, "encoder_hidden_states": text}
    options = {"double_self_attention": True, "activation_fn": "geglu", "num_layers": 1}
    for name, heads, size, count in (("AnimateDiff", 8, 40, 16), ("I2VGen-XL", 5, 64, 16), ("ModelScope", 5, 64, 24)):
        block = TransformerTemporalModel(heads, size, in_channels=heads * size, **options)
        frames = torch.randn(count, heads * size, 2, 3)
        yield name, block, 2, {"hidden_states": frames, "num_frames": count, "return_dict": False}
    block = BasicTransformerBlock(1152, 16, 72, norm_type="ada_norm_single", attention_bias=True)
    yield "Latte", block, 1, {"hidden_states": torch.randn(6, 16, 1152), "timestep": torch.randn(6, 6 * 1152)}


if "diffusers: SVD" in models.installed():

    @pytest.mark.parametrize("name", ["SVD", "AnimateDiff", "I2VGen-XL", "ModelScope", "Latte"])
    @pytest.mark.parametrize("compiled", [False, True])
    @torch.no_grad()
    def test_blocks_over_frames_are_served(on_cpu, name, compiled):
        torch.manual_seed(0)
        [(block, calls, arguments)] = [found[1:] for found in blocks() if found[0] == name]
        want = models.flat(block.eval()(**arguments))
        torch.compiler.reset()
        with ours.installed():
            call = torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block
            found = models.flat(call(**arguments))
        torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
        assert on_cpu().served == calls and on_cpu().pytorch == {}


@for_each(["tabicl: TabICL"])
@torch.no_grad()
def test_a_model_runs_on_the_device_of_its_inputs(monkeypatch, name):
    model, call = models.make(name)
    want = call(model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    torch.testing.assert_close(call(model), want, atol=0, rtol=0)
    assert want.dtype is torch.float32
