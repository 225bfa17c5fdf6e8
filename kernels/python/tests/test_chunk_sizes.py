"""Tests of the sizes of chunks: shortages, budgets and tuning. Needs PyTorch."""

from __future__ import annotations

import json

import pytest
import torch
from batches import Counter, batch, close, gradients, profiles  # noqa: F401

import gridguard.torch as ours
from gridguard import GridguardError, _chunk_sizes, _chunked

chunked = ours.chunked


def test_out_of_memory_halves_the_chunks_and_keeps_finished_ones():
    function = Counter(torch.sin, limit=3)
    call = chunked(function, verify=False)
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
    call = chunked(function, verify=False)
    call._sizes[call._key(_chunked.Batch((x,), {}, 0))] = 4, 1
    found = call(x)
    assert function.sizes == [4, 4, 4, 4, 2, 2, 2, 2]
    close(gradients(found, [x]), gradients(x.sin(), [x]))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        chunked(Counter(torch.sin, limit=3), chunk=20)(batch())
    with pytest.raises(ours.ChunkError, match="chunk 1 of .* failed: CUDA out of memory"):
        chunked(Counter(torch.sin, limit=0), verify=False)(batch())


def test_memory_is_measured_and_limits_a_chunk():
    def function(x):
        return (x[:, None, :] * torch.ones(1000, 1)).sum(1)

    x = torch.randn(500, 8)
    item = 1000 * 8 * 4
    counter = Counter(function)
    call = chunked(counter, memory=40 * item)
    with torch.no_grad():
        torch.testing.assert_close(call(x), function(x), rtol=1e-3, atol=1e-3)
    assert max(counter.sizes) <= 42 and counter.sizes[-2] >= 37, counter.sizes
    with pytest.raises(ValueError, match=f"memory is {item // 2} bytes for a chunk, but one item needs"):
        chunked(function, memory=item // 2)(x)
    whole = Counter(function)
    with torch.no_grad():
        chunked(whole, memory="1GiB")(x[:50])
    assert whole.sizes[-1] == 50
    x.requires_grad_()
    limited = chunked(function, memory=100 * item)
    (grad,) = torch.autograd.grad(limited(x).sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 1000.0))
    assert limited._options.recompute


def test_memory_is_not_measured_in_a_profile():
    with torch.autograd.profiler.profile() as profile:
        with pytest.raises(GridguardError, match="in a profile"):
            chunked(torch.sin, memory=1000)(batch())
    assert profile.kineto_results is not None


@pytest.mark.parametrize("constant", [0, 1000])
def test_a_budget_is_fitted_to_peaks(constant):
    seen = []

    def peak(size):
        seen.append(size)
        if size > 300:
            raise torch.cuda.OutOfMemoryError
        return constant + 10 * size

    assert _chunk_sizes.fit(constant + 10 * 123, 10**6, peak) in range(120, 124)
    assert max(seen) <= 300
    assert _chunk_sizes.fit(constant + 10**9, 200, peak) == 200
    assert 32 <= _chunk_sizes.fit(constant + 10**9, 10**6, peak) <= 300


def test_the_fastest_size_is_kept_for_later_programs(profiles, monkeypatch):
    seconds = {100: 4.0, 50: 3.0, 25: 2.0, 13: 2.5, 7: 9.0}

    def seconds_of(run, device):
        sizes.clear()
        run()
        return seconds[max(sizes)]

    def function(x):
        sizes.append(len(x))
        if len(x) > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return x.sin()

    sizes, limit, x = [], 10**9, batch(100)
    monkeypatch.setattr(_chunk_sizes, "_seconds", seconds_of)
    assert chunked(function, verify=False).tune(x) == 25
    assert max(sizes) == 7, "smaller chunks are slower still"
    (key,) = json.loads((profiles / "chunks.json").read_text())
    assert key.startswith("cpu, test_chunk_sizes.function, 0 weights, ")
    sizes.clear()
    chunked(function, verify=False)(batch(60))
    assert sizes == [20, 20, 20], "nearly equal sizes of at most 25"
    (profiles / "chunks.json").write_text("no json")
    sizes.clear()
    chunked(function)(x)
    assert sizes == [100]
    x.requires_grad_()
    limit = 30
    assert chunked(function).tune(x) == 25
    assert x.grad is None
    monkeypatch.setenv("GRIDGUARD_PROFILES", "off")
    limit = 0
    with pytest.raises(GridguardError, match="no size of chunks has enough memory: .*out of memory"):
        chunked(function, verify=False).tune(x)
    with pytest.raises(ValueError, match="chunk is 3"):
        chunked(torch.sin, chunk=3).tune(x)
    monkeypatch.undo()
    assert chunked(torch.sin).tune(x) <= 100
