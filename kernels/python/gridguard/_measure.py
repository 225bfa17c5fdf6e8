"""Times our kernels and PyTorch's for the call of a shape that no profile decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _pytorch

# Nine samples bound their median with 98 % confidence.
_SAMPLES, _CALLS = 9, 4
# Copies of the tensors and of the scores in f32 that both implementations allocate at most.
_COPIES = 4


def measure(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[list[int], list[int]] | None:
    """Return the sorted nanoseconds of a call by our kernels, none if they do not serve it, and by PyTorch.

    A call that is differentiated has both passes. Return None during a capture, and if memory is short.
    """
    tensors = [one for one in (query, key, value, mask) if one is not None]
    if query.is_cuda and (torch.cuda.is_current_stream_capturing() or _is_short_of_memory(tensors, query, key)):
        return None
    needs_grad = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    aliases = [one if one is None else one.detach().requires_grad_(one.requires_grad) for one in (query, key, value, mask)]
    leaves = [one for one in aliases if one is not None and one.requires_grad]
    call: Any = (*aliases, 0.0, is_causal, scale, enable_gqa)

    def passes(function: Callable[[Any], Tensor | None]) -> bool:
        out = function(call)
        if out is not None and needs_grad:
            torch.autograd.grad(out, leaves, torch.ones_like(out))
        return out is not None

    def sample(function: Callable[[Any], Tensor | None]) -> int:
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            passes(function)
        if query.is_cuda:
            torch.cuda.current_stream().synchronize()
        return (time.perf_counter_ns() - begin) // _CALLS

    both = (_attention.serve, _pytorch.run)
    try:
        # The first calls load code.
        with torch.set_grad_enabled(needs_grad):
            is_served, _ = [passes(function) for function in both]
            times = zip(*([sample(function) for function in both] for _ in range(1 + _SAMPLES)))
            ours, theirs = (sorted(samples[1:]) for samples in times)
    except torch.cuda.OutOfMemoryError:
        return None
    return ours if is_served else [], theirs


def _is_short_of_memory(tensors: list[Tensor], query: Tensor, key: Tensor) -> bool:
    """Tell whether half of the free memory may not hold what the calls allocate."""
    free = torch.cuda.mem_get_info(query.device)[0]
    free += torch.cuda.memory_reserved(query.device) - torch.cuda.memory_allocated(query.device)
    scores = query[..., 0].numel() * key.shape[-2] * torch.float32.itemsize
    return _COPIES * (scores + sum(one.numel() * one.element_size() for one in tensors)) > free // 2
