"""Serves `memory_efficient_attention` of xformers and of mslk, which continues it."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gridguard import _attention, _pytorch

_NAME = "memory_efficient_attention"
_PLACES = ("xformers.ops", "xformers.ops.fmha", "mslk.attention.fmha")
_originals: dict[str, Callable[..., Tensor]] = {}


def replace() -> None:
    """Replace the function in the packages that are imported."""
    for place in _PLACES:
        module = sys.modules.get(place)
        current = getattr(module, _NAME, None)
        if current is None:
            if module is not None:
                logging.getLogger("gridguard").info("%s has no %s, so none is replaced", place, _NAME)
        elif not _is_ours(current):
            # Keep the first: a later one might call ours.
            original = _originals.setdefault(place, current)
            setattr(module, _NAME, functools.wraps(original)(functools.partial(_attend, original)))


def restore() -> None:
    """Undo `replace`, unless something else replaced the function later."""
    for place, original in _originals.items():
        module = sys.modules.get(place)
        if _is_ours(getattr(module, _NAME, None)):
            setattr(module, _NAME, original)


def _is_ours(function: Any) -> bool:
    return isinstance(function, functools.partial) and function.func is _attend


def _attend(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Attend over [batch, length, heads, head_dim]. There may be no axis of heads, or one of groups before it."""
    # The mask has the upper left corner of PyTorch's, and a class in each package.
    is_causal = type(attn_bias).__name__ == "LowerTriangularMask"
    is_plain = attn_bias is None or is_causal or isinstance(attn_bias, Tensor)
    if is_plain and query.dim() in (3, 4, 5) and all(given is None for given in options.values()):
        bias = None if is_causal else attn_bias
        q, k, v = (one.unsqueeze(1) if one.dim() == 3 else one.movedim(1, -2) for one in (query, key, value))
        if bias is not None and bias.dim() == 3:
            bias = bias.unsqueeze(1)
        call = (q, k, v, bias, p, is_causal, scale, False)
        out = _attention.serve(call)
        if out is None and q.dim() == 4 and _pytorch.overflows(q, k, v, bias, False):
            # Their own kernels would overflow, too.
            out = _pytorch.run(call)
        if out is not None:
            return out.squeeze(1) if query.dim() == 3 else out.movedim(-2, 1)
    return original(query, key, value, attn_bias, p, scale, **options)
