"""Tests of derivatives of every order, on the CPU. Needs PyTorch."""

from __future__ import annotations

import pytest
import torch
from calls import IS_OLD, PYTORCH
from stand_in import Counts, leave_backward_to_pytorch, qkv
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import gridguard.torch as ours
from gridguard import _launch, _native, _operator, _pytorch

attention = ours.scaled_dot_product_attention
DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def exact(*tensors, **options):
    """Compute attention by plain operators, which have all derivatives."""
    with sdpa_kernel(SDPBackend.MATH):
        return PYTORCH(*tensors, **options)


def close(found, expected):
    """Compare relative to the largest number: squares of squares amplify the rounding of small ones."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.to(other.dtype), other, rtol=2e-4, atol=2e-5 * other.abs().max().item())


def of_one_tensor(x, weights):
    """Make query, key and value depend on one another: no path between them may count twice."""
    query = x @ weights[0]
    key = query.sin() + x @ weights[1]
    value = key * query.cos()
    return query, key, value


def derivatives(function, order, x, weights, **options):
    """Differentiate the squares of the last gradients `order` times, with respect to x and the weights."""
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    found = (function(*of_one_tensor(x, weights), **options),)
    for at in range(order):
        squares = sum(one.square().sum() for one in found)
        found = torch.autograd.grad(squares, (x, weights), create_graph=at + 1 < order)
    return found


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "boolean mask": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril(1)},
    "mask of heads": {"attn_mask": torch.randn(1, 3, 6, 6)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_attention_to_itself_are_exact(on_cpu, order, case):
    x, weights = torch.randn(2, 3, 6, 8), torch.randn(2, 8, 8) / 4
    options = CASES[case]
    found = derivatives(attention, order, x, weights, **options)
    wide = {name: one.double() if name == "attn_mask" and one.is_floating_point() else one for name, one in options.items()}
    expected = derivatives(exact, order, x.double(), weights.double(), **wide)
    close(found, expected)
    # Each derivative differentiates the call again.
    assert on_cpu() == Counts(1, {}, backward=order)


@pytest.mark.parametrize("case", CASES)
def test_gradients_that_the_kernels_refuse_come_from_pytorch(on_cpu, monkeypatch, case):
    leave_backward_to_pytorch(monkeypatch)
    tensors, options = qkv(2, 3, 6, 8, requires_grad=True), CASES[case]
    found = torch.autograd.grad(attention(*tensors, **options).square().sum(), tensors)
    close(found, torch.autograd.grad(exact(*tensors, **options).square().sum(), tensors))
    assert on_cpu() == Counts(1, {"backward pass: refused": 1})


@pytest.mark.parametrize(
    ("reason", "sizes", "dtype"),
    [
        ("dtype", (2, 3, 6, 8), DOUBLE),
        ("length", (2, 3, _native.MAX_LENGTH + 1, 8), torch.float32),
        ("shape", (2, 3, 6, _native.MAX_HEAD_DIM + 8), torch.float32),
    ],
)
def test_the_reason_for_pytorchs_gradients_is_counted(on_cpu, reason, sizes, dtype):
    tensors = qkv(*sizes, dtype=dtype, requires_grad=True)
    out = torch.ops.gridguard.attention(*tensors, None, False, 0.4, False)
    found = torch.autograd.grad(out.square().sum(), tensors)
    close(found, torch.autograd.grad(exact(*tensors, scale=0.4).square().sum(), tensors))
    assert on_cpu() == Counts(0, {reason: 1, f"backward pass: {reason}": 1})


def test_gradients_of_any_strides_are_computed(on_cpu):
    def swapped(*sizes):
        return torch.randn(*sizes).transpose(-3, -2).requires_grad_()

    def gradients(function, tensors):
        # The gradient of a sum has strides of 0.
        return torch.autograd.grad(function(*tensors).sum(), tensors)

    tensors = [swapped(2, 6, 3, 8) for _ in range(3)]
    found = gradients(attention, tensors)
    close(found, gradients(exact, tensors))
    assert [one.stride() for one in found] == [one.stride() for one in tensors]
    assert on_cpu() == Counts(1, {}, backward=1)
    # Batch axes that do not fold are copied for both passes.
    tensors = [torch.randn(2, 4, 3, 6, 8).transpose(0, 1).requires_grad_() for _ in range(3)]
    close(gradients(attention, tensors), gradients(exact, tensors))
    assert on_cpu() == Counts(2, {}, copied=2, backward=2)


@pytest.mark.skipif(IS_OLD, reason="has no grouped heads")
@pytest.mark.parametrize("mask", [None, (7, 5), (2, 1, 7, 5), (1, 6, 7, 5), (6, 1, 5)])
def test_gradients_of_a_group_of_heads_are_added(on_cpu, mask):
    query = torch.randn(2, 6, 7, 8, requires_grad=True)
    key, value = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(2))
    tensors = (query, key, value)
    options = {"enable_gqa": True, "attn_mask": None if mask is None else torch.randn(mask)}
    weights = torch.randn(2, 6, 7, 8)
    found = torch.autograd.grad(attention(*tensors, **options), tensors, weights)
    close(found, torch.autograd.grad(exact(*tensors, **options), tensors, weights))
    # A mask of items or heads does not fold with groups of heads.
    is_served = mask in (None, (7, 5))
    assert on_cpu() == (Counts(1, {}, backward=1) if is_served else Counts(0, {"strides": 1}))
    assert _launch.kernels.counts[:2] == [is_served, is_served]


def test_gradients_of_shared_keys_are_added(on_cpu):
    query, key, value = inputs = [torch.randn(items, 2, 6, 8, requires_grad=True) for items in (8, 1, 8)]
    weights = torch.randn(8, 2, 6, 8)
    expected = torch.autograd.grad((exact(query, key.expand(8, -1, -1, -1), value) * weights).sum(), inputs)
    found = _operator.attention_backward(weights, *inputs, None, False, 8**-0.5, False, (True, True, True, True))
    close(found[:3], expected)
    assert found[3].shape == (0,) and on_cpu().backward == 1


@pytest.mark.skipif(IS_OLD, reason="has no grouped heads")
def test_grouped_heads_have_second_derivatives(on_cpu):
    query, key, value = (torch.randn(2, heads, 6, 8, requires_grad=True) for heads in (6, 2, 2))

    def penalty(function):
        out = function(query, key, value, enable_gqa=True)
        first = torch.autograd.grad(out.square().sum(), (query, key, value), create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), (query, key, value))

    close(penalty(attention), penalty(exact))
    assert on_cpu().served == 1


def test_the_formulas_agree_with_finite_differences():
    """Check the operators in double precision, which the kernels do not serve."""
    tensors = qkv(2, 2, 4, 3, dtype=DOUBLE, requires_grad=True)
    bias = torch.randn(2, 1, 4, dtype=DOUBLE, requires_grad=True)

    def function(query, key, value, bias=None, is_causal=False):
        return torch.ops.gridguard.attention(query, key, value, bias, is_causal, 0.4, False)

    for inputs in ((*tensors, None, True), (*tensors, bias), (*tensors, bias.detach())):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
    joined = torch.randn(1, 2, 4, 3, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: function(x, x.sin(), x * x, is_causal=True), joined)
    assert torch.autograd.gradgradcheck(lambda x: function(x, x.sin(), x * x, x @ x.mT), joined)
    for needed in ([True] * 4, [False, True, False, True], [True, False, True, False], [False, False, False, True]):

        def gradients(grad, *inputs):
            found = torch.ops.gridguard.attention_backward(grad, *inputs, False, 0.4, False, needed)
            return [one for one, need in zip(found, needed) if need]

        grad = torch.randn(2, 2, 4, 3, dtype=DOUBLE, requires_grad=True)
        assert torch.autograd.gradcheck(gradients, (grad, *tensors, bias))
        assert torch.autograd.gradgradcheck(gradients, (grad, *tensors, bias))


def test_a_graph_may_be_kept_and_freed(on_cpu):
    tensors = qkv(2, 3, 6, 8, requires_grad=True)
    loss = attention(*tensors).sum()
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, tensors), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, tensors)
    found = torch.autograd.grad(attention(*tensors).sum(), tensors, create_graph=True)
    again = sum(one.square().sum() for one in found)
    torch.autograd.grad(again, tensors)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(again, tensors)


@pytest.mark.parametrize("again", [False, True])
def test_inputs_changed_in_place_are_an_error(on_cpu, again):
    tensors = [tensor.clone() for tensor in qkv(2, 3, 6, 8, requires_grad=True)]
    out = attention(*tensors)
    if again:
        found = torch.autograd.grad(out.sum(), tensors, create_graph=True)
        out = sum(one.square().sum() for one in found)
    tensors[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), tensors)


def test_hooks_run_once_and_may_change_the_gradient(on_cpu):
    seen = []

    def hooked(function):
        x = torch.arange(96.0).reshape(1, 2, 6, 8).sin().requires_grad_()
        query, key, value = x * 1, x * 2, x * 3
        for name, tensor in (("q", query), ("k", key), ("v", value)):
            tensor.register_hook(lambda grad, name=name: seen.append(name) or grad * 2)
        out = function(query, key, value)
        out.register_hook(lambda grad: seen.append("out") or grad + 1)
        return torch.autograd.grad(out.square().sum(), x, create_graph=True)

    torch.testing.assert_close(hooked(attention), hooked(exact))
    assert sorted(seen) == sorted(["q", "k", "v", "out"] * 2)
    assert on_cpu().served == 1


def test_saved_tensors_are_packed_and_unpacked(on_cpu):
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.double()

    tensors = qkv(2, 3, 6, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.float()):
        out = attention(*tensors)
    found = torch.autograd.grad(out.sum(), tensors)
    assert packed == [(2, 3, 6, 8)] * 3
    torch.testing.assert_close(found, torch.autograd.grad(exact(*tensors).sum(), tensors))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_the_call_again(on_cpu, reentrant):
    tensors = qkv(2, 3, 6, 8, requires_grad=True)

    def gradients(function):
        out = checkpoint(lambda *inputs: function(*inputs).sin(), *tensors, use_reentrant=reentrant)
        out.sum().backward()
        found = [tensor.grad for tensor in tensors]
        for tensor in tensors:
            tensor.grad = None
        return found

    torch.testing.assert_close(gradients(attention), gradients(PYTORCH))
    assert on_cpu().served == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_jacobians_and_hessians_are_exact(on_cpu):
    tensors = qkv(1, 2, 3, 4)
    of = torch.autograd.functional
    for vectorize in (False, True):
        found = of.jacobian(lambda *inputs: attention(*inputs).sum(1), tuple(tensors), vectorize=vectorize)
        torch.testing.assert_close(found, of.jacobian(lambda *inputs: exact(*inputs).sum(1), tuple(tensors)))
    x = tensors[0]
    for vectorize in (False, True):
        found = of.hessian(lambda x: attention(x, x.sin(), x).square().sum(), x, vectorize=vectorize)
        torch.testing.assert_close(found, of.hessian(lambda x: exact(x, x.sin(), x).square().sum(), x))
    assert on_cpu().served == 4


def test_the_backward_pass_is_not_cast(on_cpu):
    tensors = qkv(2, 3, 6, 8, requires_grad=True)
    expected = torch.autograd.grad(exact(*tensors).square().sum(), tensors)
    loss = attention(*tensors).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, tensors, create_graph=True)
        [second] = torch.autograd.grad(sum(one.square().sum() for one in found), tensors[0])
    torch.testing.assert_close(found, expected)
    assert second.dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        loss = attention(*tensors).square().sum()
    found = torch.autograd.grad(loss, tensors)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


BIASES = [(6, 5), (1, 5), (3, 6, 5), (1, 3, 6, 5), (2, 1, 6, 5), (2, 1, 1, 5), (2, 3, 6, 5)]


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("sizes", BIASES)
def test_a_bias_has_the_sum_of_the_gradients_of_its_scores(on_cpu, monkeypatch, sizes, by_kernels):
    if not by_kernels:
        leave_backward_to_pytorch(monkeypatch)
    query, key, value = (torch.randn(2, 3, rows, 8, requires_grad=True) for rows in (6, 5, 5))
    bias, weights = torch.randn(sizes, requires_grad=True), torch.randn(2, 3, 6, 8)
    for inputs in ((query, key, value, bias), (bias,)):
        found = torch.autograd.grad(attention(query, key, value, bias), inputs, weights)
        exact_inputs = [one.double() for one in (query, key, value, bias)]
        close(found, torch.autograd.grad(exact(*exact_inputs), inputs, weights.double()))
    # The other inputs are constants.
    constants = [one.detach() for one in (query, key, value)]
    close(torch.autograd.grad(attention(*constants, bias), bias, weights), found)
    path = {} if by_kernels else {"backward pass: refused": 3}
    assert on_cpu() == Counts(3, path, backward=3 * by_kernels)


def test_one_number_for_all_keys_has_no_gradient(on_cpu):
    bias = torch.randn(3, 6, 1, requires_grad=True)
    [found] = torch.autograd.grad(attention(*qkv(2, 3, 6, 8), bias).square().sum(), bias)
    torch.testing.assert_close(found, torch.zeros_like(bias), rtol=0, atol=1e-5)
    assert on_cpu() == Counts(1, {}, backward=1)


def test_a_bias_of_another_layout_has_gradients_in_its_layout(on_cpu):
    query, key, value = qkv(2, 3, 6, 8)
    weights = torch.randn(2, 3, 6, 8)
    for bias in (torch.randn(6, 6).t(), torch.randn(6, 3, 2, 6).transpose(0, 2), torch.randn(3, 6, 12)[..., ::2]):
        bias = bias.requires_grad_()
        [found] = torch.autograd.grad(attention(query, key, value, bias), bias, weights)
        close([found], torch.autograd.grad(exact(query, key, value, bias), bias, weights))
    assert on_cpu() == Counts(3, {}, backward=3)


def test_gradients_that_do_not_fit_come_from_pytorch(on_cpu, monkeypatch):
    query, key, value = qkv(2, 3, 6, 8, requires_grad=True)
    bias = torch.randn(3, 6, 6, requires_grad=True)
    inputs, weights = (query, key, value, bias), torch.randn(2, 3, 6, 8)

    def gradients(function):
        return torch.autograd.grad(function(*inputs), inputs, weights)

    def out_of_memory(*arguments, **options):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    expected = gradients(exact)
    with monkeypatch.context() as patched:
        # The gradient of the bias for each item and head.
        patched.setattr(torch.Tensor, "sum_to_size", out_of_memory)
        close(gradients(attention), expected)
    assert on_cpu() == Counts(1, {"backward pass: memory": 1})
    # Nor do PyTorch's gradients.
    out = attention(*inputs)
    monkeypatch.setattr(_operator, "_launch_folded", out_of_memory)
    monkeypatch.setattr(_pytorch, "unserved", out_of_memory)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.autograd.grad(out, inputs, weights)
    assert on_cpu() == Counts(2, {"backward pass: memory": 2})


def windows(bias, heads_last=False, frames=7):
    """Make query, key and value of 4 images with 6 windows and 3 heads, and weights for the output."""

    def tensor():
        if heads_last:
            return torch.randn(4, 6, frames, 3, 8).transpose(2, 3)
        return torch.randn(4, 6, 3, frames, 8)

    return [*(tensor().requires_grad_() for _ in range(3)), bias.requires_grad_(bias.is_floating_point())], tensor()


@pytest.mark.parametrize("heads_last", [False, True])
@pytest.mark.parametrize("kind", ["bool", "additive", "expanded"])
@pytest.mark.parametrize("sizes", [(1, 6, 1, 7, 7), (6, 3, 7, 7), (1, 1, 3, 7, 7), (4, 6, 1, 7, 7)])
def test_a_mask_of_windows_is_served(on_cpu, sizes, kind, heads_last):
    mask = torch.randn(sizes)
    if kind == "bool":
        mask = mask > -0.7
    if kind == "expanded":
        mask = mask.expand(4, 6, *mask.shape[-3:])
    inputs, weights = windows(mask.detach(), heads_last)
    wanted = [one for one in inputs if one.requires_grad]
    out, expected = attention(*inputs), exact(*(one.double() if one.requires_grad else one for one in inputs))
    close([out.detach()], [expected.detach()])
    close(torch.autograd.grad(out, wanted, weights), torch.autograd.grad(expected, wanted, weights.double()))
    counts = on_cpu()
    # With heads last, batch and windows are items. A bias of windows and heads does not fold.
    assert (counts.served, counts.backward, counts.pytorch) == (1, 1, {})
    assert counts.copied == (2 if heads_last and sizes == (6, 3, 7, 7) else 0)


@pytest.mark.parametrize(
    ("heads_last", "expanded"), [(False, (1, 6, 3, 7, 7)), (True, (4, 6, 1, 7, 7))], ids=["contiguous", "heads last"]
)
def test_a_mask_of_windows_is_expanded_along_the_fewest_axes(on_cpu, monkeypatch, heads_last, expanded):
    submitted, launch = [], _launch.submit

    def submit(tensors, bias, *others):
        submitted.append(tuple(bias.shape))
        return launch(tensors, bias, *others)

    monkeypatch.setattr(_launch, "submit", submit)
    inputs, _ = windows(torch.randn(1, 6, 1, 7, 7), heads_last)
    with torch.no_grad():
        close([attention(*inputs)], [exact(*inputs)])
    assert submitted[0] == (1, 6, 1, 7, 7) and submitted[-1] == expanded
    assert (4, 6, 3, 7, 7) not in submitted
    assert on_cpu() == Counts(1, {})


@pytest.mark.parametrize("shared", [False, True])
def test_the_backward_pass_calls_pytorch_once_for_each_slice(on_cpu, monkeypatch, shared):
    leave_backward_to_pytorch(monkeypatch)
    query, key, value = qkv(8, 2, 6, 8, requires_grad=True)
    if shared:
        key = torch.randn(1, 2, 6, 8, requires_grad=True)
    # A bias of items is split, and the gradients of a bias of all items are added.
    mask = torch.randn(1 if shared else 8, 2, 6, 6, requires_grad=True)
    inputs = (query, key, value, mask)
    weights = torch.randn(8, 2, 6, 8)
    expected = torch.autograd.grad((exact(query, key.expand(8, -1, -1, -1), value, mask) * weights).sum(), inputs)
    seen = []

    def recorded(query, *others, **options):
        seen.append(query.shape[0])
        return PYTORCH(query, *others, **options)

    monkeypatch.setattr(_pytorch, "MAX_SLICE", 3)
    monkeypatch.setattr(_pytorch, "unserved", recorded)
    found = _operator.attention_backward(weights, *inputs, False, 8**-0.5, False, (True,) * 4)
    torch.testing.assert_close(found, expected)
    assert seen == [3, 3, 2]
    needed = (False, True, False, False)
    empty, found, *_ = _operator.attention_backward(weights, *inputs, False, 8**-0.5, False, needed)
    torch.testing.assert_close(found, expected[1])
    assert empty.shape == (0,)
