"""Tests of `scaled_dot_product_attention` on the CPU. Needs PyTorch; `gpu.py` runs the kernels."""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from calls import BOTH_RAISE, COMPARED, IS_OLD, PYTORCH, SERVED_DERIVATIVE, compare, random_call, reference, shifted
from stand_in import READER, Counts, qkv, right_masks, serve_on_cpu, served_by  # noqa: F401

import gridguard.torch as ours
from gridguard import GridguardError, _attention, _launch, _native, _operator, _pytorch

attention = ours.scaled_dot_product_attention


@pytest.mark.parametrize("dlpack", [False] if READER == "attributes" else [True, False])
def test_random_calls_compute_the_same_as_pytorch(monkeypatch, dlpack):
    counts = serve_on_cpu(monkeypatch, dlpack=dlpack)
    wrong, kinds = [], collections.Counter()
    # `random_calls` of gpu.py draws many more.
    for seed in range(120):
        call = random_call(seed, "cpu")
        comparison = compare(call, attention, reference(call))
        kinds[comparison.kind] += 1
        if comparison.wrong is not None:
            wrong.append(f"{seed}: {comparison.wrong}: {call}")
    assert not wrong, "\n".join(wrong)
    # Before 2.5 PyTorch computes by matrix products here, which have second derivatives.
    assert kinds.keys() == {COMPARED, BOTH_RAISE, *[SERVED_DERIVATIVE] * (not IS_OLD)} and kinds[COMPARED] > 100, kinds
    counts = counts()
    assert counts.served > 30
    assert _launch.kernels.counts[0] > 12, "calls without mask, gradients and autocast take the fast path"
    reasons = {"strides", "shape", "scale", "length", "dtype", "dropout"}
    assert reasons <= counts.pytorch.keys()


def test_the_output_has_the_layout_of_the_query(on_cpu):
    packed = torch.randn(4, 16, 3, 5, 64)
    query, key, value = (packed[:, :, at].transpose(1, 2) for at in range(3))
    out = attention(query, key, value)
    assert out.stride() == (5120, 64, 320, 1)
    torch.testing.assert_close(out, PYTORCH(query, key, value))
    assert on_cpu().served == 1


QUERY = (3, 5, 16, 64)
# The sizes of query, key and value, options, and why PyTorch serves the call, if so.
SERVED = [
    *([sizes] * 3 + [{}, None] for sizes in ((16, 64), (9, 16, 64), (2, 5, 16, 64), (2, 3, 5, 16, 64))),
    # Other numbers of keys than of queries.
    *(
        [QUERY, (3, 5, keys, 64), (3, 5, keys, 64), options, None]
        for keys in (1, 7, 77, 128)
        for options in ({}, {"is_causal": True}, {"scale": 0.3})
    ),
    # The ends of the sizes.
    *([sizes] * 3 + [{}, None] for sizes in ((2, 1, 1, 1), (2, 5, 16, 1), (2, 5, 16, 3), (1 << 20, 1, 1, 1))),
    *(
        [sizes] * 3 + [{}, reason]
        for reason, sizes in (
            (None, (1, 2, _native.MAX_LENGTH, 8)),
            ("length", (1, 2, _native.MAX_LENGTH + 1, 8)),
            (None, (1, 2, 4, _native.MAX_HEAD_DIM - 1)),
            (None, (1, 2, 4, _native.MAX_HEAD_DIM)),
            ("shape", (1, 2, 4, _native.MAX_HEAD_DIM + 1)),
        )
    ),
    # Values of another head dimension than keys.
    *([(3, 5, 16, 40), (3, 5, 9, 40), (3, 5, 9, width), {}, None] for width in (8, 64, 128)),
]


@pytest.mark.parametrize(("query", "key", "value", "options", "reason"), SERVED)
def test_a_call_is_served_with_its_gradients(on_cpu, query, key, value, options, reason):
    inputs = [torch.randn(sizes, requires_grad=True) for sizes in (query, key, value)]
    found, expected = attention(*inputs, **options), PYTORCH(*inputs, **options)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(one.square().sum(), inputs) for one in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert on_cpu() == (Counts(1, {}, backward=1) if reason is None else Counts(0, {reason: 1}))


def test_dropout_is_pytorchs_forwards_and_backwards(on_cpu):
    tensors = qkv(2, 5, 16, 64, requires_grad=True)

    def gradients(function):
        torch.manual_seed(1)
        return torch.autograd.grad(function(*tensors, dropout_p=0.5).square().sum(), tensors)

    torch.testing.assert_close(gradients(attention), gradients(PYTORCH))
    assert on_cpu() == Counts(0, {"dropout": 1})


# PyTorch on the CPU divides by zero for no heads, and for keys without values.
@pytest.mark.parametrize("at", [(0,), (1,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("sizes", [(0, 5, 16, 64), (2, 5, 0, 64), (2, 5, 16, 0)])
def test_empty_tensors_are_pytorchs(on_cpu, sizes, at):
    tensors = qkv(2, 5, 16, 64)
    for one in at:
        tensors[one] = torch.empty(sizes)

    def outcome(function):
        try:
            return function(*tensors)
        except RuntimeError as error:
            return str(error)

    found, expected = outcome(attention), outcome(PYTORCH)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True)
    else:
        assert found == expected
    assert on_cpu() == Counts(0, {"empty": 1})


class Elements(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the results of operators that are no views, and have more than one element."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        if function._schema.returns[0].alias_info is None and found.numel() > 1:
            self.sizes.append(found.numel())
        return found


@pytest.mark.parametrize("sizes", [(12, 1, 7, 7), (12, 5, 7, 7), (1, 1, 7, 7)])
def test_a_boolean_mask_is_converted_in_one_pass_of_its_own_size(sizes):
    query, key, mask = torch.randn(12, 5, 7, 8), torch.randn(12, 5, 7, 8), torch.randn(sizes) > 0
    for given in (mask, mask[:1, :1].expand(12, 5, 7, 7)):
        with Elements() as counted:
            bias = _attention._bias(given, query, key, True)
        own = mask.numel() if given is mask else 49
        assert counted.sizes == [own]
        assert bias.shape == given.shape and torch.equal(bias == 0, given) and bias.dtype is query.dtype


MASKS = {
    "none": lambda: None,
    "boolean": lambda: torch.rand(2, 1, 16, 16) > 0.2,
    "boolean, expanded": lambda: (torch.rand(2, 1, 1, 16) > 0.2).expand(2, 5, 16, 16),
    "boolean, sliced": lambda: (torch.rand(16, 32) > 0.2)[:, ::2],
    "additive": lambda: torch.randn(5, 1, 16),
    "additive, with gradients": lambda: torch.randn(2, 1, 16, 16).requires_grad_(),
}


@pytest.mark.parametrize("mask", MASKS)
def test_common_calls_take_the_native_path(on_cpu, mask):
    mask = MASKS[mask]()
    tensors = qkv(2, 5, 16, 64, requires_grad=True)
    wanted = [*tensors, *([mask] if mask is not None and mask.requires_grad else [])]
    out, expected = attention(*tensors, mask), PYTORCH(*tensors, mask)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, wanted, expected.detach()), torch.autograd.grad(expected, wanted, expected.detach())
    )
    assert _launch.kernels.counts[:2] == [1, len(wanted) == 3]
    assert on_cpu() == Counts(1, {}, backward=1)
    if mask is not None and not mask.is_floating_point():
        # A memory without versions, as kernels that PyTorch does not know write it.
        mask.data[:, :1][..., :1, :].logical_not_()
        for is_grad_enabled in (True, False):
            with torch.set_grad_enabled(is_grad_enabled):
                torch.testing.assert_close(attention(*tensors, mask), PYTORCH(*tensors, mask))
        with pytest.raises(RuntimeError, match="match|size"):
            attention(*tensors, mask.new_ones(1, 1, 16).expand(3, 16, 16))


def test_uncommon_calls_do_not_take_the_native_path(on_cpu):
    tensors = qkv(2, 5, 16, 64)
    for options in ({}, {"is_causal": True}, {"scale": 0.3}, {"scale": 1, "dropout_p": 0}):
        torch.testing.assert_close(attention(*tensors, **options), PYTORCH(*tensors, **options))
    assert _launch.kernels.counts[:2] == [4, 0]
    attention(*tensors, torch.zeros(16, 1))
    attention(*tensors, scale=type("Number", (float,), {})(1.0))
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(*tensors).dtype is torch.bfloat16
    assert _launch.kernels.counts[:2] == [4, 0]
    assert on_cpu() == Counts(7, {})


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "options", "served"),
    [
        (256, 64, torch.float16, {}, (True, True)),
        (257, 64, torch.float16, {}, (False, False)),
        (192, 128, torch.bfloat16, {}, (True, False)),
        (128, 128, torch.bfloat16, {"is_causal": True}, (False, False)),
        (160, 64, torch.float32, {"is_causal": True}, (True, False)),
        (16, 60, torch.float16, {}, (False, False)),
        (8, 264, torch.float32, {}, (False, False)),
    ],
)
def test_calls_that_pytorch_computes_faster_are_left_to_it(monkeypatch, rows, width, dtype, options, served):
    torch.compiler.reset()
    counts = serve_on_cpu(monkeypatch, compares=True)
    functions = [attention, torch.nn.functional.scaled_dot_product_attention]
    functions += [torch.compile(lambda *one, of=function, **given: of(*one, **given), backend="aot_eager") for function in functions]
    for function, differentiated in itertools.product(functions, (False, True)):
        tensors = qkv(2, 3, rows, width, dtype=dtype, requires_grad=differentiated)
        if differentiated:
            tensors[1] = shifted(tensors[1].detach()).requires_grad_()
        expected, before = PYTORCH(*tensors, **options), counts()
        with ours.installed():
            found = function(*tensors, **options)
        tolerance = {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(found, expected, **tolerance)
        assert counts().served == before.served + served[differentiated]
        if differentiated:
            grad = shifted(torch.randn_like(found))
            pairs = zip(*(torch.autograd.grad(one, tensors, grad) for one in (found, expected)))
            for one, other in pairs:
                torch.testing.assert_close(one, other, **tolerance)
            assert counts().backward == before.backward + served[1]
    left = 2 * served.count(False)
    assert counts().pytorch == ({"slower": left} if left else {})


def test_a_mask_that_changes_between_two_calls_is_read_again(on_cpu):
    tensors, mask = qkv(2, 3, 16, 64), torch.ones(16, 16, dtype=torch.bool)
    # The last change leaves no trace in the mask's version.
    for change in (lambda: None, lambda: mask[:, 8:].fill_(False), lambda: mask.numpy().__setitem__((slice(4), 2), False)):
        change()
        torch.testing.assert_close(attention(*tensors, mask), PYTORCH(*tensors, mask))
    assert on_cpu().served == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout_p": 2.0},
        {"dropout_p": -1.0},
        {"dropout_p": True},
        {"is_causal": 1},
        {"scale": math.nan},
        {"scale": "1"},
        {"query": None},
        {"key": torch.zeros(2, 1, 16, 64).expand(2, 5, 16, 64)},
        {"value": torch.zeros(2, 5, 16, 72), "dropout_p": 2.0},
        {"query": torch.zeros(1, 5, 16, 64).expand(2, 5, 16, 64), "value": torch.zeros(2, 5, 16, 72)},
    ],
)
@pytest.mark.parametrize("most", [2, 65_535])
def test_a_call_is_forwarded_to_pytorch_unchanged(on_cpu, monkeypatch, most, arguments):
    """Forward invalid calls too, once: PyTorch raises the error, and a second call might end the process."""
    forwarded = []

    def recorded(*tensors, **options):
        forwarded.append((tensors, options))
        return PYTORCH(*tensors, **options)

    monkeypatch.setattr(_pytorch, "unserved", recorded)
    monkeypatch.setattr(_pytorch, "MAX_SLICE", most)
    options = {"dropout_p": 0.0, "is_causal": False, "scale": None} | arguments
    tensors = [options.pop(name, tensor) for name, tensor in zip(("query", "key", "value"), qkv(2, 5, 16, 64))]
    try:
        expected = PYTORCH(*tensors, None, **options)
    except Exception as error:
        with pytest.raises(type(error)) as found:
            attention(*tensors, **options)
        assert (type(found.value), str(found.value)) == (type(error), str(error))
        assert len(forwarded) == 1
    else:
        torch.testing.assert_close(attention(*tensors, **options), expected, equal_nan=True)
        assert len(forwarded) in ((0, 3) if most == 2 else (0, 1))
    if most == 2:
        return
    for theirs, options_of_theirs in forwarded:
        assert all(one is other for one, other in zip(theirs, (*tensors, None), strict=True))
        assert all(options_of_theirs[name] is option for name, option in options.items())


def test_zero_items_have_an_output_and_gradients_where_pytorch_returns_none(on_cpu, monkeypatch):
    monkeypatch.setattr(_pytorch, "function", lambda *tensors, **options: None)
    tensors = [one.requires_grad_() for one in qkv(0, 2, 16, 64)]
    out = attention(*tensors)
    assert out.shape == (0, 2, 16, 64)
    assert all(one.shape == (0, 2, 16, 64) for one in torch.autograd.grad(out.sum(), tensors))


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:ComplexHalf")
def test_negated_nested_meta_and_sparse_tensors_go_to_pytorch(on_cpu):
    tensors = qkv(2, 5, 16, 64)
    negated = [torch._neg_view(tensor) for tensor in tensors]
    torch.testing.assert_close(attention(*negated), PYTORCH(*tensors) * -1)
    half = torch.randn(2, 5, 16, 1, dtype=torch.complex32).conj().imag
    assert half.is_neg()
    torch.testing.assert_close(attention(half, half, half), PYTORCH(half, half, half))
    nested = torch.nested.nested_tensor([torch.randn(5, 16, 64), torch.randn(5, 16, 64)])
    assert attention(nested, nested, nested).is_nested
    meta = [tensor.to("meta") for tensor in tensors]
    assert attention(*meta).device.type == "meta"
    with pytest.raises(Exception) as expected:
        PYTORCH(*[tensor.to_sparse() for tensor in tensors])
    with pytest.raises(type(expected.value)):
        attention(*[tensor.to_sparse() for tensor in tensors])
    assert on_cpu().served == 0
    assert on_cpu().pytorch == {"tensor type": 4, "device": 1}


def test_the_operator_checks_its_arguments(on_cpu):
    query, key, value = qkv(2, 5, 16, 64)
    operator = torch.ops.gridguard.attention.default
    for arguments in ((query, key.half(), value, None), (query, key, value, torch.zeros(16, 16).double())):
        with pytest.raises(RuntimeError) as expected:
            PYTORCH(*arguments)
        with pytest.raises(RuntimeError) as found:
            operator(*arguments, False, 0.125, False)
        assert str(found.value) == str(expected.value)
    bias = torch.randn(16, 32)[:, ::2]
    found = operator(query, key, value, bias, False, 0.125, False)
    torch.testing.assert_close(found, PYTORCH(query, key, value, bias))
    double = qkv(2, 5, 16, 64, dtype=torch.float64)
    torch.testing.assert_close(operator(*double, None, False, 0.125, False), PYTORCH(*double))
    assert on_cpu() == Counts(1, {"dtype": 3})


def interleaved(items, heads, frames, width=16):
    """Make tensors with no two axes that merge."""
    return [torch.randn(heads, items, frames, 2, width).permute(3, 1, 0, 2, 4) for _ in range(3)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.randn(8, 8) > -0.7}])
def test_tensors_with_unsupported_strides_are_copied(on_cpu, caplog, options):
    caplog.set_level("INFO", logger="gridguard")
    tensors = [tensor.requires_grad_() for tensor in interleaved(3, 5, 8)]
    out, expected = attention(*tensors, **options), PYTORCH(*tensors, **options)
    torch.testing.assert_close(out, expected)
    gradients = (torch.autograd.grad(one.square().sum(), tensors) for one in (out, expected))
    for found, theirs in zip(*gradients):
        torch.testing.assert_close(found, theirs)
    assert on_cpu() == Counts(1, {}, copied=2, backward=1)
    assert out.stride() == torch.empty_like(tensors[0]).stride()
    assert "tensors are copied for their strides (further calls are only counted)" in caplog.messages


def test_long_sequences_are_copied_only_for_their_alignment(on_cpu, monkeypatch):
    length = _operator.MAX_COPIED + 1
    tensors = [torch.randn(3, 5, 16, length).transpose(2, 3) for _ in range(3)]
    torch.testing.assert_close(attention(*tensors), PYTORCH(*tensors))
    assert on_cpu() == Counts(0, {"strides": 1})
    refused = []

    def submit(tensors, *others):
        if not tensors[0].is_contiguous():
            refused.append(tensors)
            return "alignment"
        return submitted(tensors, *others)

    submitted = _launch.submit
    monkeypatch.setattr(_launch, "submit", submit)
    torch.testing.assert_close(attention(*tensors, torch.zeros(33, 33)), PYTORCH(*tensors))
    assert on_cpu() == Counts(1, {"strides": 1}, copied=1) and len(refused) == 1


@pytest.mark.parametrize(
    ("tensors", "options", "fits", "counts"),
    [
        pytest.param(
            [torch.randn(2, 16, heads, 64).transpose(1, 2) for heads in (8, 2, 2)], {"enable_gqa": True}, True,
            Counts(1, {}, copied=1), marks=pytest.mark.skipif(IS_OLD, reason="has no grouped heads"),
        ),
        # PyTorch has no fused kernel for more than four axes.
        (interleaved(3, 5, _operator.MAX_COPIED + 1), {}, True, Counts(1, {}, copied=1)),
        (interleaved(3, 5, 8), {}, False, Counts(0, {"strides": 1})),
    ],
)  # fmt: skip
def test_what_pytorch_could_only_copy_too_is_copied_if_the_copies_fit(on_cpu, monkeypatch, tensors, options, fits, counts):
    def out_of_memory(tensor):
        raise torch.cuda.OutOfMemoryError

    if not fits:
        monkeypatch.setattr(_operator, "contiguous_copy", out_of_memory)
    torch.testing.assert_close(attention(*tensors, **options), PYTORCH(*tensors, **options))
    assert on_cpu() == counts


SMALL = [torch.zeros(2, 3, 4)] * 3


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ((None, torch.zeros(2, 2), torch.zeros(2, 2)), None),
        ((SMALL[0], torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)), None),
        ((SMALL[0], SMALL[0].half(), SMALL[0]), None),
        ((torch.zeros(3), torch.zeros(3), torch.zeros(3)), None),
        ((SMALL[0].int(), SMALL[0].int(), SMALL[0].int()), None),
        *(((*SMALL, *others), None) for others in ((None, 0.0, True, "x"), (None, 0.0, 1), (None, 0.0, False, None, "x"))),
        ((*SMALL, torch.zeros(5, 5)), None),
        ((SMALL[0], SMALL[0].to("meta"), SMALL[0]), None),
        ((torch.zeros(3, 6, 16, 64), *[torch.zeros(3, 2, 16, 64)] * 2), Counts(0, {"shape": 1})),
        *(
            ((*[torch.zeros(2, 5, 16, 64)] * 3, mask), Counts(0, {"mask": 1}))
            for mask in (
                # Before 2.5 PyTorch takes a mask of one axis.
                *(torch.zeros(sizes) for sizes in ((16,), (16, 15), (3, 1, 16, 16))[IS_OLD:]),
                torch.zeros(16, 16, dtype=torch.float64),
                torch.zeros(16, 15, requires_grad=True),
            )
        ),
    ],
)
def test_invalid_calls_raise_pytorchs_errors(on_cpu, arguments, counts):
    with pytest.raises(Exception) as expected:
        PYTORCH(*arguments)
    with pytest.raises(type(expected.value)) as found:
        attention(*arguments)
    assert type(found.value) is type(expected.value)
    if counts is not None:
        assert (str(found.value), on_cpu()) == (str(expected.value), counts)


def test_unavailable_kernels_are_reported_once(monkeypatch):
    class Tensor:

        is_cuda, is_cpu, dtype, shape = True, False, torch.float16, (2, 5, 16, 64)
        get_device, data_ptr, is_neg = lambda self: 0, lambda self: 16, lambda self: False
        stride = lambda self: (5120, 1024, 64, 1)  # noqa: E731

    monkeypatch.setattr(_launch, "kernels", _native.Attention(torch, dlpack=False))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    with pytest.warns(RuntimeWarning, match="no CUDA driver library found"):
        assert _launch.submit((Tensor(),) * 4, None, None, False, 0.125, False) == "unavailable"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _launch.submit((Tensor(),) * 4, None, None, False, 0.125, False) == "unavailable"


def test_every_reason_is_documented():
    root = Path(__file__).parents[3]
    sources = ("python/src/attention/call.rs", "python/gridguard/_attention.py", "python/gridguard/_operator.py")
    written = r'(?:Err\(|Some\(|return (?:\[\], )?|\n +reason = |count\()"([a-z ]+)"'
    found = {reason for source in sources for reason in re.findall(written, (root / "kernels" / source).read_text())}
    assert {"device", "dropout", "first call during capture", "memory", "transform"} <= found
    documented = (root / "docs/pytorch-served.md").read_text()
    assert not [reason for reason in found if f"`{reason}`" not in documented]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_failed_launch_is_an_error_and_no_fallback(on_cpu, monkeypatch, requires_grad):
    def failed(*arguments):
        raise GridguardError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(_launch, "kernels", served_by(failed))
    with pytest.raises(GridguardError, match="ILLEGAL_ADDRESS"):
        attention(*qkv(2, 5, 16, 64, requires_grad=requires_grad))


def test_nvrtc_of_pytorchs_packages_is_found_by_name():
    if torch.version.cuda is None:
        _launch.load_nvrtc()  # no library, and no error
        return
    program = "import ctypes, gridguard.torch; from gridguard import _launch; _launch.load_nvrtc(); ctypes.CDLL('libnvrtc.so.%s')"
    major = torch.version.cuda.split(".")[0]
    subprocess.run([sys.executable, "-c", program % major], check=True)
    with pytest.raises(OSError):
        ctypes.CDLL("libnvrtc.so.0")
