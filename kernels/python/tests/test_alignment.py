"""Tests of the copies of unaligned tensors for PyTorch's kernels, on the CPU. Needs PyTorch."""

from __future__ import annotations

import pytest
import torch
from calls import IS_OLD, PYTORCH, shifted
from functorch.compile import make_boxed_func
from stand_in import Counts, leave_backward_to_pytorch, qkv, right_masks  # noqa: F401
from torch._dynamo.backends.common import aot_autograd

import gridguard.torch as ours
from gridguard import _pytorch

attention = ours.scaled_dot_product_attention
# The kernels serve up to 512 queries.
SIZES = (2, 3, 516, 8)


def reads_16_bytes(tensor):
    return tensor.data_ptr() % 16 == 0 and all(
        size == 1 or stride * tensor.element_size() % 16 == 0 for size, stride in zip(tensor.shape[:-1], tensor.stride())
    )


@pytest.fixture
def received(on_cpu, monkeypatch):
    """Record the tensors that PyTorch's function and its backward pass receive."""
    given, gradients, align = [], [], _pytorch.with_aligned_gradient

    def recorded(*arguments, **options):
        given.extend(one for one in arguments if one is not None)
        return PYTORCH(*arguments, **options)

    def recorded_gradient(out):
        out = align(out)
        if out.grad_fn is not None:
            # This hook runs after the copy.
            out.grad_fn.register_prehook(lambda found: gradients.extend(one for one in found if one is not None))
        return out

    monkeypatch.setattr(_pytorch, "unserved", recorded)
    monkeypatch.setattr(_pytorch, "with_aligned_gradient", recorded_gradient)
    return given, gradients


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("elements", [1, 2, 4, 8])
@pytest.mark.parametrize("at", range(3))
def test_a_contiguous_tensor_at_an_odd_element_is_copied(on_cpu, received, dtype, elements, at):
    tensors = qkv(*SIZES, dtype=dtype)
    expected = PYTORCH(*tensors)
    tensors[at] = shifted(tensors[at], elements)
    assert tensors[at].is_contiguous()
    was_aligned = reads_16_bytes(tensors[at])
    torch.testing.assert_close(attention(*tensors), expected)
    given, _ = received
    assert len(given) == 3 and all(map(reads_16_bytes, given))
    assert [one is other for one, other in zip(given, tensors)] == [was_aligned or one != at for one in range(3)]
    assert ours.stats().aligned == (not was_aligned)
    assert on_cpu() == Counts(0, {"length": 1})


@pytest.mark.parametrize("sizes", [SIZES, (2, 3, 16, 8)])
def test_the_backward_pass_receives_aligned_tensors(on_cpu, received, monkeypatch, sizes):
    """Cover served calls too: if PyTorch computes their gradients, it runs their forward pass again."""
    leave_backward_to_pytorch(monkeypatch)
    tensors = qkv(*sizes)
    weights = torch.randn(sizes)
    inputs = [tensor.requires_grad_() for tensor in tensors]
    expected = torch.autograd.grad(PYTORCH(*inputs), inputs, weights)
    odd = [shifted(tensor.detach()).requires_grad_() for tensor in tensors]
    mask = shifted(torch.zeros(sizes[-2], sizes[-2]))
    found = torch.autograd.grad(attention(*odd, mask), odd, shifted(weights))
    torch.testing.assert_close(found, expected)
    given, gradients = received
    assert len(given) == 4 and len(gradients) == 1
    assert all(map(reads_16_bytes, [*given[:3], *gradients])) and given[3].data_ptr() % 16 == 0
    assert ours.stats().aligned == (2 if sizes == SIZES else 1)


@pytest.mark.parametrize("kind", ["sliced", "heads last", "expanded", "columns"])
def test_views_with_unaligned_rows_are_copied(on_cpu, received, kind):
    def view():
        if kind == "sliced":
            return torch.randn(2, 3, 516, 11)[..., 1:9]
        if kind == "heads last":
            return torch.randn(2, 516, 3, 9)[..., :8].transpose(1, 2)
        if kind == "expanded":
            return shifted(torch.randn(1, 3, 516, 8)).expand(SIZES)
        return torch.randn(2, 3, 11, 516)[:, :, 1:9].transpose(2, 3)

    tensors = [view() for _ in range(3)]
    torch.testing.assert_close(attention(*tensors), PYTORCH(*tensors))
    given, _ = received
    # PyTorch has no fused kernels for columns.
    assert all(one is other for one, other in zip(given, tensors)) == (kind == "columns")
    assert kind == "columns" or all(map(reads_16_bytes, given))
    assert kind != "expanded" or all(one.stride(0) == 0 for one in given), "a copy of one item"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated", "ignore:There is a performance drop")
def test_copies_of_expanded_tensors_have_the_derivatives_of_each_item(on_cpu):
    """Compare the gradients of an expanded leaf: one for each item, though the items share memory."""
    for length in (16, 516):
        sizes = (2, 3, length, 7)
        tensors = [torch.randn(1, 3, length, 7).expand(sizes) for _ in range(3)]
        weights = torch.randn(sizes)
        found, theirs = (
            (
                torch.autograd.grad(function(*inputs), inputs, weights),
                torch.func.vjp(function, *tensors)[1](weights),
                torch.vmap(lambda *one: torch.func.vjp(function, *one)[1](weights))(*(t[None] for t in tensors)),
            )
            for function in (attention, PYTORCH)
            for inputs in [[tensor.detach().requires_grad_() for tensor in tensors]]
        )
        torch.testing.assert_close(found, theirs)
        compiled = torch.compile(attention, backend="aot_eager")
        inputs = [tensor.detach().requires_grad_() for tensor in tensors]
        found, theirs = (torch.autograd.grad(function(*inputs), inputs, weights) for function in (compiled, PYTORCH))
        torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("aligned", lambda tensor: tensor),
        ("double", lambda tensor: shifted(tensor.double())),
        ("odd width", lambda tensor: tensor[..., :7].contiguous()),
        ("other rank", lambda tensor: shifted(tensor)[0]),
        ("negated", lambda tensor: torch._neg_view(shifted(tensor))),
    ],
)
def test_tensors_that_pytorch_can_read_are_not_copied(on_cpu, received, kind, change):
    tensors = [change(tensor) for tensor in qkv(*SIZES)]
    torch.testing.assert_close(attention(*tensors), PYTORCH(*tensors))
    given, _ = received
    assert all(one is other for one, other in zip(given, tensors, strict=True))
    assert ours.stats().aligned == 0


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_mask_of_one_column_is_expanded(on_cpu, received, kind):
    tensors = qkv(*SIZES)
    mask = torch.randn(516, 1)
    mask = mask > -0.7 if kind == "bool" else mask
    # Before 2.5 a query without keys gives NaN.
    torch.testing.assert_close(attention(*tensors, mask), PYTORCH(*tensors, mask), equal_nan=IS_OLD)
    assert received[0][3].shape == (516, 516)


@pytest.mark.parametrize("odd", [False, True])
def test_compiled_code_copies_tensors_that_are_unaligned_at_compile_time(on_cpu, odd):
    torch.compiler.reset()
    copies = []

    def compiler(module, inputs):
        copies.extend(node for node in module.graph.nodes if node.target is torch.ops.gridguard.copied.default)
        return make_boxed_func(module)

    tensors = qkv(*SIZES, requires_grad=True)
    if odd:
        tensors[1] = shifted(tensors[1].detach()).requires_grad_()
    for backend in ("eager", aot_autograd(fw_compiler=compiler)):
        found, expected = torch.compile(attention, backend=backend, fullgraph=True)(*tensors), PYTORCH(*tensors)
        torch.testing.assert_close(found, expected)
        found, expected = (torch.autograd.grad(one.sum(), tensors) for one in (found, expected))
        torch.testing.assert_close(found, expected)
    assert len(copies) == odd


def test_transforms_copy_unaligned_tensors(on_cpu, received):
    tensors = [shifted(tensor) for tensor in qkv(*SIZES)]
    found, expected = (
        torch.func.vjp(function, *tensors)[1](torch.ones(SIZES)) for function in (attention, PYTORCH)
    )
    torch.testing.assert_close(found, expected)
    assert ours.stats().aligned >= 1
