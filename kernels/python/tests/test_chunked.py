"""Tests of `chunked` on the CPU. Needs PyTorch."""

from __future__ import annotations

import copy
import doctest
import random
import sys
import types

import pytest
import torch
from batches import Counter, batch, close, gradients, network, profiles  # noqa: F401
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import gridguard.torch as ours
from gridguard import GridguardError, _chunked

chunked = ours.chunked


def test_the_example_runs():
    assert doctest.testmod(_chunked) == doctest.TestResults(failed=0, attempted=5)


@pytest.mark.parametrize("chunk", [1, 3, 7, 20, 100])
def test_outputs_are_those_of_the_whole_batch(chunk):
    function, x = Counter(network()), batch()
    with torch.no_grad():
        found = chunked(function, chunk=chunk, verify=False)(x)
    assert function.sizes == [min(chunk, 20 - begin) for begin in range(0, 20, chunk)]
    close(found, function.function(x))


def test_chunks_are_views_of_the_inputs_and_are_written_in_place():
    x, seen = batch(), []

    def function(part):
        seen.append(part.data_ptr() - x.data_ptr())
        return part * 2

    with torch.no_grad():
        chunked(function, chunk=6, verify=False)(x)
    assert seen == [row * 8 * 8 for row in (0, 6, 12, 18)]
    for shape in ((6, 3, 4, 5), (6, 4, 5)):
        x = torch.randn(shape)
        x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.transpose(1, 2)
        found = chunked(torch.sin, chunk=4)(x)
        assert found.stride() == x.stride(), "the memory layout is that of the function"
        close(found, x.sin())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_are_those_of_the_whole_batch(recompute, dim):
    layer = nn.Conv1d(3, 3, 1).double()

    def function(x, y):
        moved = x.movedim(dim, 0)
        return (layer(moved.flatten(1).view(len(moved), 3, -1)).view(moved.shape) * y.movedim(dim, 0)).movedim(0, dim)

    leaves = [torch.randn(12, 12, 12, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    expected = function(*leaves)
    found = chunked(function, dim, chunk=5, recompute=recompute)(leaves[0], y=leaves[1])
    close(found, expected)
    leaves += layer.parameters()
    close(gradients(found, leaves), gradients(expected, leaves))
    found = chunked(function, dim, chunk=5, recompute=recompute)(leaves[0] * 2, leaves[1])
    close(gradients(found[:3], leaves), gradients(function(leaves[0] * 2, leaves[1])[:3], leaves))


@pytest.mark.parametrize(
    ("model", "sizes", "dim"),
    [
        (nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), (10, 7, 16), 0),
        (nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0), (7, 10, 16), 1),
        (nn.LSTM(16, 8, 2), (7, 10, 16), 1),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.ReLU(inplace=True)), (10, 3, 8, 8), 0),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten()), (10, 3, 8, 8), 0),
    ],
)
def test_modules_of_pytorch_run_in_chunks(model, sizes, dim):
    model = model.double()
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    leaves = [x, *model.parameters()]
    whole, found = (torch.utils._pytree.tree_leaves(one(x)) for one in (model, chunked(model, dim, chunk=3)))
    close(found, whole)
    for one, other in zip(found, whole):
        close(
            torch.autograd.grad(one.square().sum(), leaves, retain_graph=True, allow_unused=True),
            torch.autograd.grad(other.square().sum(), leaves, retain_graph=True, allow_unused=True),
        )


def test_one_gradient_of_the_input_is_allocated_for_all_chunks():
    x, grads = batch(requires_grad=True), []
    y = x * 1
    y.register_hook(lambda grad: grads.append(grad))
    out = chunked(lambda part: part * 3, chunk=3)(y)
    for _ in range(2):
        out.backward(torch.ones_like(out), retain_graph=True)
    assert len(grads) == 2 and grads[0].data_ptr() != grads[1].data_ptr()
    close(x.grad, torch.full_like(x, 6.0))


def test_second_derivatives_exist():
    x = batch(5, requires_grad=True)
    function = chunked(lambda part: (part.sin() * part, part[:, :2].exp()), chunk=2)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_parameters_accumulate_and_hooks_run():
    model, x, calls = network(), batch(requires_grad=True), []
    model[0].register_forward_hook(lambda *_: calls.append("layer"))
    model.register_full_backward_hook(lambda *_: calls.append("backward"))
    model[3].weight.register_hook(lambda grad: calls.append("weight"))
    chunked(model, chunk=10, verify=False)(x).sum().backward()
    assert calls.count("layer") == 2 and calls.count("backward") == 2 and calls.count("weight") == 1
    (expected,) = torch.autograd.grad(model(x).sum(), [model[3].weight])
    close(model[3].weight.grad, expected)


def test_inputs_without_the_batch_are_passed_whole():
    weight, scale = torch.randn(8, 4), torch.tensor(2.0)

    def function(x, others, weight, flag=True):
        assert flag == "flag"
        return x @ weight * others["scale"] + others["bias"]

    x, bias = torch.randn(20, 8), torch.randn(20, 4)
    expected = x @ weight * scale + bias
    found = chunked(function, chunk=7)(x, {"bias": bias, "scale": scale}, weight, flag="flag")
    torch.testing.assert_close(found, expected)
    square = torch.randn(8, 8)
    found = chunked(torch.matmul, (0, None), chunk=3)(square, square)
    torch.testing.assert_close(found, square @ square)
    found = chunked(lambda w, x: x @ w, (None, 1), chunk=3, out_dim=1)(square, torch.randn(2, 9, 8))
    assert found.shape == (2, 9, 8)


def test_nested_outputs_keep_their_structure():
    def function(x):
        return {"a": [x * 2, None, 3], "b": (x.long(), x[:, :0]), "pairs": x.repeat_interleave(2, 0)}

    for x in (torch.randn(20, 8), torch.randn(20, 8, requires_grad=True)):
        found, expected = chunked(function, chunk=6)(x), function(x)
        torch.testing.assert_close(found["a"][0], expected["a"][0])
        assert found["a"][1:] == [None, 3]
        torch.testing.assert_close(found["b"], expected["b"])
        torch.testing.assert_close(found["pairs"], expected["pairs"])
        assert not found["b"][0].requires_grad and found["pairs"].requires_grad == x.requires_grad


def test_grad_modes_hold():
    model = network()
    function = chunked(model, chunk=6)
    with torch.inference_mode():
        assert function(batch()).is_inference()
    with torch.no_grad():
        assert not function(batch(requires_grad=True)).requires_grad
    assert function(batch()).requires_grad, "parameters need gradients"
    model.requires_grad_(False)
    assert not function(batch()).requires_grad


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_draws_new_numbers_for_each_chunk_and_the_same_ones_again(recompute):
    x = torch.ones(40, 64, dtype=torch.float64, requires_grad=True)
    function = chunked(nn.Dropout(0.5), chunk=10, recompute=recompute)
    state = torch.get_rng_state()
    out = function(x)
    assert function._verified, "random numbers are no obstacle"
    assert 0.4 < (out == 0).double().mean() < 0.6
    assert not torch.equal(out[:10], out[10:20])
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out), "the backward pass has the mask of the forward pass"
    torch.set_rng_state(state)
    assert torch.equal(function(x), out), "the check does not draw from the generator"


def test_autocast_holds_in_chunks_and_keeps_gradients_of_weights():
    model = network().float()
    x = torch.randn(20, 8, requires_grad=True)
    for recompute in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = chunked(model, chunk=6, recompute=recompute)(x), model(x)
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found, expected)
        leaves = [x, *model.parameters()]
        torch.testing.assert_close(gradients(found, leaves), gradients(expected, leaves), rtol=5e-2, atol=5e-2)


def test_an_enclosing_checkpoint_runs_chunks_again():
    model, x = network(), batch(requires_grad=True)
    function = chunked(model, chunk=6)
    out = checkpoint(function, x, use_reentrant=False)
    close(gradients(out, [x]), gradients(model(x), [x]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_the_chunks_or_is_compiled_inside(backend):
    model, x = network(), batch(requires_grad=True)
    expected = gradients(model(x), [x])
    torch.compiler.reset()
    outside = torch.compile(chunked(model, chunk=6), backend=backend, fullgraph=True)
    inside = chunked(torch.compile(model, backend=backend, fullgraph=True), chunk=6)
    measured = chunked(model, memory="20KiB")
    broken = torch.compile(lambda x: measured(x).sin(), backend=backend)
    close(gradients(outside(x), [x]), expected)
    close(gradients(inside(x), [x]), expected)
    assert inside._verified
    close(broken(x), model(x).sin())
    assert measured._sizes, "memory is measured between the graphs"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_transforms_meta_and_fake_tensors_run():
    x = batch()
    function = chunked(torch.sin, chunk=6)
    close(torch.func.vmap(function)(x[None])[0], x.sin())
    close(torch.func.jvp(function, (x,), (x,))[1], x * x.cos())
    close(torch.func.grad(lambda x: function(x).sum())(x), x.cos())
    assert chunked(torch.sin, chunk=6)(x.to("meta")).shape == x.shape
    assert _chunked.Batch((x, x.to("meta")), {}, 0).device.type == "meta"
    assert torch.export.export(chunked(network(), chunk=6), (x,)).module()(x).shape == (20, 4)
    with FlopCounterMode(display=False) as flops:
        chunked(network(), chunk=6)(x)
    assert flops.get_total_flops() == 2 * 20 * (8 * 16 + 16 * 4)
    with FakeTensorMode() as mode:
        assert function(mode.from_tensor(x)).shape == x.shape
    with pytest.raises(GridguardError, match="memory cannot be measured under transforms"):
        torch.func.vmap(chunked(torch.sin, memory=100))(x[None])
    with pytest.raises(GridguardError, match="meta tensors"):
        chunked(torch.sin, memory=100)(x.to("meta"))


def test_chunked_functions_may_be_nested():
    model, x = network(), batch(requires_grad=True)
    inner = chunked(model, memory="20KiB")
    close(gradients(chunked(inner, chunk=6)(x), [x]), gradients(model(x), [x]))


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.first(x).softmax(0))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), r"1 \(BatchNorm1d\) in Sequential mixes items"),
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(dim=0)), r"1 \(Softmax\) in Sequential mixes items"),
        (nn.Sequential(nn.Linear(8, 8), Mixing(), nn.ReLU()), r"1 \(Mixing\) in Sequential mixes items"),
        (lambda x: x + 1e-3 * x.mean(0), "<lambda> mixes items: an item depends on the others"),
        (lambda x: x * len(x), "<lambda> mixes items: items 0 to 1 differ as a chunk"),
        (lambda x: x + torch.arange(len(x))[:, None], "<lambda> mixes items: items 2 to 3 differ"),
        (lambda x: x.relu_(), "<lambda> changes its input"),
        (lambda x: x * random.random(), "<lambda> is not deterministic"),
        (lambda x: x.sum(), r"output 0 has the shape \(\) for 6 items: .* axis 0"),
        (lambda x: x[:, : len(x)], "<lambda> mixes items"),
        (lambda x: types.SimpleNamespace(x=x), "output 0 is a SimpleNamespace"),
        (lambda x: x.view(6, 8), "<lambda> cannot be verified with 2 of 20 items: .*verify=False"),
    ],
)
def test_functions_with_dependent_items_are_refused(function, text):
    x = torch.randn(20, 8)
    with pytest.raises(ValueError, match=text):
        chunked(function, chunk=5)(x)


def test_a_check_changes_nothing_and_runs_once():
    norm = nn.InstanceNorm1d(3, track_running_stats=True)
    x, function = torch.randn(20, 3, 4), Counter(norm)
    call = chunked(function, chunk=20)
    call(x)
    assert function.sizes == [20], "one chunk needs no check"
    before = norm.running_mean.clone()
    _chunked.verify(norm, _chunked.Batch((x,), {}, 0), 0)
    assert torch.equal(norm.running_mean, before)
    function, norm = Counter(nn.Linear(8, 8)), nn.BatchNorm1d(8).eval()
    call = chunked(function, chunk=10)
    call(torch.randn(20, 8))
    checked = len(function.sizes)
    call(torch.randn(30, 8))
    assert len(function.sizes) == checked + 3
    call = chunked(norm, chunk=10)
    call(torch.randn(20, 8))
    norm.train()
    call.train()
    with pytest.raises(ValueError, match="BatchNorm1d mixes items"):
        call(torch.randn(20, 8))


def test_a_failing_chunk_is_named_and_earlier_outputs_are_kept():
    def function(x):
        if (x > 100).any():
            raise KeyError("broken")
        return x * 2, "text"

    x = batch(20, requires_grad=True)
    broken = x.detach().clone()
    broken[13] = 200.0
    for one in (broken, broken.clone().requires_grad_()):
        with pytest.raises(ours.ChunkError, match=r"chunk 3 of .*function \(items 12 to 17 of 20\) failed") as raised:
            chunked(function, chunk=6)(one)
        assert raised.value.done == 12 and isinstance(raised.value.__cause__, KeyError)
        close(raised.value.output[0], broken[:12] * 2)
        assert raised.value.output[0].shape == (12, 8) and raised.value.output[1] == "text"
    broken[0] = 200.0
    with pytest.raises(ours.ChunkError) as raised:
        chunked(function, chunk=6, verify=False)(broken)
    assert raised.value.output is None
    shapes = chunked(lambda x: x[:, :3] if (x > 100).any() else x, chunk=6, verify=False)
    broken[0] = 0.0
    with pytest.raises(ours.ChunkError, match=r"chunk 3 .*: its outputs are .*3.* but the first chunk's outputs are"):
        shapes(broken)


def test_a_module_is_replaced_with_its_state_and_names():
    model, x = nn.Sequential(network(), nn.Linear(4, 4).double()), batch()
    expected, state = model(x), model.state_dict()
    replaced = copy.deepcopy(model)
    replaced[0] = chunked(replaced[0], chunk=6)
    assert list(replaced.state_dict()) == list(state)
    for parameter in replaced.parameters():
        nn.init.zeros_(parameter)
    replaced.load_state_dict(state)
    close(replaced(x), expected)
    close(copy.deepcopy(replaced)(x), expected)
    assert not replaced.eval()[0].function.training
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    model[0].forward = chunked(model[0].forward, chunk=6)
    close(model(x), expected)
    assert calls == [1] and list(dict(model.named_parameters())) == list(state)


def test_wrong_arguments_are_refused():
    x = batch()
    for options, error, text in (
        ({"chunk": 0}, ValueError, "chunk is 0"),
        ({"chunk": 2.5}, ValueError, "chunk is 2.5"),
        ({"chunk": 2, "memory": 100}, ValueError, "pass one of them"),
        ({"memory": 0}, ValueError, "memory is 0"),
        ({"memory": "much"}, ValueError, "memory is 'much'"),
        ({"streams": 3}, ValueError, "streams is 3"),
        ({"dim": "0"}, TypeError, "str"),
        ({"dim": (None,)}, ValueError, "pass an axis"),
    ):
        with pytest.raises(error, match=text):
            chunked(torch.sin, **options)
    with pytest.raises(TypeError, match="function is of type int"):
        chunked(3)
    for dim, args in ((2, (x,)), (0, ()), (0, (torch.tensor(1.0),)), ((0, 0), (x, batch(3))), ((0, None), (x,))):
        with pytest.raises(ValueError, match="dim (is|has) "):
            chunked(torch.add, dim, chunk=3)(*args)


def test_no_items_and_one_item_run_once():
    for items in (0, 1):
        function = Counter(network())
        assert chunked(function, chunk=6)(batch(items)).shape == (items, 4)
        assert chunked(function, memory="1MiB")(batch(items)).shape == (items, 4)
        assert function.sizes[0] == items


def test_progress_is_shown_if_tqdm_is_installed(monkeypatch):
    shown = []

    class Bar:
        def __init__(self, total, desc, unit):
            shown.extend((total, desc, unit))
            self.update, self.close = shown.append, lambda: shown.append("closed")

    auto = types.ModuleType("tqdm.auto")
    auto.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    call = chunked(torch.sin, chunk=8, progress=True)
    call(batch())
    assert shown == [20, "sin", "item", 8, 8, 4, "closed"]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    close(call(x := batch()), x.sin())
