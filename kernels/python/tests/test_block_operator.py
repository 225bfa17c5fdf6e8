"""Tests of blocks in compiled code and in training, on diffusers' own modules. Needs PyTorch 2.11 and diffusers."""

from __future__ import annotations

import copy

import pytest
import torch
from stand_in import Counts
from test_block import CHANNELS, FRAMES, adapted, block, on_host, training, unet, x  # noqa: F401
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import gridguard.torch as ours
from gridguard import _block, _block_operator

pytestmark = pytest.mark.skipif(not _block._IS_TRACED, reason="compiled code runs the module")

operator = torch.ops.gridguard.temporal_block.default
operator_of_gradients = torch.ops.gridguard.temporal_block_backward.default
NAME = "gridguard.temporal_block.default"
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError


@pytest.fixture
def served(on_host):  # noqa: F811
    torch.compiler.reset()
    torch.manual_seed(0)
    return on_host


def compiled(module, backend="aot_eager", dynamic=None, **options):
    function = lambda hidden: ours.temporal_block(module, hidden, **options)  # noqa: E731
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)


def trained(module, backend):
    return (lambda hidden: ours.temporal_block(module, hidden)) if backend is None else compiled(module, backend)


def recorded(graphs):
    """Make a backend that records the functions of each graph, without those that read attributes of tensors."""

    def backend(module, inputs):
        functions = [node.target for node in module.graph.nodes if node.op == "call_function"]
        graphs.append([str(function) for function in functions if function is not getattr])
        return module.forward

    return backend


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, expected.abs().max().item()))


def gradients(function, hidden, module):
    wanted = [hidden, *(one for one in module.parameters() if one.requires_grad)]
    weights = torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)
    return torch.autograd.grad((function(hidden) * weights).sum(), wanted)


def compare_gradients(function, module, hidden):
    expected = gradients(module, hidden, module)
    found = gradients(function, hidden, module)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == other.shape and one.dtype == other.dtype
        close(one, other)


inductor = pytest.param("inductor", marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", inductor])
def test_compiled_code_runs_the_kernels(served, backend, dynamic):
    module = block()
    function = compiled(module, backend, dynamic, memory_budget=1 << 20)
    for items in (5, 3, 7):
        hidden = x(items)
        close(function(hidden), module(hidden))
    strided = torch.randn(4, CHANNELS, FRAMES).transpose(1, 2)
    close(function(strided), module(strided))
    assert served() == Counts(4, {})


def test_compiled_code_reads_weights_that_change(served):
    module, hidden, graphs = block(), x(), []
    function = compiled(module, recorded(graphs))
    before = function(hidden)
    for change in (
        lambda weight: weight.mul_(1.5),
        lambda weight: weight.data.add_(0.1),
        lambda weight: setattr(weight, "data", weight.data * 1.1),
        lambda weight: module.load_state_dict(block(7).state_dict()),
    ):
        change(module.attn1.to_k.weight)
        found = function(hidden)
        close(found, module(hidden))
        assert not torch.equal(found, before)
        before = found
    assert graphs == [[NAME]] and served() == Counts(5, {})


@pytest.mark.parametrize(
    "change",
    [
        adapted,
        training,
        lambda module: setattr(module.norm1, "eps", 1e-3),
        lambda module: setattr(module.attn1, "rescale_output_factor", 2.0),
        lambda module: module.attn1.to_k.register_parameter("bias", nn.Parameter(torch.ones(CHANNELS))),
    ],
)
def test_compiled_code_notices_a_module_that_changes(served, change):
    module, hidden, graphs = block(), x(), []
    function = compiled(module, recorded(graphs))
    close(function(hidden), module(hidden))
    change(module)
    outputs = []
    for call in (module, function):
        torch.manual_seed(1)
        outputs.append(call(hidden))
    assert torch.equal(*outputs)
    assert graphs[0] == [NAME] and NAME not in graphs[1] and served() == Counts(1, {})


def test_what_only_a_run_shows_is_counted(served):
    module = block()
    function = compiled(module, dynamic=True)
    assert function(x(0)).shape == (0, FRAMES, CHANNELS)
    # More frames than position embeddings.
    for call in (function, module):
        with pytest.raises(RuntimeError, match="size of tensor"):
            call(x(2, 9))
    assert served() == Counts(0, {"temporal block: empty": 1, "temporal block: length": 1, "empty": 2})


def test_weights_at_odd_addresses_are_not_served(served):
    module, hidden = block(), x()
    function = compiled(module)
    function(hidden)
    weight = module.attn1.to_out[0].weight
    weight.data = torch.cat([weight.new_zeros(1), weight.data.flatten()])[1:].view_as(weight)
    close(function(hidden), module(hidden))
    close(ours.temporal_block(module, hidden), module(hidden))
    assert served().pytorch == {"temporal block: alignment": 2}


@pytest.mark.parametrize("positions", [{}, {"positional_embeddings": None}])
@pytest.mark.parametrize("backend", [None, "aot_eager", inductor])
def test_training_computes_the_gradients_of_the_module(served, backend, positions):
    module = block(**positions).train().requires_grad_()
    function = trained(module, backend)
    for items in (5, 3):
        compare_gradients(function, module, x(items).requires_grad_())
    # A block, and its two attentions when the backward pass computes them again.
    assert served() == Counts(6, {}, backward=4)


def test_second_derivatives_are_those_of_the_module(served):
    module, hidden = block().requires_grad_(), x(3).requires_grad_()
    wanted = [hidden, *module.parameters()]

    def second(function):
        found = torch.autograd.grad(function(hidden).square().sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in found), wanted)

    found = second(lambda hidden: ours.temporal_block(module, hidden))
    with sdpa_kernel(SDPBackend.MATH):
        expected = second(module)
    for one, other in zip(found, expected):
        close(one, other)


def test_a_backward_pass_runs_in_slices_if_memory_is_short(served, monkeypatch):
    module, hidden = block().requires_grad_(), x(7).requires_grad_()
    inner, sizes = _block_operator._gradients, []

    def scarce(grad, inputs, *others, **options):
        sizes.append(len(grad))
        if len(grad) > 2:
            raise OUT_OF_MEMORY("short")
        return inner(grad, inputs, *others, **options)

    monkeypatch.setattr(_block_operator, "_gradients", scarce)
    compare_gradients(lambda one: ours.temporal_block(module, one), module, hidden)
    assert sizes == [7, 4, 2, 2, 2, 1]
    half = copy.deepcopy(module).bfloat16()
    found = gradients(lambda one: ours.temporal_block(half, one), hidden.detach().bfloat16().requires_grad_(), half)
    assert all(one.dtype is torch.bfloat16 for one in found)

    def none_left(*arguments, **options):
        raise OUT_OF_MEMORY("none left")

    monkeypatch.setattr(_block_operator, "_gradients", none_left)
    with pytest.raises(OUT_OF_MEMORY, match="none left"):
        ours.temporal_block(module, hidden).sum().backward()


def test_a_forward_pass_that_is_not_served_has_gradients(served, monkeypatch):
    def refused(*arguments):
        raise ValueError("length")

    module, hidden = block().requires_grad_(), x().requires_grad_()
    monkeypatch.setattr(_block_operator, "_run", refused)
    compare_gradients(lambda one: ours.temporal_block(module, one), module, hidden)
    assert served().pytorch == {"temporal block: length": 1}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("compile_it", [False, True])
def test_transforms_of_functions_run_the_module(served, compile_it):
    module, hidden = block(), x()
    cases = {
        torch.func.grad: lambda one, call: call(one).square().sum(),
        torch.func.vmap: lambda one, call: call(one.unsqueeze(0)).squeeze(0),
    }
    for transform, function in cases.items():
        expected = transform(lambda one: function(one, module))(hidden)
        call = transform(lambda one: function(one, lambda hidden: ours.temporal_block(module, hidden)))
        if compile_it:
            call = torch.compile(call, backend="aot_eager", fullgraph=True)
        close(call(hidden), expected)
    assert served().served == 0


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_are_those_of_the_module(served, strict):
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = block()

        def forward(self, hidden):
            return ours.temporal_block(self.inner, hidden)

    program, hidden = Program(), x()
    exported = torch.export.export(program, (hidden,), strict=strict)
    assert "gridguard" not in str(exported.graph)
    close(exported.module()(hidden), program.inner(hidden))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("positions", [{}, {"positional_embeddings": None}])
def test_the_operators_agree_with_their_fakes(served, positions):
    module, hidden = block(**positions).requires_grad_(), x(3).requires_grad_()
    problem = _block._problem(module, hidden, (), {})
    torch.library.opcheck(operator, (*problem, None))
    detached = [one.detach() if isinstance(one, torch.Tensor) else one for one in problem]
    detached[1] = [one.detach() for one in problem[1]]
    for needed in (True, False):
        arguments = (torch.randn_like(hidden), *detached, [needed] * 21 + [False])
        torch.library.opcheck(operator_of_gradients, arguments, test_utils=("test_schema", "test_faketensor"))


def test_the_operator_reads_no_memory_of_wrong_tensors(served, monkeypatch):
    addresses = []
    monkeypatch.setattr(_block_operator, "_run", lambda *call: addresses.append(call))
    hidden, weights, positions, heads = _block._problem(block(), x(), (), {})
    with pytest.raises(ValueError, match="^a temporal block has 19 weights: pass 20$"):
        operator(hidden, weights[:-1], positions, heads, None)
    wrong = {
        "shape": [weights[0][:8].clone(), *weights[1:]],
        "dtype": [weights[0].double(), *weights[1:]],
        "strides": [*weights[:3], weights[3].t(), *weights[4:]],
    }
    for reason, given in wrong.items():
        try:
            operator(hidden, given, positions, heads, None)
        except (RuntimeError, NotImplementedError):
            pass
        assert served().pytorch.pop(f"temporal block: {reason}") == 1
    for heads in (0, -1):
        with pytest.raises(RuntimeError):
            operator(hidden, weights, positions, heads, None)
    with pytest.raises(RuntimeError):
        operator(hidden, weights, positions[..., :8], 2, None)
    assert addresses == []
