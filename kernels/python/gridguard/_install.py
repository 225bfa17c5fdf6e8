"""Our attention in the place of PyTorch's and of xformers'."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gridguard import _fallback
from gridguard._attention import scaled_dot_product_attention, serve

_replaced: Callable[..., Tensor] = _fallback.pytorch
_xformers: Callable[..., Tensor] | None = None
_installing = threading.Lock()


def install() -> None:
    """Puts `scaled_dot_product_attention` in the place of PyTorch's function, and serves xformers'
    `memory_efficient_attention` where that is imported. Modules that imported those functions by name before
    keep them. A second call has no effect."""
    global _replaced, _xformers
    with _installing:
        if F.scaled_dot_product_attention is not scaled_dot_product_attention:
            _replaced = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = scaled_dot_product_attention
        ops = sys.modules.get("xformers.ops")
        original = getattr(ops, "memory_efficient_attention", None)
        if original is not None and original is not _memory_efficient_attention:
            # The first one: another might call ours.
            _xformers = _xformers or original
            ops.memory_efficient_attention = _memory_efficient_attention  # type: ignore[union-attr]


def uninstall() -> None:
    """Puts back what was there. What was put in the place of our functions since is left there."""
    with _installing:
        if F.scaled_dot_product_attention is scaled_dot_product_attention:
            F.scaled_dot_product_attention = _replaced
        ops = sys.modules.get("xformers.ops")
        if getattr(ops, "memory_efficient_attention", None) is _memory_efficient_attention:
            ops.memory_efficient_attention = _xformers  # type: ignore[union-attr]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this context the function is installed, in all threads."""
    was_installed = F.scaled_dot_product_attention is scaled_dot_product_attention
    install()
    try:
        yield
    finally:
        if not was_installed:
            uninstall()


def _memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """As xformers' function, whose tensors are [batch, length, heads, head_dim], or without heads."""
    assert _xformers is not None
    is_plain = attn_bias is None or isinstance(attn_bias, Tensor)
    if is_plain and query.dim() in (3, 4) and all(given is None for given in options.values()):
        q, k, v = (t.transpose(1, 2) if t.dim() == 4 else t for t in (query, key, value))
        served = serve(q, k, v, attn_bias, p, False, scale, False)
        if served is not None:
            return served.transpose(1, 2) if query.dim() == 4 else served
    return _xformers(query, key, value, attn_bias, p, scale, **options)
