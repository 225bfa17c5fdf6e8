"""Tensors at addresses that PyTorch's kernels for attention can read.

Its fused kernels read 16 bytes at once. Elsewhere than at multiples of 16 bytes cuDNN returns wrong numbers, and flash
and efficient attention raise, or end the use of the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gridguard import _launch, _pytorch
from gridguard._counts import count_aligned

PLAIN = (Tensor, torch.nn.Parameter)
"""Subclasses may mean something else by the same memory."""

_READ_BYTES = 16


def aligned(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors of a call, with copies in place of those that PyTorch's kernels cannot read."""
    if _pytorch.is_compiling():
        return [None if one is None else torch.ops.gridguard.aligned(one) for one in tensors]
    found = [one if one is None or _is_aligned(one) else _copied(one) for one in tensors]
    if any(one is not other and type(one) in PLAIN for one, other in zip(found, tensors)):
        count_aligned()
    return found


def align_gradient(out: Tensor) -> None:
    """Makes PyTorch's backward pass copy the gradient of its output where its kernels cannot read it."""
    if out.grad_fn is not None:
        out.grad_fn.register_prehook(lambda gradients: tuple(aligned(*gradients)))


def _is_aligned(tensor: Tensor) -> bool:
    """Whether PyTorch's fused kernels can read a tensor where it is, or will not be chosen for it."""
    if tensor.dtype not in _launch.DTYPES or (tensor.shape[-1] != 1 and tensor.stride(-1) != 1) or tensor.is_neg():
        return True
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    # Traced tensors have no address. PyTorch allocates at multiples of 512 bytes, and Inductor copies inputs that
    # begin elsewhere in a later call.
    is_real = type(tensor) in PLAIN
    if (tensor.data_ptr() if is_real else tensor.storage_offset() * tensor.element_size()) % _READ_BYTES != 0:
        return False
    # Rows of other widths are padded by PyTorch, or not taken by these kernels.
    if tensor.is_contiguous():
        return True
    step = _READ_BYTES // tensor.element_size()
    return all(size == 1 or stride % step == 0 for size, stride in zip(tensor.shape[:-1], tensor.stride()))


def _copied(tensor: Tensor) -> Tensor:
    if type(tensor) not in PLAIN:
        return torch.ops.gridguard.copied(tensor)
    if (torch.is_grad_enabled() and tensor.requires_grad) or _is_transformed():
        return _clone(tensor)
    # Axes of stride 0 keep it, which would give all their derivatives to one element.
    once = tensor
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            once = once.narrow(axis, 0, 1)
    return _clone(once).expand(tensor.shape)


def _is_transformed() -> bool:
    """Whether a tensor may have derivatives that it does not tell of."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


# Compilers do not know where a tensor begins: the first operator is decided where they trace PyTorch's own, and the
# second is a copy that they do not optimise away.
_library = torch.library.Library("gridguard", "FRAGMENT")
_library.define("aligned(Tensor(a) tensor) -> Tensor(a)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("copied(Tensor tensor) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


@torch.library.impl(_library, "aligned", "CompositeImplicitAutograd")
def _aligned(tensor: Tensor) -> Tensor:
    return tensor if _is_aligned(tensor) else _copied(tensor)


@torch.library.impl(_library, "copied", "CompositeExplicitAutograd")
def _clone(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


@torch.library.register_fake("gridguard::copied", lib=_library)
def _fake_copied(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _backward_of_copied(ctx: Any, grad: Tensor) -> Tensor:
    return grad


torch.library.register_autograd("gridguard::copied", _backward_of_copied, lib=_library)
