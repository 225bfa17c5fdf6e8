"""Times our kernels and PyTorch's for the call of a shape that no profile decides."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _launch, _pytorch

# Nine samples bound their median with 98 % confidence. Each has four calls, or fewer that take long.
_SAMPLES, _CALLS, _SAMPLE_NS = 9, 4, 4_000_000
# Copies of the tensors and of the scores in f32 that both implementations allocate at most.
_COPIES = 4
# Seconds without a measurement after memory was short, because asking for free memory takes as long as a small call.
_PAUSE = 1.0
_paused_until = 0.0


def measure(*call: Any) -> tuple[list[int], list[int]] | None:
    """Return the sorted nanoseconds of a call by our kernels, none if they do not serve it, and by PyTorch.

    The arguments are query, key, value, mask, is_causal, scale and enable_gqa. A call that is differentiated has both
    passes. Return None during a capture, in a job of several ranks, which must choose alike, and if memory is short.
    """
    tensors = [one for one in call[:4] if one is not None]
    query, stream = tensors[0], contextlib.nullcontext()
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        _launch.kernels.measures = False
        return None
    if query.is_cuda:
        if torch.cuda.is_current_stream_capturing() or _is_short_of_memory(tensors):
            return None
        stream = torch.cuda.stream(torch.cuda.current_stream())  # type: ignore[assignment]
    needs_grad = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    # A new thread has none of this thread's modes, and no hooks on saved tensors, which a checkpoint would count.
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(torch.cuda.OutOfMemoryError):
        return pool.submit(_times, call, needs_grad, stream).result()
    return None


def _times(call: Any, needs_grad: bool, stream: Any) -> tuple[list[int], list[int]]:
    aliases = [one if one is None else one.detach().requires_grad_(one.requires_grad) for one in call[:4]]
    leaves = [one for one in aliases if one is not None and one.requires_grad]
    is_served = True

    def sample(function: Any, calls: int = 1) -> int:
        nonlocal is_served
        begin = time.perf_counter_ns()
        for _ in range(calls):
            out = function((*aliases, 0.0, *call[4:]))
            if out is None:
                is_served = False
            elif needs_grad:
                torch.autograd.grad(out, leaves, torch.ones_like(out))
        if aliases[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        return (time.perf_counter_ns() - begin) // calls

    both = (_attention.serve, _pytorch.run)
    with stream, torch.set_grad_enabled(needs_grad):
        # The first calls load code.
        for function in both:
            sample(function)
        calls = min(_CALLS, max(1, _SAMPLE_NS // max(map(sample, both))))
        ours, theirs = zip(*([sample(function, calls) for function in both] for _ in range(_SAMPLES)))
    return sorted(ours) if is_served else [], sorted(theirs)


def _is_short_of_memory(tensors: list[Tensor]) -> bool:
    """Tell whether half of the free memory may not hold what the calls allocate, or could not a moment ago."""
    global _paused_until
    if time.monotonic() < _paused_until:
        return True
    query, key = tensors[:2]
    free = torch.cuda.mem_get_info(query.device)[0]
    free += torch.cuda.memory_reserved(query.device) - torch.cuda.memory_allocated(query.device)
    scores = query[..., 0].numel() * key.shape[-2] * torch.float32.itemsize
    is_short = _COPIES * (scores + sum(one.numel() * one.element_size() for one in tensors)) > free // 2
    if is_short:
        _paused_until = time.monotonic() + _PAUSE
    return is_short
