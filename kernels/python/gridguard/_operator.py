"""The operators `gridguard::attention` and `gridguard::attention_backward`, which PyTorch traces and differentiates."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from gridguard import _launch, _native, _pytorch, _stats
from gridguard._pytorch import contiguous_copy

# For 25 frames in f16 on an H200 the kernels take 0.28 of PyTorch's time, and the copies move 1.5 times their bytes.
MAX_COPIED = 32
"""The longest sequences that are copied because their batch axes do not fold."""

_BATCH, _HEADS = -4, -3
_CALL = "Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale, bool enable_gqa"
_tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library = torch.library.Library("gridguard", "DEF")
_library.define(f"attention({_CALL}) -> Tensor", tags=_tags)
_library.define(f"attention_backward(Tensor grad, {_CALL}, bool[4] needed) -> ({', '.join(['Tensor'] * 4)})", tags=_tags)


def compute(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float, enable_gqa: bool
) -> tuple[Tensor, str | None]:
    """Return an output, and why the kernels did not write it, if so. Copy tensors with unsupported strides."""
    inputs = (query, key, value)
    like = (query, value.shape[-1])
    [out], reason = _submit(inputs, [like], bias, None, _most_copied(query), is_causal, scale, enable_gqa)
    _stats.count(reason or _stats.SERVED)
    return out, reason


def is_slower(
    query: Tensor, key: Tensor, value: Tensor, is_masked: bool, is_causal: bool, needs_grad: bool = False
) -> bool:
    """Tell whether PyTorch's fused kernels, which take four axes, are faster, or were not compared."""
    if not _pytorch.is_compiling():
        return _launch.kernels.is_slower(query, key, value, is_masked, is_causal, needs_grad)
    if query.dim() != -_BATCH or query.dtype not in _launch.DTYPES:
        return False
    borders = _launch.borders(query.get_device(), _launch.DTYPES[query.dtype])
    width, rows = max(query.shape[-1], value.shape[-1]), max(query.shape[-2], key.shape[-2])
    for widest, most in borders:
        if width <= widest:
            column = 3 * needs_grad + (1 if is_causal else 2 * is_masked)
            return bool(rows > most[column] or width * query.element_size() % 16 != 0)
    return bool(borders)


def _most_copied(query: Tensor) -> int:
    """Return the longest sequences that are copied. PyTorch has fused kernels for four axes only."""
    return MAX_COPIED if query.dim() <= 4 else _native.MAX_LENGTH


def _submit(
    inputs: Sequence[Tensor],
    likes: Sequence[tuple[Tensor, int]],
    bias: Tensor | None,
    bias_gradient: Tensor | None,
    most_copied: int,
    *options: Any,
) -> tuple[list[Tensor], str | None]:
    """Return outputs like these tensors, of these widths, and why the kernels did not write them, if so."""
    outputs = [_empty_like(*like) for like in likes]
    reason = _launch_folded((*inputs, *outputs), bias, bias_gradient, *options)
    if reason == "alignment" or (reason == "strides" and max(one.shape[-2] for one in inputs) <= most_copied):
        # PyTorch needs less memory than the copies.
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            copies = map(contiguous_copy, inputs)
            results = [_empty_like(*like, memory_format=torch.contiguous_format) for like in likes]
            bias = None if bias is None else contiguous_copy(bias)
            reason = _launch_folded((*copies, *results), bias, bias_gradient, *options)
            if reason is None:
                for output, result in zip(outputs, results):
                    output.copy_(result)
                _stats.count(_stats.COPIED)
    return outputs, reason


def _empty_like(like: Tensor, width: int, **options: Any) -> Tensor:
    """Return an output with the layout of a tensor; contiguous if its rows have another width."""
    if width == like.shape[-1]:
        return torch.empty_like(like, **options)
    return like.new_empty((*like.shape[:-1], width), device=options.get("device"))


def _launch_folded(
    tensors: tuple[Tensor, ...], bias: Tensor | None, bias_gradient: Tensor | None, *options: Any
) -> str | None:
    """Launch the kernels. Copy a bias whose batch axes do not fold into items and heads."""
    reason = _launch.submit(tensors, bias, bias_gradient, *options)
    if reason == "strides" and bias is not None:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            for copy in _foldable(bias, tensors[0].shape[:-2]):
                reason = _launch.submit(tensors, copy, bias_gradient, *options)
                if reason != "strides":
                    break
    return reason


def _foldable(bias: Tensor, batch: Sequence[int]) -> Iterator[Tensor]:
    """Yield copies of a bias that fold, the smallest first. One for each item and head is none of them.

    Its first axes, up to any, are axes of items, and the others are axes of heads. Either the bias is broadcast along
    all axes of a part, or it must be expanded along them: a mask of windows [1, W, 1, N, N] to [1, W, heads, N, N].
    """
    bias = _pytorch.once(bias, -2)
    own = (1,) * (len(batch) + 2 - bias.dim()) + tuple(bias.shape[:-2])
    shapes = set()
    for at in range(len(batch) + 1):
        parts = ((own[:at], batch[:at]), (own[at:], batch[at:]))
        items, heads = (tuple(full) if math.prod(part) > 1 else part for part, full in parts)
        shapes.add(items + heads)
    for shape in sorted(shapes, key=math.prod):
        if shape == own or math.prod(shape) < math.prod(batch):
            yield bias.expand(*shape, *bias.shape[-2:]).contiguous()


@torch.library.impl(_library, "attention", "CompositeExplicitAutograd")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float, enable_gqa: bool
) -> Tensor:
    """Compute attention by the kernels, or by PyTorch if they do not serve it."""
    call = (query, key, value, bias, 0.0, is_causal, scale, enable_gqa)
    served = _launch.kernels.serve(*call)
    if served is not None:
        return served
    if is_slower(query, key, value, bias is not None, is_causal):
        _stats.count(_stats.SLOWER)
    else:
        out, reason = compute(query, key, value, bias, is_causal, scale, enable_gqa)
        if reason is None:
            return out
    found = _pytorch.run(call)
    strides = _empty_like(query, value.shape[-1], device="meta").stride()
    return found if found.stride() == strides else found.new_empty_strided(found.shape, strides).copy_(found)


@torch.library.register_fake("gridguard::attention", lib=_library)
def _fake_attention(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    return _empty_like(query, value.shape[-1])


@torch.library.impl(_library, "attention_backward", "CompositeExplicitAutograd")
def _attention_backward(grad: Tensor, *call: Any) -> tuple[Tensor, ...]:
    *tensors, is_causal, scale, _, needed = call
    # The gradients of grouped heads would have other strides than compilers expect.
    served = _launch.kernels.serve_backward(grad, tensors, needed, is_causal, scale, False)
    if served is None:
        return _compute_backward(grad, *call)
    return tuple(grad.new_empty(0) if one is None else one for one in (*served, None))


def _compute_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and bias with the strides of `empty_like`; unneeded ones are empty."""
    # Compilers do not trace this operator: they may learn the size of the batch only at run time.
    *options, needed = others
    inputs = (query, key, value, bias)
    needed = [need and one is not None for need, one in zip(needed, inputs)]
    if True not in needed:
        return tuple(query.new_empty(0) for _ in inputs)
    # Our kernels and PyTorch's fused ones need contiguous rows.
    tensors = [one if one is None or _has_rows(one) else one.contiguous() for one in (grad, *inputs)]
    computed, reason = _gradients(*tensors, *options, needed[-1])
    _stats.count(_stats.BACKWARD if reason is None else f"backward pass: {reason}")
    if reason is None:
        return tuple(_with_strides(one if need else None, like, query) for one, like, need in zip(computed, inputs, needed))
    # PyTorch computes the forward pass again. An oversized batch runs in slices, and only one slice is in memory.
    tensors = _pytorch.aligned(*tensors)
    parts = [tensors]
    if query.dim() == 4 and _pytorch.overflows(query, key, value, bias, options[-1]):
        items = query.shape[_BATCH]
        parts = list(map(list, zip(*(_pytorch.slices(one, _BATCH, items) for one in tensors))))
    with _differentiation(query.device.type):
        if len(parts) == 1:
            found = _gradients_of_slice(parts[0], options, needed)
            return tuple(_with_strides(one, like, query) for one, like in zip(found, inputs))
        gradients = [torch.empty_like(like) if need else query.new_empty(0) for like, need in zip(inputs, needed)]
        targets = [_pytorch.slices(gradient, _BATCH, items) for gradient in gradients]
        for at, part in enumerate(parts):
            found = _gradients_of_slice(part, options, needed)
            for gradient, target, one in zip(gradients, targets, found):
                if one is None:
                    continue
                # A tensor of one item belongs to all slices.
                if at > 0 and target[at] is gradient:
                    gradient.add_(one)
                else:
                    target[at].copy_(one)  # type: ignore[union-attr]
        return tuple(gradients)


@torch.library.register_fake("gridguard::attention_backward", lib=_library)
def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    inputs = (query, key, value, bias)
    is_needed = (need and one is not None for need, one in zip(others[-1], inputs))
    return tuple(torch.empty_like(like) if need else query.new_empty(0) for like, need in zip(inputs, is_needed))


def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    needs_bias: bool,
) -> tuple[list[Tensor | None], str | None]:
    """Return the gradients of query, key, value and bias, and why the kernels did not compute them, if so."""
    inputs = [query, key, value, bias if needs_bias else None]
    most_copied = _most_copied(query)
    if enable_gqa and query.dim() >= -_HEADS and key.shape[_HEADS] != query.shape[_HEADS]:
        # The heads of a group are an axis of their own, along which key and value are broadcast.
        sizes = (key.shape[_HEADS], query.shape[_HEADS] // key.shape[_HEADS])
        grad, query = grad.unflatten(_HEADS, sizes), query.unflatten(_HEADS, sizes)
        key, value = key.unsqueeze(_HEADS), value.unsqueeze(_HEADS)
        if bias is not None and bias.dim() >= -_HEADS:
            bias = bias.unsqueeze(_HEADS) if bias.shape[_HEADS] == 1 else bias.unflatten(_HEADS, sizes)
    grouped = [query, key, value, bias if needs_bias else None]
    batch = grad.shape[:-2]
    expanded = [one.expand(*batch, *one.shape[-2:]) for one in (query, key, value)]
    try:
        # The kernel writes the gradient of the bias for each item and head.
        of_scores = grad.new_empty(*batch, query.shape[-2], key.shape[-2]) if needs_bias else None
        likes = [(one, one.shape[-1]) for one in expanded]
        found, reason = _submit((*expanded, grad), likes, bias, of_scores, most_copied, is_causal, scale)
        if reason is not None:
            return [], reason
        # Autocast would sum in another type.
        with torch.autocast(query.device.type, enabled=False):
            summed = [
                None if like is None or one is None else one.sum_to_size(like.shape)
                for one, like in zip((*found, of_scores), grouped)
            ]
    except torch.cuda.OutOfMemoryError:
        return [], "memory"
    return [one if one is None else one.reshape(like.shape) for one, like in zip(summed, inputs)], None


def _gradients_of_slice(tensors: Sequence[Any], options: Sequence[Any], needed: Sequence[bool]) -> list[Tensor | None]:
    grad, *inputs = tensors
    leaves = [one if one is None else one.detach().requires_grad_(need) for one, need in zip(inputs, needed)]
    query, key, value, bias = leaves
    is_causal, scale, enable_gqa = options
    out = _pytorch.run((query, key, value, bias, 0.0, is_causal, scale, enable_gqa))
    found = iter(torch.autograd.grad(out, [one for one, need in zip(leaves, needed) if need], grad))
    return [next(found) if need else None for need in needed]


@contextlib.contextmanager
def _differentiation(device_type: str) -> Iterator[None]:
    """Record gradients inside an operator, where PyTorch has disabled autograd, and without autocast."""
    keys = torch._C.DispatchKey
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded.remove(keys.AutogradFunctionality).remove(keys.ADInplaceOrView)
    with (
        torch._C._ForceDispatchKeyGuard(included, excluded),
        torch.enable_grad(),
        torch.autocast(device_type, enabled=False),
    ):
        yield


def _with_strides(found: Tensor | None, like: Tensor | None, query: Tensor) -> Tensor:
    """Return a gradient with the strides that compiled code expects. An unneeded one is empty."""
    if found is None or like is None:
        return query.new_empty(0)
    if found.stride() == torch.empty_like(like, device="meta").stride():
        return found
    return torch.empty_like(like).copy_(found)


def _has_rows(tensor: Tensor) -> bool:
    return tensor.shape[-1] == 1 or tensor.stride(-1) == 1


def _second_gradients(
    upstream: Sequence[Tensor], tensors: Sequence[Tensor | None], options: Sequence[Any], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients of `attention_backward` with respect to (grad, query, key, value, bias), where wanted."""
    # Plain operators have derivatives of any order. PyTorch's fused kernels have none.
    is_causal, scale, enable_gqa, needed = options
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(tensors[0].device.type, enabled=False):
        # Aliases end the graph here. What computed the inputs is differentiated elsewhere.
        aliases = [
            one if one is None else one.view_as(one) if one.requires_grad else one.detach().requires_grad_()
            for one in tensors
        ]
        grad, query, key, value, bias = aliases
        out, _ = torch._scaled_dot_product_attention_math(
            query, key, value, bias, 0.0, is_causal, **_pytorch.keywords(scale, enable_gqa)
        )
        needed = [need and one is not None for one, need in zip(aliases[1:], needed)]
        inputs = [one for one, need in zip(aliases[1:], needed) if need]
        gradients = torch.autograd.grad(out, inputs, grad, create_graph=True)
        weights = [one for one, need in zip(upstream, needed) if need]
        leaves = [one for one, want in zip(aliases, wanted) if want]
        found = iter(
            torch.autograd.grad(gradients, leaves, weights, create_graph=create_graph, allow_unused=True)
        )
    return [next(found) if want else None for want in wanted]


class _Node(torch.autograd.Function):
    """The node of a call whose output is given: what a custom operator records, without its layers of Python."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(query, key, value, bias)
        out, *ctx.options = call
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*_gradients_of_node(ctx, grad), None)


# The method of C: no transform is active where a call is served, and tensors of ended ones are not.
record = super(torch.autograd.Function, _Node).apply


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors = inputs[: next(at for at, one in enumerate(inputs) if isinstance(one, bool))]
    ctx.options = inputs[len(tensors) :]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_gradients_of_node(ctx, grad), None, None, None)


def _gradients_of_node(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Return the gradients of query, key, value and bias, where needed."""
    tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[:4]
    compute = attention_backward
    if not torch.compiler.is_compiling():
        served = _launch.kernels.serve_backward(grad, tensors, needed, *ctx.options)
        if served is not None:
            return [*served, None]
        if not torch.is_grad_enabled() and not _launch.kernels.is_recorded() and all(map(_is_plain, (grad, *tensors))):
            # Nothing differentiates, transforms or records the operator.
            compute = _compute_backward
    found = compute(grad, *tensors, *ctx.options, needed)
    return [one if need else None for one, need in zip(found, needed)]


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is None or (
        not _pytorch.is_other_type(tensor) and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def _backward_of_backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    found = _second_gradients(upstream, ctx.saved_tensors, ctx.options, ctx.needs_input_grad[:5])
    return (*found, None, None, None, None)


for _name, _formula in (("attention", _backward), ("attention_backward", _backward_of_backward)):
    torch.library.register_autograd(f"gridguard::{_name}", _formula, setup_context=_setup_context, lib=_library)


def _product(query: Sequence[int], key: Sequence[int], width: int) -> int:
    """Return the operations of a product of each query with each key, with `width` elements each."""
    return 2 * math.prod(query[:-1]) * key[-2] * width


@register_flop_formula(torch.ops.gridguard.attention)
def _flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *others: Any, **options: Any) -> int:
    """Count scores and output, as PyTorch's counter does; causal calls count in full."""
    return _product(query, key, query[-1]) + _product(query, key, value[-1])


@register_flop_formula(torch.ops.gridguard.attention_backward)
def _backward_flops(
    grad: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *others: Any, **options: Any
) -> int:
    """Count the scores again, and the gradients of query, key, scores and value."""
    return 3 * _product(query, key, query[-1]) + 2 * _product(query, key, value[-1])


attention = torch.ops.gridguard.attention.default
attention_backward = torch.ops.gridguard.attention_backward.default
