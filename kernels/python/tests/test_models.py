"""Tests of models of other packages, for those that are installed. PyTorch's own result is the reference."""

from __future__ import annotations

import models
import pytest
import torch

import gridguard.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")

# Models that call PyTorch's function, and how many calls of one inference stay in PyTorch.
UNSERVED = {
    **{f"diffusers: {name}": {} for name in ("AnimateDiff", "SVD", "Latte", "Mochi VAE")},
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
