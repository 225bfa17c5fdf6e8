"""The gradients of attention by PyTorch's own function, and the gradients of these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gridguard import _fallback
from gridguard._aligned import aligned

_ITEMS = -4


def first(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    needed: Sequence[bool],
) -> tuple[Tensor, ...]:
    """The gradients of query, key and value, with the strides of `empty_like` of these, inside an operator. An empty
    tensor stands for each that is not needed.

    PyTorch's function computes the output again. It computes an oversized batch slice by slice, and keeps the memory of
    one slice only.
    """
    inputs = (query, key, value)
    options = (0.0, is_causal, scale, enable_gqa)
    if True not in needed:
        return tuple(like.new_empty(0) for like in inputs)
    # PyTorch's fused kernels need contiguous rows.
    tensors = [one if one is None or _has_rows(one) else one.contiguous() for one in (grad, *inputs, bias)]
    tensors = aligned(*tensors)
    parts = [tensors]
    if query.dim() == 4 and _fallback.overflows(query, key, value, bias, enable_gqa):
        items = query.shape[_ITEMS]
        parts = list(map(list, zip(*(_fallback.slices(one, _ITEMS, items) for one in tensors))))
    with _differentiation(query.device.type):
        if len(parts) == 1:
            found = _of_slice(parts[0], options, needed)
            return tuple(_laid_out(one, like) for one, like in zip(found, inputs))
        gradients = [torch.empty_like(like) if need else like.new_empty(0) for like, need in zip(inputs, needed)]
        targets = [_fallback.slices(gradient, _ITEMS, items) for gradient in gradients]
        for at, part in enumerate(parts):
            found = _of_slice(part, options, needed)
            for gradient, target, one in zip(gradients, targets, found):
                if one is None:
                    continue
                # All slices share a tensor of one item.
                if at > 0 and target[at] is gradient:
                    gradient.add_(one)
                else:
                    target[at].copy_(one)  # type: ignore[union-attr]
        return tuple(gradients)


def second(
    upstream: Sequence[Tensor | None],
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    needed: Sequence[bool],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of `first` with respect to grad, query, key and value, where they are wanted.

    They can be differentiated again any number of times. They come from PyTorch's plain operators, since its fused
    kernels have no such derivatives.
    """
    again = torch.is_grad_enabled()
    grouped: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
    with torch.enable_grad(), torch.autocast(query.device.type, enabled=False):
        # Aliases end the paths between the inputs, which are differentiated elsewhere.
        aliases = [_alias(one) for one in (grad, query, key, value)]
        _, *inputs = aliases
        out, _ = torch._scaled_dot_product_attention_math(
            inputs[0], inputs[1], inputs[2], bias, 0.0, is_causal, scale=scale, **grouped
        )
        inputs = [one for one, need in zip(inputs, needed) if need]
        gradients = torch.autograd.grad(out, inputs, aliases[0], create_graph=True)
        weights = [one for one, need in zip(upstream, needed) if need]
        found = iter(
            torch.autograd.grad(
                gradients,
                [one for one, want in zip(aliases, wanted) if want],
                weights,
                create_graph=again,
                allow_unused=True,
            )
        )
    return [next(found) if want else None for want in wanted]


def _of_slice(
    tensors: Sequence[Any], options: tuple[float, bool, float, bool], needed: Sequence[bool]
) -> list[Tensor | None]:
    grad, *inputs, bias = tensors
    leaves = [one.detach().requires_grad_(need) for one, need in zip(inputs, needed)]
    out = _fallback.run(leaves[0], leaves[1], leaves[2], bias, *options)
    found = iter(torch.autograd.grad(out, [one for one in leaves if one.requires_grad], grad))
    return [next(found) if need else None for need in needed]


@contextlib.contextmanager
def _differentiation(device_type: str) -> Iterator[None]:
    """Records gradients inside an operator, below PyTorch's own differentiation, in the types of the tensors."""
    keys = torch._C.DispatchKey
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded.remove(keys.AutogradFunctionality).remove(keys.ADInplaceOrView)
    with (
        torch._C._ForceDispatchKeyGuard(included, excluded),
        torch.enable_grad(),
        torch.autocast(device_type, enabled=False),
    ):
        yield


def _laid_out(found: Tensor | None, like: Tensor) -> Tensor:
    """A gradient with the strides that compiled code expects."""
    if found is None:
        return like.new_empty(0)
    if found.stride() == torch.empty_like(like, device="meta").stride():
        return found
    return torch.empty_like(like).copy_(found)


def _alias(tensor: Tensor) -> Tensor:
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()


def _has_rows(tensor: Tensor) -> bool:
    return tensor.shape[-1] == 1 or tensor.stride(-1) == 1
