"""Serves calls of PyTorch's function by the kernels."""

# A kernel at PyTorch's dispatcher serves PyTorch's operator, as PyTorch's own replacements of flash attention do. No
# Python object is replaced. Everything above the dispatcher works unchanged: comparisons of functions, subclasses,
# modes, scripts, traces, exports and profilers. The native module serves common calls without Python code, and passes
# the others to `_kernel`.

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _block_operator, _efficient, _launch, _native, _operator, _pytorch
from gridguard._pytorch import PLAIN, Call

_is_installed = False
_contexts = 0
"""The open contexts of `installed`, in all threads."""
_is_active = False
"""Whether calls are served: `install` was called, or a context is open."""
_registered: dict[str, torch.library.Library] = {}
# Reentrant: the garbage collector may end an abandoned context while its thread holds the lock.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


# In a forked process the thread that held the lock is gone.
os.register_at_fork(after_in_child=_renew_lock)


def install(*, measure: bool = False) -> None:
    """Serve PyTorch's `scaled_dot_product_attention` by the kernels, in all threads and wherever it was imported.

    Also replaces `memory_efficient_attention` of xformers and mslk if they are imported; call again after a later
    import. Code that `torch.compile` compiled before keeps PyTorch's operator.

    With `measure=True` the first eager call of a shape that no profile decides for this GPU times both implementations,
    and the user's profile keeps the answer: not during a capture, nor if memory is short, nor while deterministic algorithms
    are on or PyTorch's flash or efficient attention is off. Nor in a job of several ranks, which would get several answers:
    measure in one process first. `compare_profiles` finds ranks whose answers differ.
    """
    _launch.kernels.measures = measure
    _update(installed=True)


def uninstall() -> None:
    """Undo `install`. Open contexts of `installed` stay active until they end.

    For CUDA tensors a kernel that passes each call on to PyTorch's stays registered.
    """
    _update(installed=False)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Install for the duration of this context, in all threads. If contexts overlap, the last to end uninstalls."""
    _update(opened=1)
    try:
        yield
    finally:
        _update(opened=-1)


def _update(installed: bool | None = None, opened: int = 0) -> None:
    """Install or open a context, or undo it, in all packages."""
    global _is_installed, _contexts, _is_active
    with _lock:
        _is_installed = _is_installed if installed is None else installed
        _contexts += opened
        active = _is_installed or _contexts > 0
        if active:
            _register()
        if active != _is_active:
            _tag_compiled_code(active)
            _is_active = active
        _dispatched.kernels = _launch.kernels if active else None
        if active:
            _efficient.replace()
        else:
            _efficient.restore()


def _register() -> None:
    """Register our kernel once. PyTorch reads its tables without a lock, so it is never removed."""
    if _launch.SERVED_DEVICE == "is_meta":
        return  # AMD devices have the same keys
    from torch._subclasses.functional_tensor import FunctionalTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

    # The dispatcher tries Autograd first, and the device itself in inference mode. Other devices keep PyTorch's kernel.
    device = _launch.DEVICE_TYPE.upper()
    for key in (f"Autograd{device}", device):
        if key not in _registered:
            library = torch.library.Library("aten", "IMPL")
            library.impl("scaled_dot_product_attention", _dispatched, key)
            # Compilers dispatch in Python, and cache the kernels.
            _pytorch.operator._dispatch_cache.clear()
            _registered[key] = library
    # PyTorch 2.4 has another name.
    names = ("python_key_table", "python_key_mode_table")
    table = next(getattr(_pytorch.operator, name) for name in names if hasattr(_pytorch.operator, name))
    for mode in (FunctionalTensorMode, ProxyTorchDispatchMode):
        if mode not in table:
            _pytorch.operator.py_impl(mode)(_decomposed)


def _decomposed(mode: Any, *args: Any, **kwargs: Any) -> Any:
    """Decompose PyTorch's operator where tracers would, were no kernel registered for the device."""
    out = NotImplemented
    if not getattr(mode, "pre_dispatch", False):
        with mode:
            out = _pytorch.operator.decompose(*args, **kwargs)
    return mode.__torch_dispatch__(_pytorch.operator, (), args, kwargs) if out is NotImplemented else out


def _tag_compiled_code(active: bool) -> None:
    """Give code compiled with our operator its own keys in the caches of `torch.compile`."""
    config = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):
        tag = config.cache_key_tag.replace(_TAG, "")
        config.cache_key_tag = tag + _TAG if active else tag


def _tag_of(*operators: Path) -> str:
    """Return a key of the operators' sources: compiled code passes the arguments of the version that compiled it."""
    text = b"".join(source.read_bytes() for source in operators)
    return f"+gridguard-{hashlib.sha256(text).hexdigest()[:16]}"


_TAG = _tag_of(Path(_operator.__file__), Path(_block_operator.__file__))


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
    """Serve uncommon calls of PyTorch's operator, below autocast and the transforms of `torch.func`."""
    call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not _is_active or _pytorch.thread.is_unserved:
        return _pytorch.composite(call)
    if torch._C._len_torch_dispatch_stack() > 0 and _is_compiled():
        return _traced(call)
    return _attend(call, PLAIN)


_dispatched = _native.Dispatched(_kernel, _pytorch.thread)


def _attend(call: Call, types: tuple[type, ...]) -> Tensor:
    served = _attention.serve_uncommon(call, types)
    if served is not None:
        return served
    if any(type(tensor) not in types for tensor in call[:4] if tensor is not None):
        # Another type of tensor has forwarded the call, and expects PyTorch's operators.
        return _pytorch.composite(call)
    return _pytorch.run(call)


def _traced(call: Call) -> Tensor:
    """Return the output of a call that `torch.compile` traces."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    _pytorch.thread.is_traced = True
    try:
        return _attend(call, _pytorch.traced_types())
    except GuardOnDataDependentSymNode:
        # Sizes that depend on data are unknown before the code runs.
        return _pytorch.composite(call)
    finally:
        _pytorch.thread.is_traced = False


def _is_compiled() -> bool:
    """Tell whether `torch.compile` traces this thread. `torch.export` must trace PyTorch's operator."""
    guards = torch._guards
    return (
        guards.CompileContext.try_get() is not None
        and guards.TracingContext.try_get() is not None
        and not getattr(torch.compiler, "_is_exporting_flag", torch.compiler.is_compiling())
    )
