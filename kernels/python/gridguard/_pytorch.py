"""PyTorch's own attention, also while `install` has calls of its operator come to us."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor

operator = torch.ops.aten.scaled_dot_product_attention.default
function = torch._C._nn.scaled_dot_product_attention


class _Thread(threading.local):
    is_unserved = False
    """Whether calls of PyTorch's operator in this thread stay PyTorch's."""
    is_traced = False
    """Whether `torch.compile` traces PyTorch's operator in this thread, and not our function."""


thread = _Thread()


def is_compiling() -> bool:
    """Whether this call becomes compiled code."""
    return torch.compiler.is_compiling() or thread.is_traced


@functools.cache
def traced_types() -> tuple[type, ...]:
    """The types of plain tensors while `torch.compile` traces operators."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


def unserved(*arguments: Any, **options: Any) -> Tensor:
    """PyTorch's function, whose calls never come back to us."""
    if torch.compiler.is_compiling() or thread.is_unserved:
        return function(*arguments, **options)
    thread.is_unserved = True
    try:
        return function(*arguments, **options)
    finally:
        thread.is_unserved = False


def composite(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """What PyTorch's operator does where nobody has registered a kernel: it chooses among PyTorch's own."""
    # PyTorch 2.4 does not know it.
    options = {"enable_gqa": True} if enable_gqa else {}
    return operator.decompose(query, key, value, mask, dropout_p, is_causal, scale=scale, **options)
