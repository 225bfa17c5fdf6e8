"""Our attention for calls of PyTorch's function and of xformers'.

PyTorch's operator gets a kernel at its dispatcher, as PyTorch's own replacements of flash attention have one. No object
of Python is replaced, so everything that is above the dispatcher works as without us: comparisons with PyTorch's
function, subclasses, modes, scripts, traces, exports and profilers. It costs a call about a microsecond.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _fallback, _launch, _pytorch
from gridguard._aligned import PLAIN

_is_installed = False
_contexts = 0
"""How many contexts of `installed` are open, in all threads."""
_is_active = False
"""Whether either is so."""
_xformers: Callable[..., Tensor] | None = None
_registered: dict[str, torch.library.Library] = {}
# A context that is forgotten may end while its own thread holds the lock.
_installing = threading.RLock()


def _renew_lock() -> None:
    """In a forked process, where the thread that held the lock is gone."""
    global _installing
    _installing = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def install() -> None:
    """Has our kernels serve PyTorch's `scaled_dot_product_attention`, in all threads and wherever it was imported, and
    xformers' `memory_efficient_attention` where that is imported. Code that `torch.compile` compiled before keeps
    PyTorch's. A second call only looks for xformers again."""
    global _is_installed
    with _installing:
        _is_installed = True
        _update()


def uninstall() -> None:
    """Undoes `install`. Contexts of `installed` that are open stay so until they end."""
    global _is_installed
    with _installing:
        _is_installed = False
        _update()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this context it is as after `install`, in all threads. Contexts may overlap: the last to end undoes it."""
    global _contexts
    with _installing:
        _contexts += 1
        _update()
    try:
        yield
    finally:
        with _installing:
            _contexts -= 1
            _update()


def _update() -> None:
    """Has the state of PyTorch and xformers follow ours."""
    global _is_active, _xformers
    active = _is_installed or _contexts > 0
    if active:
        _register()
    if active != _is_active:
        _tag_compiled_code(active)
        _is_active = active
    ops = sys.modules.get("xformers.ops")
    current = getattr(ops, "memory_efficient_attention", None)
    if active and current is not None and current is not _memory_efficient_attention:
        # The first one: another might call ours.
        _xformers = _xformers or current
        ops.memory_efficient_attention = _memory_efficient_attention  # type: ignore[union-attr]
    if not active and current is _memory_efficient_attention:
        ops.memory_efficient_attention = _xformers  # type: ignore[union-attr]


def _register() -> None:
    """Registers our kernel, once: PyTorch reads its tables without a lock, so nothing is ever taken out of them."""
    # Autograd comes first for every tensor but in inference mode, where `BackendSelect` does. A kernel for the device
    # itself would have `torch.export` take the operator for one that cannot be decomposed.
    for key in (f"Autograd{_launch.DEVICE_TYPE.upper()}", "BackendSelect"):
        if key not in _registered:
            library = torch.library.Library("aten", "IMPL")
            library.impl("scaled_dot_product_attention", _kernel, key)
            # Compilers dispatch in Python, and keep the kernels that they found before.
            _pytorch.operator._dispatch_cache.clear()
            _registered[key] = library


def _tag_compiled_code(active: bool) -> None:
    """Keeps code that was compiled with our operator apart in the caches of `torch.compile`, whose keys do not know
    which kernels are registered."""
    config = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):
        tag = config.cache_key_tag.replace(_TAG, "")
        config.cache_key_tag = tag + _TAG if active else tag


_TAG = "+gridguard"


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's operator, below autocast and the transforms of `torch.func`."""
    call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not _is_active or _pytorch.thread.is_unserved:
        return _pytorch.composite(*call)
    if _attention.dispatch_modes() > 0 and _is_compiled():
        return _traced(*call)
    return _attend(PLAIN, *call)


def _attend(types: tuple[type, ...], *call: Any) -> Tensor:
    served = _attention.serve(*call, types)
    if served is not None:
        return served
    if any(type(tensor) not in types for tensor in call[:4] if tensor is not None):
        # Whoever made another type has passed the call on, and expects PyTorch's operators.
        return _pytorch.composite(*call)
    return _fallback.run(*call)


def _traced(*call: Any) -> Tensor:
    """The operators of a call that `torch.compile` traces."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    _pytorch.thread.is_traced = True
    try:
        return _attend(_pytorch.traced_types(), *call)
    except GuardOnDataDependentSymNode:
        # Sizes that depend on data are known only when the code runs.
        return _pytorch.composite(*call)
    finally:
        _pytorch.thread.is_traced = False


def _is_compiled() -> bool:
    """Whether `torch.compile` traces this thread. What `torch.export` traces is for programs without us."""
    guards = torch._guards
    return (
        guards.CompileContext.try_get() is not None
        and guards.TracingContext.try_get() is not None
        and not torch.compiler.is_compiling()
    )


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
        served = _attention.serve(q, k, v, attn_bias, p, False, scale, False)
        if served is not None:
            return served.transpose(1, 2) if query.dim() == 4 else served
    return _xformers(query, key, value, attn_bias, p, scale, **options)
