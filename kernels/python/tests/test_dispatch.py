"""Tests that subclasses, modes, transforms, scripts, traces, exports and profilers work unchanged. Needs PyTorch."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import torch
from calls import IS_OLD, PYTORCH
from stand_in import Counts, qkv, right_masks  # noqa: F401
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import gridguard.torch as ours
from gridguard import _pytorch

F = torch.nn.functional
DEPRECATED = pytest.mark.filterwarnings("ignore:.torch.jit", "ignore::DeprecationWarning", "ignore::FutureWarning")


# Calls of PyTorch's function after `install()`, and calls of ours.
WAYS = {
    "installed": (ours.installed, lambda: F.scaled_dot_product_attention),
    "called": (contextlib.nullcontext, lambda: ours.scaled_dot_product_attention),
    "both": (ours.installed, lambda: ours.scaled_dot_product_attention),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def attention(request, on_cpu):
    context, function = request.param
    with context():
        yield function()


@pytest.fixture
def installed(on_cpu):
    with ours.installed():
        yield on_cpu


def without(monkeypatch, function, *arguments):
    """Call a function as if nothing were installed."""
    from gridguard import _install

    with monkeypatch.context() as patch:
        patch.setattr(_install, "_is_active", False)
        patch.setattr(_install._dispatched, "kernels", None)
        return function(*arguments)


@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("keys", [16, 24])
def test_causal_biases_mask_the_right_keys(attention, bias, keys):
    query, key, value = torch.randn(2, 5, 16, 64), torch.randn(2, 5, keys, 64), torch.randn(2, 5, keys, 64)
    mask = torch.ones(16, keys, dtype=torch.bool).tril(keys - 16 if bias is causal_lower_right else 0)
    exact = PYTORCH(query.double(), key.double(), value.double(), mask)
    for _ in range(3):
        # Poisons freed memory, so that unwritten elements differ.
        torch.full((16, keys), 1e4)
        torch.testing.assert_close(attention(query, key, value, bias(16, keys)).double(), exact, rtol=1e-4, atol=1e-4)


def test_a_causal_bias_of_a_causal_call_raises_what_pytorch_raises(attention):
    with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
        attention(*qkv(2, 5, 16, 64), causal_upper_left(16, 16), is_causal=True)


@pytest.mark.parametrize("position", range(4))
def test_a_subclass_as_any_argument_sees_pytorchs_function(attention, position):
    seen = []

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func is F.scaled_dot_product_attention)
            return "its own"

    arguments = [*qkv(2, 5, 16, 64), torch.zeros(16, 16)]
    arguments[position] = arguments[position].as_subclass(Subclass)
    seen.clear()
    assert attention(*arguments) == "its own"
    assert seen == [True]


def test_an_object_with_torch_function_sees_the_call(attention):
    class Duck:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func

    query, key, value = qkv(2, 5, 16, 64)
    assert attention(query, Duck(), value) is F.scaled_dot_product_attention
    assert attention(query, key, value, attn_mask=Duck()) is PYTORCH


class Seen:
    def __init__(self):
        super().__init__()
        self.seen = []

    def noted(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Functions(Seen, TorchFunctionMode):
    __torch_function__ = Seen.noted


class Operators(Seen, TorchDispatchMode):
    __torch_dispatch__ = Seen.noted


def test_a_function_mode_sees_the_call_and_nothing_else(attention):
    tensors = qkv(2, 5, 16, 64)
    with Functions() as mode:
        out = attention(*tensors)
    assert mode.seen == [F.scaled_dot_product_attention]
    torch.testing.assert_close(out, PYTORCH(*tensors))


def test_the_kernels_serve_calls_that_a_function_mode_forwards(installed):
    with Functions(), Functions():
        F.scaled_dot_product_attention(*qkv(2, 5, 16, 64))
    assert installed() == Counts(1, {})


def test_a_dispatch_mode_sees_pytorchs_operators(attention, monkeypatch):
    tensors = qkv(2, 5, 16, 64)

    def seen(function):
        with Operators() as mode:
            function(*tensors)
        return mode.seen

    expected = without(monkeypatch, seen, PYTORCH)
    assert expected and seen(attention) == expected


def test_fake_tensors_work_unchanged(attention, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def fake(function):
        with FakeTensorMode() as mode:
            out = function(*map(mode.from_tensor, qkv(2, 5, 16, 64)))
        # Outside of their mode.
        later = function(*[mode.from_tensor(tensor) for tensor in qkv(2, 5, 16, 64)])
        return [(type(one), one.shape, one.stride()) for one in (out, later)]

    assert fake(attention) == without(monkeypatch, fake, PYTORCH)


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:There is a performance drop")
def test_nested_tensors_go_to_pytorch(attention, monkeypatch):
    parts = qkv(5, 16, 64)[:2]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        if layout is torch.jagged:
            nested = torch.nested.nested_tensor([part.transpose(0, 1) for part in parts], layout=layout).transpose(1, 2)
        out = attention(nested, nested, nested)
        expected = without(monkeypatch, PYTORCH, nested, nested, nested)
        for one, other in zip(out.unbind(), expected.unbind(), strict=True):
            torch.testing.assert_close(one, other)


@DEPRECATED
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms_compute_the_same(attention, monkeypatch):
    tensors = tuple(qkv(3, 2, 5, 16, 8))

    def transformed(function):
        yield torch.vmap(function)(*tensors)
        yield torch.func.grad(lambda *one: function(*one).square().sum())(*tensors)
        yield torch.func.jvp(function, tensors, tensors)[1]
        yield torch.func.vmap(torch.func.grad(lambda *one: function(*one).square().sum()))(*tensors)
        with sdpa_kernel(SDPBackend.MATH):
            for transform in (torch.func.jacrev, torch.func.hessian):
                yield transform(lambda x: function(x, x.sin(), x).square().sum())(tensors[0][:1, :1, :1])
        yield torch.func.functionalize(function)(*tensors)
        yield torch.jit.trace(function, tensors, check_trace=False)(*tensors)
        yield make_fx(lambda *one: function(*one))(*tensors)(*tensors)

    expected = without(monkeypatch, lambda: list(transformed(PYTORCH)))
    for found, one in zip(transformed(attention), expected, strict=True):
        torch.testing.assert_close(found, one)


def operators_of(function):
    """Return the operators in the graph of a compiled call."""
    from torch._functorch.aot_autograd import aot_module_simplified

    torch.compiler.reset()
    seen = []

    def keep(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    def backend(graph, inputs):
        return aot_module_simplified(graph, inputs, fw_compiler=keep)

    torch.compile(function, backend=backend)(*qkv(2, 5, 16, 64))
    return seen


def test_functions_keep_their_names_and_overrides(installed):
    assert torch.overrides.resolve_name(F.scaled_dot_product_attention) == (
        "torch.nn.functional.scaled_dot_product_attention"
    )
    assert F.scaled_dot_product_attention is PYTORCH is torch._C._nn.scaled_dot_product_attention
    assert F.scaled_dot_product_attention in torch.overrides.get_overridable_functions()[F]
    assert F.scaled_dot_product_attention in torch.overrides.get_testing_overrides()


class Calls(torch.nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def calls_ours(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return ours.scaled_dot_product_attention(query, key, value, None, 0.0, True)


@DEPRECATED
@pytest.mark.parametrize("function", [Calls(), calls_ours], ids=["PyTorch's", "ours"])
def test_scripts_call_pytorchs_operator_and_are_served(installed, function):
    tensors = qkv(2, 5, 16, 64)
    scripted = torch.jit.script(function)
    assert "aten::scaled_dot_product_attention" in str(scripted.graph)
    for _ in range(3):
        torch.testing.assert_close(scripted(*tensors), function(*tensors))
    assert installed() == Counts(6, {})


@DEPRECATED
def test_traces_are_unchanged(installed, monkeypatch):
    tensors = tuple(qkv(2, 5, 16, 64))

    def operators(graph):
        return [str(node.target) for node in graph.graph.nodes]

    def traced():
        return (
            re.sub(r"___torch_mangle_\d+\.", "", str(torch.jit.trace(Calls(), tensors).inlined_graph)),
            torch.fx.symbolic_trace(Calls()).code,
            operators(make_fx(Calls())(*tensors)),
            operators(make_fx(Calls(), tracing_mode="symbolic")(*tensors)),
            operators(make_fx(torch.func.functionalize(Calls()))(*tensors)),
        )

    expected = without(monkeypatch, traced)
    assert traced() == expected
    assert torch.fx.symbolic_trace(Calls())(*tensors).equal(Calls()(*tensors))


@pytest.mark.skipif(IS_OLD, reason="exports otherwise")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_exports_have_pytorchs_operators(installed, monkeypatch, strict):
    tensors = tuple(qkv(2, 5, 16, 64))

    def exported():
        program = torch.export.export(Calls(), tensors, strict=strict)
        operators = [[str(node.target) for node in program.graph.nodes]]
        for table in (None, {}):
            decomposed = program.run_decompositions(table)
            operators.append([str(node.target) for node in decomposed.graph.nodes])
        return operators

    # Registered kernels of other tests have no effect if nothing is installed.
    expected = without(monkeypatch, exported)
    assert exported() == expected
    assert len(expected[1]) > 20 and not any("gridguard" in name for names in expected for name in names)


@DEPRECATED
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("inference", [False, True])
def test_compiled_code_is_served(installed, backend, inference):
    torch.compiler.reset()
    tensors = qkv(2, 5, 16, 64)

    def function(query, key, value):
        return F.scaled_dot_product_attention(query * 2, key, value, is_causal=True).sin()

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    expected = PYTORCH(tensors[0].double() * 2, *(t.double() for t in tensors[1:]), is_causal=True).sin()
    with torch.inference_mode(inference):
        found = compiled(*tensors)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    # Before 2.5 compilers decompose PyTorch's operator in inference mode.
    assert installed().served == (backend == "eager" or not (IS_OLD and inference))
    if not inference:
        tensors = [tensor.requires_grad_() for tensor in tensors]
        exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
        expected = PYTORCH(exact[0] * 2, *exact[1:], is_causal=True).sin()
        found = torch.autograd.grad(compiled(*tensors).sum(), tensors)
        expected = torch.autograd.grad(expected.sum(), exact)
        torch.testing.assert_close([one.double() for one in found], list(expected), rtol=1e-4, atol=1e-4)
        assert installed().served == 2


def test_code_compiled_without_install_has_pytorchs_operator_and_another_key(on_cpu):
    def found():
        seen = operators_of(Calls())
        tag = getattr(getattr(torch.compiler, "config", None), "cache_key_tag", None)
        return "gridguard.attention.default" in seen, tag

    before = found()
    with ours.installed():
        during = found()
        with ours.installed():
            assert found() == during
    assert (before[0], during[0]) == (False, True)
    assert before[1] is None or before[1] != during[1]
    assert found() == before


def test_compiled_code_of_another_version_of_the_operators_has_another_key(tmp_path):
    from gridguard import _block_operator, _install, _operator

    sources = [Path(module.__file__) for module in (_operator, _block_operator)]
    assert _install._tag_of(*sources) == _install._TAG
    for at, source in enumerate(sources):
        changed = tmp_path / source.name
        changed.write_bytes(source.read_bytes() + b"# changed")
        assert _install._tag_of(*sources[:at], changed, *sources[at + 1 :]) != _install._TAG


def test_compiled_code_with_sizes_that_depend_on_data_compiles(installed, monkeypatch):
    def function(query, count):
        size = count.item()
        torch._check(size >= 2)
        torch._check(size <= 16)
        return F.scaled_dot_product_attention(query.narrow(2, 0, size), query, query)

    def outcome():
        torch.compiler.reset()
        try:
            return torch.compile(function, backend="aot_eager", fullgraph=True)(query, torch.tensor(7))
        except torch._dynamo.exc.TorchDynamoException as error:
            return type(error)

    query = torch.randn(2, 5, 16, 64)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        expected, found = without(monkeypatch, outcome), outcome()
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found is expected


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears")
def test_a_profile_contains_our_operator(attention, on_cpu):
    tensors = qkv(2, 5, 16, 64)
    attention(*tensors)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        torch.testing.assert_close(attention(*tensors), PYTORCH(*tensors))
        tensors[0].requires_grad_()
        attention(*tensors)
    [event] = [event for event in profile.key_averages() if event.key == "gridguard::attention"]
    assert event.count >= 2
    shapes = next(event.input_shapes for event in profile.events() if event.name == "gridguard::attention")
    assert shapes[:3] == [[2, 5, 16, 64]] * 3


@pytest.mark.skipif(IS_OLD, reason="has no grouped heads")
def test_the_flop_counter_counts_our_operator_like_pytorchs(on_cpu):
    def counted(function, *arguments, **options):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            function(*arguments, **options)
        return counter.get_total_flops()

    operator = torch.ops.gridguard.attention.default
    grouped = torch.randn(2, 6, 16, 64), torch.randn(2, 2, 24, 64), torch.randn(2, 2, 24, 64)
    for tensors, is_grouped in ((qkv(2, 5, 16, 64), False), (qkv(9, 16, 32), False), (grouped, True)):
        expected = counted(PYTORCH, *tensors, enable_gqa=is_grouped)
        assert counted(operator, *tensors, None, False, 0.125, is_grouped) == expected > 0
        with ours.installed():
            assert counted(F.scaled_dot_product_attention, *tensors, enable_gqa=is_grouped) == expected
    # PyTorch's own formula for its kernels on a device.
    formula = torch.utils.flop_counter.flop_registry[torch.ops.aten._scaled_dot_product_flash_attention]
    tensors = qkv(2, 5, 16, 64)
    assert counted(operator, *tensors, None, True, 0.125, False) == formula(*tensors, out_val=tensors[0])


@pytest.fixture
def short(installed):
    """Return a function that calls PyTorch's function, and tells whether the native module alone served the call."""
    from gridguard import _launch

    def call(*arguments, **options):
        before = _launch.kernels.counts[0]
        out = F.scaled_dot_product_attention(*arguments, **options)
        expected = _pytorch.unserved(*arguments, **options)
        assert out.dtype is expected.dtype
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        return _launch.kernels.counts[0] > before

    return call


def test_common_calls_run_no_python_code(short, installed):
    tensors = qkv(2, 6, 16, 64)
    grouped = (tensors[0], *qkv(2, 2, 16, 64)[1:])
    assert short(*tensors) and short(*tensors, None, 0.0, True) and short(*tensors, is_causal=True, scale=0.3)
    assert IS_OLD or short(*grouped, scale=2, enable_gqa=True)
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("cpu"), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert short(*(tensor.clone() for tensor in tensors)), context
    with torch.no_grad():
        assert short(*(torch.nn.Parameter(tensor) for tensor in tensors))
    assert short(*tensors, torch.rand(16, 16) > 0.2)
    assert short(*(tensor.requires_grad_() for tensor in qkv(2, 5, 16, 64)))
    assert not installed().pytorch


def test_uncommon_calls_run_as_before(short, installed):
    tensors = qkv(2, 5, 16, 64)
    assert not short(*tensors, torch.zeros(16, 1))
    memory = torch.randn(2, 3, 6, 4, 16, 64).permute(0, 2, 3, 1, 4, 5)
    assert not short(memory, *qkv(2, 6, 4, 3, 16, 64)[1:]), "copied for its strides"
    assert installed() == Counts(2, {}, copied=1)
    assert not short(*qkv(2, 5, 516, 64)) and not short(*qkv(2, 5, 16, 64, dtype=torch.float64))
    with Functions():
        torch.ops.aten.scaled_dot_product_attention(*tensors)
    negative = torch._neg_view(tensors[0])
    assert not short(negative, *tensors[1:])
    assert installed().pytorch.keys() == {"length", "dtype", "tensor type"}
    with pytest.raises(RuntimeError, match="size of tensor"):
        F.scaled_dot_product_attention(tensors[0], tensors[1][:, :3], tensors[2])
    assert installed().served == 3


@DEPRECATED
def test_forward_gradients_are_pytorchs(short, installed):
    from torch.autograd import forward_ad

    tensors, tangents = qkv(2, 5, 16, 8), qkv(2, 5, 16, 8)
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(tensors, tangents)]
        found = forward_ad.unpack_dual(F.scaled_dot_product_attention(*duals)).tangent
        expected = forward_ad.unpack_dual(_pytorch.unserved(*duals)).tangent
    assert expected is not None
    torch.testing.assert_close(found, expected)
    assert set(installed().pytorch) == {"transform"}


@pytest.mark.parametrize("served", [True, False])
def test_the_dispatched_kernel_takes_any_arguments(on_cpu, served):
    from gridguard import _launch, _native

    seen = []
    kernel = _native.Dispatched(lambda *arguments, **options: seen.append((arguments, options)), _pytorch.thread)
    assert kernel.kernels is None
    kernel.kernels = _launch.kernels if served else None
    tensors = qkv(2, 5, 16, 64)
    others = [
        ((), {}),
        (tensors[:2], {}),
        ((*tensors, None, 0.0, False, None), {}),
        (tensors, {"attn_mask": None, "scale": None}),
        ((1, 2, 3), {}),
        ((*tensors, tensors[0]), {}),
        ((*tensors, None, 0.0, 1), {}),
        (tensors, {"scale": float("nan")}),
        (tensors, {"enable_gqa": None}),
    ]
    for arguments, options in others:
        assert kernel(*arguments, **options) is None
        assert seen[-1] == (tuple(arguments), options)
    assert len(seen) == len(others) and on_cpu() == Counts(0, {})
    assert isinstance(kernel(*tensors), torch.Tensor) is served
    with pytest.raises(TypeError):
        kernel.kernels = 1
