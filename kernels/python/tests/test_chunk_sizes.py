"""Tests of the sizes of chunks: shortages, budgets and tuning. Needs PyTorch."""

from __future__ import annotations

import pytest
import torch
from batches import Counter, batch, close, gradients, profiles  # noqa: F401

import gridguard.torch as ours
from gridguard import GridguardError, _chunk_sizes, _chunked

chunked = ours.chunked


def test_out_of_memory_halves_the_chunks_and_keeps_finished_ones():
    function = Counter(torch.sin, limit=3)
    call = chunked(function)
    x = batch(20)
    close(call(x), x.sin())
    assert function.sizes == [20, 10, 5, 3, 3, 3, 3, 3, 3, 2]
    function.sizes.clear()
    call(x)
    assert function.sizes == [3] * 6 + [2], "the size is kept"

    def later(x):
        if len(x) > 2 and (x > 100).any():
            raise RuntimeError("CUDA error: invalid configuration argument")
        return x.sin()

    function = Counter(later)
    x[12] = 200.0
    x.requires_grad_()
    call = chunked(function)
    (call._engine.sizes[call._engine._key(function, _chunked.Batch((x,), {}, 0, later))],) = [4]
    found = call(x)
    assert function.sizes == [4, 4, 4, 4, 2, 2, 2, 2]
    close(gradients(found, [x]), gradients(x.sin(), [x]))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        chunked(Counter(torch.sin, limit=3), chunk=20)(batch())
    with pytest.raises(ours.ChunkError, match="chunk 1 of .* failed: CUDA out of memory"):
        chunked(Counter(torch.sin, limit=0))(batch())


def test_the_first_chunks_are_measured_and_memory_limits_the_others():
    def function(x):
        return (x[:, None, :] * torch.ones(1000, 1)).sum(1)

    x = torch.randn(500, 8)
    item = 1000 * 8 * 4
    counter = Counter(function)
    call = chunked(counter, memory=40 * item)
    with torch.no_grad():
        torch.testing.assert_close(call(x), function(x), rtol=1e-3, atol=1e-3)
        assert sum(counter.sizes) == 500, "no item runs twice"
        assert 37 <= max(counter.sizes) <= 42 and counter.sizes[:4] == [1, 1, 2, 16], counter.sizes
        counter.sizes.clear()
        call(x)
        assert len(set(counter.sizes)) <= 2 and sum(counter.sizes) == 500, "later calls have nearly equal chunks"
    with pytest.raises(ValueError, match=f"memory is {item // 2} bytes for a chunk, but one item needs"):
        chunked(function, memory=item // 2)(x)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(chunked(function, memory=100 * item)(x).sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 1000.0))


def test_memory_is_not_measured_in_a_profile():
    with torch.autograd.profiler.profile() as profile:
        with pytest.raises(GridguardError, match="in a profile"):
            chunked(torch.sin, memory=1000)(batch())
    assert profile.kineto_results is not None


@pytest.mark.parametrize("constant", [0, 1000])
def test_a_budget_is_fitted_to_peaks(constant):
    def fit(budget, most=300):
        trial, size = _chunk_sizes.Trial(budget), None
        while size is None:
            size = trial.fail() if trial.next > most else trial.add(trial.next, constant + 10 * trial.next)
        return size

    assert fit(constant + 10 * 123) in range(120, 124)
    assert 32 <= fit(constant + 10**9) <= 300
    assert fit(constant + 10**4, 10**6) in range(990, 1001)
