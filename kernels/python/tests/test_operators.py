"""Tests of the operators, eager and in compiled code, on the CPU. Needs PyTorch."""

from __future__ import annotations

import itertools

import calls
import pytest
import torch
from calls import IS_OLD, PYTORCH
from functorch.compile import make_boxed_func
from stand_in import leave_backward_to_pytorch, qkv
from torch._dynamo.backends.common import aot_autograd

import gridguard.torch as ours
from gridguard import _pytorch

attention = ours.scaled_dot_product_attention
MOST = 3
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
UTILS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def laid_out(kind, *sizes, dtype=torch.float32):
    """Make a tensor of [items, heads, length, width] in one of the layouts."""
    items, heads, length, width = sizes
    if kind == "interleaved":
        return torch.randn(heads, items, length, 2, width, dtype=dtype).permute(3, 1, 0, 2, 4)[0]
    if kind == "at an odd element":
        return calls.shifted(torch.randn(sizes, dtype=dtype))
    return calls.laid_out(kind, [items, heads], length, width, dtype, "cpu")


LAYOUTS = ("contiguous", "heads last", "packed", "sliced", "columns", "interleaved", "expanded", "at an odd element")
BIASES = {
    "none": lambda: None,
    "matrix": lambda: torch.randn(6, 5),
    "rows": lambda: torch.randn(2, 1, 6, 1).expand(2, 3, 6, 5),
    "heads": lambda: torch.randn(3, 6, 5),
    "items": lambda: torch.randn(2, 1, 1, 5),
    "columns": lambda: torch.randn(5, 6).t(),
}


def checked(layouts, bias=None, dtype=torch.float32, needed=(True, True, True, True), **options):
    """Compare both operators with their fakes: sizes, strides, type, device and aliases."""
    heads = options.get("heads", 3)
    query = laid_out(layouts[0], 2, 3, 6, 8, dtype=dtype)
    key = laid_out(layouts[1], 2, heads, 5, 8, dtype=dtype)
    value = laid_out(layouts[2], 2, heads, 5, 8, dtype=dtype)
    bias = None if bias is None else bias.to(dtype)
    call = (options.get("causal", False), 0.3, heads != 3)
    inputs = (query, key, value, bias)
    tensors = [one if one is None else one.detach().requires_grad_(need) for one, need in zip(inputs, needed)]
    torch.library.opcheck(torch.ops.gridguard.attention.default, (*tensors, *call), test_utils=UTILS)
    grad = laid_out(layouts[3], 2, 3, 6, 8, dtype=dtype)
    # PyTorch's compiled code has no second derivatives. The kernels and PyTorch compute the first ones.
    arguments = (grad, *inputs, *call, list(needed))
    torch.library.opcheck(torch.ops.gridguard.attention_backward.default, arguments, test_utils=UTILS)
    with pytest.MonkeyPatch.context() as patched:
        leave_backward_to_pytorch(patched)
        torch.library.opcheck(torch.ops.gridguard.attention_backward.default, arguments, test_utils=UTILS)


# PyTorch's check reads gradients of non-leaf tensors.
own_checks = pytest.mark.filterwarnings("ignore:The .grad attribute")
PLAIN = ("contiguous",) * 4
CHECKED = [
    *({"layouts": [*PLAIN[:at], layout, *PLAIN[at + 1 :]]} for layout in LAYOUTS for at in range(4)),
    *({"layouts": [layout] * 4, "causal": True} for layout in LAYOUTS),
    *(
        {"layouts": ["contiguous", "heads last", "contiguous", "contiguous"], "bias": BIASES[bias](), "dtype": dtype}
        for bias in BIASES
        for dtype in DTYPES
    ),
    *(
        {"layouts": PLAIN, "bias": torch.randn(3, 6, 5), "needed": needed}
        for needed in itertools.product([True, False], repeat=4)
    ),
    *({"layouts": [layout] * 4, "heads": 1} for layout in ("contiguous", "heads last") if not IS_OLD),
]


@own_checks
@pytest.mark.parametrize("options", CHECKED)
def test_operators_agree_with_their_fakes(on_cpu, options):
    checked(**options)


@own_checks
@pytest.mark.parametrize("layout", ["contiguous", "heads last", "expanded", "sliced"])
def test_fakes_agree_in_slices(on_cpu, monkeypatch, layout):
    monkeypatch.setattr(_pytorch, "MAX_SLICE", 1)
    checked([layout] * 4)
    checked(["contiguous", layout, layout, "contiguous"], torch.randn(2, 1, 6, 5))


@own_checks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_agrees_with_its_fake(on_cpu, layout):
    tensor = laid_out(layout, 2, 3, 6, 8).detach()
    for requires_grad in (False, True):
        torch.library.opcheck(torch.ops.gridguard.copied.default, (tensor.requires_grad_(requires_grad),))
        found = torch.ops.gridguard.copied(tensor)
        assert torch.equal(found, tensor) and found.data_ptr() != tensor.data_ptr()


class Recorder(torch.fx.Interpreter):
    """Run compiled code, and record the items and heads of PyTorch's attention and dropout kernels."""

    sizes: list

    def call_function(self, target, args, kwargs):
        if "scaled_dot_product" in str(target) or "dropout" in str(target):
            self.sizes.append(tuple(args[0].shape[:2]))
        return super().call_function(target, args, kwargs)


@pytest.fixture
def seen(on_cpu, monkeypatch):
    """Record the sizes of calls of PyTorch's function and kernels, with a small limit of the grid, and all gradients."""
    torch.compiler.reset()
    sizes = []

    def recorded(query, *others, **options):
        if not torch.compiler.is_compiling():
            sizes.append(tuple(query.shape[:2]))
        return PYTORCH(query, *others, **options)

    leave_backward_to_pytorch(monkeypatch)
    monkeypatch.setattr(_pytorch, "MAX_SLICE", MOST)
    monkeypatch.setattr(_pytorch, "unserved", recorded)
    monkeypatch.setattr(Recorder, "sizes", sizes, raising=False)
    return sizes


def compiled(function, **options):
    def compiler(module, inputs):
        return make_boxed_func(lambda *arguments: Recorder(module).run(*arguments))

    return torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=compiler), **options)


def compare(function, tensors, *arguments, **options):
    """Compare output and gradients with PyTorch's."""
    found = function(*tensors, *arguments)
    expected = PYTORCH(*tensors, *arguments, **options)
    torch.testing.assert_close(found, expected)
    weights = torch.linspace(-1, 1, expected.shape[-1])
    if any(tensor.requires_grad for tensor in tensors):
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        torch.testing.assert_close(
            torch.autograd.grad((found * weights).sum(), wanted),
            torch.autograd.grad((expected * weights).sum(), wanted),
        )


LENGTHS = {"served": 6, "not served": 516}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dynamic", [False, True, "marked"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled_code_gives_pytorch_no_oversized_batch(seen, length, dynamic, requires_grad):
    function = compiled(attention, dynamic=bool(dynamic))
    for items in (2, 4, 5, 8, 9):
        tensors = qkv(items, 2, length, 8, requires_grad=requires_grad)
        for tensor in tensors if dynamic == "marked" else ():
            torch._dynamo.mark_dynamic(tensor, 0)
        compare(function, tensors)
    assert all(items <= MOST for items, _ in seen), seen
    assert seen if requires_grad or length == 516 else not seen


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("case", ["heads", "shared keys", "mask", "mask of items", "scale", "causal"])
def test_compiled_calls_of_every_kind_are_sliced(seen, length, case):
    query, key, value = qkv(7, 5 if case == "heads" else 2, length, 8, requires_grad=True)
    if case == "shared keys":
        key, value = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(2))
    options = {"scale": {"scale": 0.3}, "causal": {"is_causal": True}}.get(case, {})
    masks = {"mask": (length, length), "mask of items": (7, 1, 1, length)}
    mask = [torch.randn(masks[case]) > -1] if case in masks else []
    compare(compiled(lambda *arguments: attention(*arguments, **options)), (query, key, value), *mask, **options)
    assert seen and all(max(sizes) <= MOST for sizes in seen), seen


@pytest.mark.skipif(IS_OLD, reason="has no grouped heads")
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("compile_it", [False, True])
def test_grouped_heads_are_sliced(seen, length, compile_it):
    options = {"enable_gqa": True}
    for items, heads in ((7, 2), (7, 8), (2, 8)):
        query = torch.randn(items, heads, length, 8, requires_grad=True)
        key, value = (torch.randn(items, 2, length, 8, requires_grad=True) for _ in range(2))

        def function(*tensors):
            return attention(*tensors, **options)

        compare(compiled(function) if compile_it else function, (query, key, value), **options)
    assert seen and all(max(sizes) <= MOST for sizes in seen), seen


@pytest.mark.parametrize("sizes", [(7, 516, 8), (2, 7, 5, 516, 8), (7, 6, 8), (2, 7, 5, 6, 8)])
def test_other_ranks_are_compiled(seen, sizes):
    """Compile ranks that PyTorch computes by matrix products, which no batch overflows."""
    compare(compiled(attention, dynamic=True), qkv(*sizes, requires_grad=True))


def test_compiled_dropout_is_sliced(seen):
    tensors = qkv(7, 2, 516, 8, requires_grad=True)
    out = compiled(lambda *tensors: attention(*tensors, dropout_p=0.5), dynamic=True)(*tensors)
    torch.autograd.grad(out.sum(), tensors)
    assert seen and all(items <= MOST for items, _ in seen), seen


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_compiled_autocast_is_sliced(seen, length):
    tensors = qkv(7, 2, length, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = compiled(attention)(*tensors), PYTORCH(*tensors)
    assert out.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    found = torch.autograd.grad(out.float().square().sum(), tensors)
    expected = torch.autograd.grad(expected.float().square().sum(), tensors)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
    assert seen and all(items <= MOST for items, _ in seen), seen


def test_compiled_code_refuses_second_derivatives_as_pytorch_does(seen):
    tensors = qkv(7, 2, 6, 8, requires_grad=True)
    found = torch.autograd.grad(compiled(attention)(*tensors).sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(sum(one.sum() for one in found), tensors)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_run_any_batch(seen, strict):
    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return attention(query, key, value)

    batch = {0: torch.export.Dim("batch", min=1, max=1000)}
    program = torch.export.export(Module(), tuple(qkv(2, 2, 516, 8)), dynamic_shapes=(batch,) * 3, strict=strict)
    tensors = qkv(9, 2, 516, 8)
    torch.testing.assert_close(program.module()(*tensors), PYTORCH(*tensors))


def test_eager_calls_are_sliced_with_gradients(seen):
    for length in LENGTHS.values():
        compare(attention, qkv(8, 5, length, 8, requires_grad=True))
        compare(attention, qkv(8, 2, length, 8))
    assert all(max(sizes) <= MOST for sizes in seen), seen
