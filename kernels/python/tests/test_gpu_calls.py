"""Tests of the comparison of random calls for `gpu.py`, on the CPU. Needs PyTorch."""

from __future__ import annotations

import os

import calls
import gpu_calls
import pytest
import torch
from calls import BOTH_RAISE, COMPARED, NOT_ALIGNED, PYTORCH, SERVED_DERIVATIVE, SERVED_REFUSED, Call, Comparison, compare, reference
from gridguard import _pytorch

REFUSALS = ("query is not correctly aligned (strideM)", "cutlassF: no kernel found to launch!")


def call(mode="plain", **options):
    return Call([torch.randn(2, 3, 8, 16) for _ in range(3)], None, options, mode)


def raising(error):
    def function(*arguments, **options):
        raise error

    return function


def test_errors_are_compared_by_type():
    assert compare(call(), raising(RuntimeError("a")), RuntimeError("b")) == Comparison(BOTH_RAISE)
    assert "TypeError" in compare(call(), raising(TypeError()), RuntimeError("b")).wrong
    assert "no error instead of" in compare(call(), PYTORCH, RuntimeError("b")).wrong
    assert "RuntimeError" in compare(call(), raising(RuntimeError()), [torch.zeros(2, 3, 8, 16)]).wrong


@pytest.mark.parametrize("refusal", REFUSALS)
def test_calls_whose_alignment_pytorch_refuses_are_compared_with_double_precision(refusal):
    assert compare(call(), PYTORCH, RuntimeError(refusal)) == Comparison(SERVED_REFUSED)
    twice = compare(call(), lambda *arguments: 2 * PYTORCH(*arguments), RuntimeError(refusal))
    assert twice.kind == SERVED_REFUSED and "off by" in twice.wrong
    assert "TypeError" in compare(call(), raising(TypeError()), RuntimeError(refusal)).wrong


def test_pytorch_receives_copies_of_unaligned_tensors():
    one = call("grad")
    assert one.is_aligned() and all(a is b for a, b in zip(one.aligned().tensors, one.tensors))
    odd = [calls.shifted(one.tensors[0], 1), one.tensors[1][..., 1:], one.tensors[2]]
    one.tensors, one.shift = odd, 2
    assert not one.is_aligned() and one.aligned().is_aligned()
    assert [a is b for a, b in zip(one.aligned().tensors, odd)] == [False, False, True]
    assert all(torch.equal(a, b) for a, b in zip(one.aligned().tensors, odd))


def test_second_derivatives_are_compared_with_double_precision():
    one = call("second")
    refusal = reference(one)
    assert isinstance(refusal, RuntimeError) and calls.NO_DERIVATIVE in str(refusal)
    assert compare(one, PYTORCH, refusal) == Comparison(BOTH_RAISE)
    math = torch._scaled_dot_product_attention_math
    assert compare(one, lambda *inputs: math(*inputs)[0], refusal) == Comparison(SERVED_DERIVATIVE)
    # Only the second derivative is wrong.
    tripled = compare(one, lambda query, *inputs: math(Tripled.apply(query), *inputs)[0], refusal)
    assert tripled.kind == SERVED_DERIVATIVE and "off by" in tripled.wrong and "result 4" in tripled.wrong


class Tripled(torch.autograd.Function):
    """The gradient is right, and its gradient is three times too large."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + 2 * (grad - grad.detach())


def crashing():
    """Make PyTorch end the process at masks of one row, and at its second failure."""
    pytorch, failed = calls.PYTORCH, []

    def function(query, key, value, mask=None, **options):
        if query.dtype == torch.float64:
            return pytorch(query, key, value, mask, **options)
        if mask is not None and mask.dim() >= 2 and mask.shape[-2] == 1:
            os._exit(3)
        try:
            return pytorch(query, key, value, mask, **options)
        except Exception:
            if failed:
                os._exit(4)
            failed.append(True)
            raise

    calls.PYTORCH = _pytorch.unserved = function


def test_calls_that_end_the_process_are_counted():
    found = gpu_calls.check(60, 2, 600.0, "cpu", crashing)
    kinds = found.kinds
    assert not found.wrong, found.wrong
    assert kinds.total() == 60, kinds
    assert kinds.keys() <= {COMPARED, BOTH_RAISE, SERVED_DERIVATIVE, gpu_calls.ALONE_RIGHT, gpu_calls.ALONE_PYTORCH}
    assert kinds[gpu_calls.ALONE_RIGHT] and kinds[gpu_calls.ALONE_PYTORCH] and kinds[COMPARED] > 30, kinds
    assert found.paths["device"] > 30, found.paths
    assert found.labels.keys() >= {"plain", "grad", "autocast", "second", NOT_ALIGNED}, found.labels
    # The imports of a worker alone take longer.
    short = gpu_calls.check(60, 1, 0.2, "cpu")
    assert not short.wrong and 0 < short.kinds.total() < 60 and short.seconds > 0.2, short
