"""Tests of motion modules on diffusers' own modules, with our host pipeline instead of the kernels."""

from __future__ import annotations

import copy
import functools
import io
import subprocess
import sys

import models
import pytest
import torch
from stand_in import Counts
from torch import nn

diffusers = pytest.importorskip("diffusers")

import gridguard.torch as ours  # noqa: E402
from gridguard import (  # noqa: E402
    GridguardError,
    _block,
    _block_operator,
    _launch,
    _native,
)

CHANNELS, HEADS, FRAMES = 64, 2, 6


@pytest.fixture
def on_host(on_cpu, monkeypatch):
    """Serve blocks by the host pipeline and attention by PyTorch, and return a function that returns the counts."""
    monkeypatch.setattr(_block_operator, "_run", lambda *call: _native.block_on_host(*call[:2]))
    return on_cpu


def block(seed=0, **options):
    wanted = {"positional_embeddings": "sinusoidal", "num_positional_embeddings": 8, **options}
    return models.motion_block(CHANNELS, HEADS, seed, **wanted)


def x(items=5, frames=FRAMES, dtype=torch.float32):
    return torch.randn(items, frames, CHANNELS).to(dtype)


def unet():
    torch.manual_seed(0)
    options = {
        "norm_num_groups": 16,
        "cross_attention_dim": 16,
        "num_attention_heads": 2,
        "motion_num_attention_heads": 2,
    }
    options |= {"motion_max_seq_length": 8, "use_motion_mid_block": True}
    model = models.unet(diffusers.UNetMotionModel, "Motion", **options)
    return model.eval().requires_grad_(False)


def run(model, seed=1):
    torch.manual_seed(seed)
    sample = torch.randn(1, 4, FRAMES, 8, 8)
    with torch.no_grad():
        return model(sample, torch.tensor(3), torch.randn(FRAMES, 7, 16)).sample


@pytest.mark.parametrize("options", [{}, {"positional_embeddings": None}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
def test_a_block_computes_what_diffusers_does(on_host, options, dtype, tolerance):
    module = block(**options)
    for items, frames in ((5, FRAMES), (1, 1), (3, 8)):
        hidden = x(items, frames, dtype)
        exact = copy.deepcopy(module).to(dtype).double()(hidden.double())
        found = ours.temporal_block(copy.deepcopy(module).to(dtype), hidden)
        assert found.dtype is dtype and found.shape == hidden.shape
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
    assert on_host() == Counts(3, {})


def test_each_weight_matters(on_host):
    module, hidden = block(), x()
    before = ours.temporal_block(module, hidden)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        kept = tensor.clone()
        tensor.add_(0.1 * torch.randn_like(tensor))
        changed = ours.temporal_block(module, hidden)
        torch.testing.assert_close(changed, module(hidden), rtol=1e-5, atol=1e-5)
        assert not torch.equal(changed, before), name
        tensor.copy_(kept)
    assert on_host().pytorch == {}


def test_the_modules_of_a_real_model_are_replaced_until_they_are_restored(on_host):
    model = unet()
    expected, names = run(model), list(model.state_dict())
    count = ours.replace_motion_modules(model)
    modules = [m for m in model.modules() if type(m).__name__ == "AnimateDiffTransformer3D"]
    assert count == sum(len(m.transformer_blocks) for m in modules) > 4
    torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)
    assert on_host() == Counts(count, {})
    assert list(model.state_dict()) == names
    assert ours.replace_motion_modules(model, 1 << 20) == count, "again, with a budget"
    torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)
    assert ours.restore_motion_modules(model) == count
    assert ours.restore_motion_modules(model) == 0
    assert torch.equal(run(model), expected)
    assert on_host() == Counts(2 * count, {})


def test_copies_and_conversions_of_a_model_read_their_own_weights(on_host):
    model = unet()
    count = ours.replace_motion_modules(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
    for one in (model, other):
        found = run(one)
        plain = copy.deepcopy(one)
        assert ours.restore_motion_modules(plain) == count
        torch.testing.assert_close(found, run(plain), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(run(model), run(other))
    stored = io.BytesIO()
    torch.save(other, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    assert torch.equal(run(loaded), run(other))
    half = model.to(torch.bfloat16)
    before = on_host().served
    half.float()
    run(half)
    assert on_host().served == before + count and on_host().pytorch == {}


class Adapter(nn.Module):
    """A replacement of a linear layer, as LoRA libraries make it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base

    def forward(self, hidden):
        return self.base_layer(hidden) * 1.5


def adapted(module):
    module.attn2.to_q = Adapter(module.attn2.to_q)


def hooked(module):
    module.ff.register_forward_hook(lambda module, inputs, output: output * 2)


def patched(module):
    module.attn1.to_v.forward = lambda hidden: nn.functional.linear(hidden, module.attn1.to_v.weight) * 3


def processed(module):
    class Processor(type(module.attn1.processor)):
        pass

    module.attn1.processor = Processor()


def training(module):
    module.train()
    module.ff.net[1].p = 0.5


@pytest.mark.parametrize(
    ("reason", "options", "change"),
    [
        ("modules", {"activation_fn": "gelu"}, None),
        ("modules", {"double_self_attention": False}, None),
        ("modules", {"final_dropout": True}, None),
        ("modules", {}, adapted),
        ("weights", {"attention_bias": True}, None),
        ("weights", {"ff_bias": False}, None),
        ("weights", {"norm_elementwise_affine": False}, None),
        ("shape", {"ff_inner_dim": 128}, None),
        ("epsilon", {"norm_eps": 1e-6}, None),
        ("hooks", {}, hooked),
        ("hooks", {}, patched),
        ("processor", {}, processed),
        ("dropout", {}, training),
        ("dtype", {}, lambda module: module.attn1.to_q.double()),
        ("strides", {}, lambda module: setattr(module.attn1.to_q.weight, "data", module.attn1.to_q.weight.data.t())),
        ("attention", {}, lambda module: setattr(module.attn1, "rescale_output_factor", 2.0)),
        ("attention", {}, lambda module: setattr(module.attn2, "scale", 0.5)),
    ],
)
def test_unsupported_blocks_run_in_the_module_and_are_counted(on_host, reason, options, change):
    module, hidden = block(**options), x()
    if change is not None:
        change(module)
    outcomes = []
    for call in (type(module).forward, ours.temporal_block):
        torch.manual_seed(3)
        try:
            outcomes.append(call(module, hidden))
        except RuntimeError as error:
            outcomes.append(str(error))
    expected, found = outcomes
    if isinstance(expected, str):
        assert found == expected
    else:
        assert torch.equal(found, expected)
    assert on_host() == Counts(0, {f"temporal block: {reason}": 1})


def test_a_module_that_changes_after_a_served_call_is_noticed(on_host):
    module, hidden = block(), x()
    expected = ours.temporal_block(module, hidden)
    plain = module.attn2.to_q
    adapted(module)
    assert torch.equal(ours.temporal_block(module, hidden), module(hidden))
    module.attn2.to_q = plain
    assert torch.equal(ours.temporal_block(module, hidden), expected)
    handle = module.norm2.register_forward_pre_hook(lambda module, inputs: None)
    ours.temporal_block(module, hidden)
    handle.remove()
    module.attn1.to_k.register_parameter("bias", nn.Parameter(torch.ones(CHANNELS), requires_grad=False))
    assert torch.equal(ours.temporal_block(module, hidden), module(hidden))
    reasons = {f"temporal block: {reason}": 1 for reason in ("modules", "hooks", "weights")}
    assert on_host() == Counts(2, reasons)


def test_arguments_of_attentions_go_to_the_module(on_host):
    module, hidden = block(), x()
    module.forward = functools.partial(_block._forward, type(module).forward, module, None)
    torch.testing.assert_close(
        module(hidden, timestep=torch.tensor(1), cross_attention_kwargs={}), ours.temporal_block(module, hidden)
    )
    assert on_host() == Counts(2, {})
    mask = torch.zeros(5, 1, FRAMES).masked_fill(torch.rand(5, 1, FRAMES) < 0.3, -1e4)
    states = torch.randn(5, FRAMES, CHANNELS)
    for options in ({"attention_mask": mask}, {"encoder_hidden_states": states}):
        assert torch.equal(module(hidden, **options), type(module).forward(module, hidden, **options))
    assert torch.equal(module(hidden, mask), type(module).forward(module, hidden, mask))
    assert on_host() == Counts(2, {"temporal block: arguments": 3})


def test_unsupported_inputs_go_to_the_module(on_host):
    module = block()
    outcomes = {
        "temporal block: length": x(2, 9),
        "temporal block: empty": x(0),
        "temporal block: dtype": x(dtype=torch.float16),
        "temporal block: shape": torch.randn(FRAMES, CHANNELS),
    }
    for hidden in outcomes.values():
        try:
            expected = type(module).forward(module, hidden)
        except Exception as error:
            with pytest.raises(type(error)):
                ours.temporal_block(module, hidden)
        else:
            assert torch.equal(ours.temporal_block(module, hidden), expected)
    hidden = x()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours.temporal_block(module, hidden), module(hidden))
    assert on_host().served == 0 and outcomes.keys() <= on_host().pytorch.keys()


def test_an_input_at_an_odd_address_is_copied(on_host, monkeypatch):
    addresses, inner = [], _block_operator._run
    monkeypatch.setattr(_block_operator, "_run", lambda *call: (addresses.append(call[1]), inner(*call)))
    module = block()
    hidden = torch.randn(1 + 5 * FRAMES * CHANNELS)[1:].view(5, FRAMES, CHANNELS)
    assert hidden.data_ptr() % 16
    torch.testing.assert_close(ours.temporal_block(module, hidden), module(hidden), rtol=1e-5, atol=1e-5)
    assert all(address % 16 == 0 for address in addresses[0][:2]) and on_host() == Counts(1, {})


def test_wrong_arguments_are_typed_errors():
    with pytest.raises(TypeError, match="unet"):
        ours.replace_motion_modules(object())
    with pytest.raises(TypeError, match="^block is of type str: pass a BasicTransformerBlock"):
        ours.temporal_block("block", x())
    for budget in (0, -1, 0.5, "many", True, [1]):
        with pytest.raises((TypeError, ValueError), match='^memory_budget is .*: pass .* a text such as "2GiB"'):
            ours.replace_motion_modules(nn.Linear(2, 2), budget)
        with pytest.raises((TypeError, ValueError), match='^memory_budget is .*: pass .* a text such as "2GiB"'):
            ours.temporal_block(block(), x(), budget)
    assert ours.replace_motion_modules(nn.Linear(2, 2)) == 0


def test_blocks_with_another_forward_are_not_replaced():
    model = unet()
    count = ours.replace_motion_modules(model)
    ours.restore_motion_modules(model)
    container = next(m for m in model.modules() if type(m).__name__ == "AnimateDiffTransformer3D")
    other = container.transformer_blocks[0].forward
    container.transformer_blocks[0].forward = other
    assert ours.replace_motion_modules(model) == count - 1
    assert ours.restore_motion_modules(model) == count - 1
    assert container.transformer_blocks[0].forward is other


def test_without_diffusers_it_is_an_import_error():
    program = (
        "import sys; sys.modules['diffusers'] = None\n"
        "import gridguard.torch as ours, torch\n"
        "try: ours.replace_motion_modules(torch.nn.Linear(2, 2))\n"
        "except ImportError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "replace_motion_modules needs diffusers: pip install diffusers\n"


PROBLEM = (5, FRAMES, CHANNELS, HEADS, 8, "f16", 0, None)


@pytest.fixture
def device(monkeypatch):
    """Record the calls that reach a device, and limit its free bytes. A block needs its budget, at least 100 bytes."""
    calls, left = [], [1 << 40]

    def scratch(problem, capturing):
        if capturing:
            raise ValueError("first call during capture")
        budget = 1000 if problem[-1] is None else problem[-1]
        if budget < 100:
            raise GridguardError("the smallest chunk needs 100 bytes")
        return budget

    def empty(size, **options):
        if size > left[0]:
            raise torch.cuda.OutOfMemoryError(f"{size} bytes")
        return torch.zeros(size, dtype=torch.uint8)

    for name, value in (("getDevice", 0), ("getCurrentRawStream", 7), ("isCurrentStreamCapturing", False)):
        monkeypatch.setattr(torch._C, f"_cuda_{name}", lambda *ignored, value=value: value, raising=False)
    monkeypatch.setattr(_launch, "load_nvrtc", lambda: None)
    monkeypatch.setattr(_native, "block_scratch", scratch)
    monkeypatch.setattr(_native, "block", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(torch, "empty", empty)
    return calls, left


@pytest.mark.parametrize(("memory", "budget"), [(1000, None), (999, 500), (499, 250), (125, 125)])
def test_the_batch_runs_in_smaller_chunks_if_memory_is_short(device, memory, budget):
    calls, left = device
    left[0] = memory
    _block_operator._run(PROBLEM, (1, 2, [3], 4), torch.device("cuda", 0))
    ((problem, addresses, (address, size), stream, capturing),) = calls
    assert (problem[-1], size, stream, capturing) == (budget, budget or 1000, 7, False)
    assert addresses == (1, 2, [3], 4) and problem[:-1] == PROBLEM[:-1] and address


def test_too_little_memory_for_the_smallest_chunk_raises_pytorchs_error(device):
    calls, left = device
    left[0] = 99
    with pytest.raises(torch.cuda.OutOfMemoryError, match="125 bytes"):
        _block_operator._run(PROBLEM, (1, 2, [3], 4), torch.device("cuda", 0))
    with pytest.raises(GridguardError, match="smallest chunk"):
        _block_operator._run((*PROBLEM[:-1], 50), (1, 2, [3], 4), torch.device("cuda", 0))
    assert calls == []


def test_a_failed_run_is_an_error_and_no_fallback(on_host, monkeypatch):
    def failed(*arguments):
        raise GridguardError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(_block_operator, "_run", failed)
    with pytest.raises(GridguardError, match="ILLEGAL_ADDRESS"):
        ours.temporal_block(block(), x())
