"""Modules of other packages with a `forward` of ours: their class becomes a class like it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

_ORIGINAL, _MAKE = "_class_of_package", "_make_of_class"


def like(kind: Any, forward: Callable[..., Any], make: Callable[[Any], nn.Module]) -> type:
    """Return a class like `kind` with another `forward`. `make(kind)` makes a module of it without state.

    A function in the module itself would be bound to it. Replicas for several devices are shallow copies.
    """

    def reduce(self: Any, protocol: int) -> tuple[Any, ...]:
        # Pickle finds the class of the package, not this one, by its name.
        return (make, (kind,), *kind.__reduce_ex__(self, max(protocol, 2))[2:])

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {"forward": functools.wraps(kind.forward)(forward), "__reduce_ex__": reduce, _ORIGINAL: kind, _MAKE: make}
    return type(kind.__name__, (kind,), {**names, **ours})


def check(name: str, module: Any, accepted: str) -> None:
    """Raise TypeError for an argument that is not a module."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} is of type {type(module).__name__}: pass {accepted}")


def original(kind: type) -> type:
    """Return the class of the package, for a class of `like` or another."""
    return getattr(kind, _ORIGINAL, kind)


def forward(module: Any) -> Callable[..., Any]:
    """Return the `forward` of the package's class, which takes the module first."""
    kind = type(module)
    # The compiler of PyTorch 2.15 reads a method of a module, but no attribute of the classes that diffusers allows in
    # its graphs.
    found = kind.forward if "forward" in module.__dict__ else module.forward.__func__
    return found if original(kind) is kind else found.__wrapped__


def is_replaced(module: nn.Module, make: Callable[[Any], nn.Module]) -> bool:
    """Tell whether a module has a class of `like` with this `make`."""
    return vars(type(module)).get(_MAKE) is make


def restore(model: nn.Module, make: Callable[[Any], nn.Module]) -> list[nn.Module]:
    """Return the modules in `model` with a class of `like` with this `make`, with their own class again."""
    replaced = [module for module in model.modules() if is_replaced(module, make)]
    for module in replaced:
        # Another thread may have restored it already.
        module.__class__ = original(type(module))
    return replaced


def is_plain(layer: nn.Module) -> bool:
    """Tell whether a layer has neither hooks nor another `forward`. Then its weights may be read instead of a call."""
    own = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    # Offloading replaces `forward`.
    return not any(own) and "forward" not in layer.__dict__ and not nn.modules.module._has_any_global_hook()
