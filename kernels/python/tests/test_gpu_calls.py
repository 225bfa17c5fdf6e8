"""How the random calls of `gpu.py` are compared and counted, on the CPU. Needs PyTorch."""

from __future__ import annotations

import os

import calls
import gpu_calls
import pytest
import torch
from calls import BOTH_RAISE, COMPARED, NOT_EXACT, PYTORCH, SERVED_REFUSED, Call, Comparison, compare
from gridguard import _fallback

REFUSALS = ("query is not correctly aligned (strideM)", "cutlassF: no kernel found to launch!")


def call(mode="plain", **options):
    return Call([torch.randn(2, 3, 8, 16) for _ in range(3)], None, options, mode)


def raising(error):
    def function(*arguments, **options):
        raise error

    return function


def test_errors_are_equal_by_their_type():
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


def test_calls_under_autocast_are_compared_with_the_numbers_that_it_rounds_to():
    one = call("autocast", scale=1.0)
    one.tensors[0] *= 10
    rounded = [tensor.bfloat16().double() for tensor in one.tensors]
    [exact] = calls.run(one, PYTORCH, torch.float64)
    assert torch.equal(exact, PYTORCH(*rounded, scale=1.0))
    # The process of PyTorch ended, so that its own error is not known.
    assert compare(one, PYTORCH, None) == Comparison(COMPARED)


def test_what_double_precision_refuses_has_the_shape_and_type_of_pytorchs_result():
    def lenient(*tensors, dropout_p):
        return PYTORCH(*tensors)

    theirs = [torch.zeros(2, 3, 8, 16)]
    assert compare(call(dropout_p=2.0), lenient, theirs) == Comparison(NOT_EXACT)
    assert compare(call(dropout_p=2.0), lenient, [theirs[0].half()]).wrong is not None
    assert compare(call(dropout_p=2.0), lenient, [theirs[0][..., :8]]).wrong is not None
    assert compare(call(dropout_p=2.0), PYTORCH, None) == Comparison(BOTH_RAISE)


def crashing():
    """Makes PyTorch end the process at masks of one column, and when it fails a second time."""
    pytorch, failed = calls.PYTORCH, []

    def function(query, key, value, mask=None, **options):
        if query.dtype == torch.float64:
            return pytorch(query, key, value, mask, **options)
        if mask is not None and mask.shape[-1] == 1:
            os._exit(3)
        try:
            return pytorch(query, key, value, mask, **options)
        except Exception:
            if failed:
                os._exit(4)
            failed.append(True)
            raise

    calls.PYTORCH = gpu_calls.PYTORCH = _fallback.pytorch = function


def test_every_call_is_counted_also_those_that_end_the_process():
    wrong, kinds, taken = gpu_calls.check(26, 2, 600.0, "cpu", crashing)
    assert not wrong, wrong
    assert kinds.total() == 26, kinds
    assert kinds.keys() <= {COMPARED, BOTH_RAISE, gpu_calls.ALONE_RIGHT, gpu_calls.ALONE_PYTORCH}
    assert kinds[gpu_calls.ALONE_RIGHT] and kinds[gpu_calls.ALONE_PYTORCH] and kinds[COMPARED] > 15, kinds
    assert taken["device"] > 15, taken
