"""The transformer block of TabPFN v2, v2.5 and v2.6, with the state of a table in one place and one layout."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridguard import _attention, _launch, _pytorch, _replaced

# Cells that inference computes at once. With a quarter of them the host is slower than a GPU.
_CELLS = 2**19
# The limit of TabPFN for the backward pass of flash attention, whose offsets have 32 bits.
_MAX_BACKWARD, _QUERIES, _MIN_HEAD_DIM = 2**31, 128, 32


class _Layer(NamedTuple):
    """A layer that adds a product to the state."""

    prepare: Callable[[Tensor], Callable[[Tensor, bool], Tensor]]
    """Takes the known rows, once, and returns a function from any rows to the input of the product. The function is
    told whether its rows are known."""
    weight: Tensor
    known: int = 0
    """The number of known rows, which are the first."""


def compute(
    module: Any,
    original: Callable[..., Any],
    x_BRCE_container: Tensor | list[Tensor],  # noqa: N803
    single_eval_pos: int,
    save_peak_memory_factor: int | None,
    *,
    cached_kv: Any = None,
    return_kv: bool = False,
) -> tuple[Tensor, None] | None:
    """Compute `TabPFNBlock`. The state `[1, rows, columns, channels]` is not transposed for attention over rows.

    The keys of a table's known rows are not cached here.
    """
    state = x_BRCE_container
    x = state if isinstance(state, Tensor) else state[0]
    if cached_kv is not None or return_kv or not _is_served(module, x) or not 0 < single_eval_pos <= x.shape[1]:
        return None
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or _has_trained_weights(module))
    if needs_grad and save_peak_memory_factor is not None:
        return None
    if not isinstance(state, Tensor):
        # The caller has no other reference.
        del state[0]
    sizes = x.shape
    x = x.flatten(0, 1)
    layers = (
        (_over_columns(module.per_sample_attention_between_features), module.layernorm_mha1),
        (_over_rows(module.per_column_attention_between_cells, single_eval_pos), module.layernorm_mha2),
        (_mlp(module.mlp, needs_grad), module.layernorm_mlp),
    )
    if needs_grad:
        for layer, norm in layers:
            x = norm(_added(x, layer).flatten(0, 1)).view(x.shape)
    else:
        x = _in_chunks(x.contiguous(), layers, save_peak_memory_factor is not None)
    return x.view(sizes), None


def _computed(x: Tensor) -> torch.dtype:
    """Return the type of products."""
    return torch.get_autocast_dtype(x.device.type) if _is_autocast(x) else x.dtype


def _is_autocast(x: Tensor) -> bool:
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _has_trained_weights(module: Any) -> bool:
    # The weights of replicas are no parameters.
    weights = (getattr(one, "weight", None) for one in module.modules())
    return any(weight is not None and weight.requires_grad for weight in weights)


def _is_served(module: Any, x: Tensor) -> bool:
    if torch.compiler.is_compiling() or _attention.is_transformed() or type(x) not in _pytorch.PLAIN:
        return False
    if x.dim() != 4 or x.shape[0] != 1 or x.numel() == 0 or x.dtype not in (_computed(x), torch.float32):
        return False
    if x.dtype is torch.bfloat16 and _is_autocast(x):
        # Some norms return f32.
        return False
    within, across, mlp = module.per_sample_attention_between_features, module.per_column_attention_between_cells, module.mlp
    projections = [getattr(one, f"{name}_projection", None) for one in (within, across) for name in ("q", "k", "v", "out")]
    products = [*projections, mlp[0], mlp[-1]]
    return (
        hasattr(sys.modules.get(_SHARED), "find_attention_backend")
        and [type(one).__name__ for one in (within, across)] == ["AlongRowAttention", "AlongColumnAttention"]
        and [type(one) for one in mlp] == [nn.Linear, nn.GELU, nn.Linear]
        and all(type(one) is nn.Linear and one.bias is None for one in products)
        and all(map(_replaced.is_plain, (within, across, mlp, mlp[1], *products)))
    )


_SHARED = "tabpfn.architectures.shared.scaled_dot_product_attention"


class _Cast(torch.autograd.Function):
    """Returns a tensor and its cast. The backward pass adds both gradients at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return x.view_as(x), x.to(dtype)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_cast: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return of_x + of_cast, None


def _added(x: Tensor, layer: _Layer) -> Tensor:
    """Return the sum of a layer and its input `[rows, columns, channels]`, with gradients."""
    dtype = _computed(x)
    x, cast = (x, x) if x.dtype is dtype else _Cast.apply(x, dtype)
    known = layer.known
    if known in (0, len(x)):
        out = layer.prepare(cast[:known])(cast, known > 0)
    else:
        first, last = cast.split([known, len(x) - known])
        hidden = layer.prepare(first)
        out = torch.cat([hidden(first, True), hidden(last, False)])
    return x + F.linear(out, layer.weight.to(dtype))


def _in_chunks(x: Tensor, layers: Iterable[tuple[_Layer, nn.Module]], is_own: bool) -> Tensor:
    """Return the state after the layers and their norms: in the input if it may change."""
    dtype, step = _computed(x), max(_CELLS // x.shape[1], 1)
    out, cast = x if is_own else torch.empty_like(x), x.to(dtype)
    if is_own and not x.is_inference():
        # An earlier backward pass that needs the input must not read the output.
        torch.autograd.graph.increment_version(x)
    for layer, norm in layers:
        hidden, weight = layer.prepare(cast[: layer.known]), layer.weight.to(dtype)
        for begin, end in ((0, layer.known), (layer.known, len(x))):
            for at in range(begin, end, step):
                rows = slice(at, min(at + step, end))
                added = F.linear(hidden(cast[rows], begin < layer.known).flatten(0, 1), weight)
                parts = (one[rows].flatten(0, 1) for one in (x, out, cast))
                _norm_sum(norm, added, *parts)
                del added
        x, cast = out, out if dtype is out.dtype else cast
    return out


def _norm_sum(norm: Any, added: Tensor, x: Tensor, out: Tensor, cast: Tensor) -> None:
    """Write the norm of `x + added` to `out`, and to `cast` if this is a tensor of another type."""
    is_cast = cast.dtype is not x.dtype
    is_known = type(norm).__name__ in ("LowerPrecisionRMSNorm", "LowerPrecisionLayerNorm") and _replaced.is_plain(norm)
    if is_cast and is_known and getattr(norm, "bias", None) is None and getattr(x, _launch.SERVED_DEVICE):
        weight = torch.ones_like(x[0]) if norm.weight is None else norm.weight
        epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        if _launch.residual_norm(x, added, out, cast, weight, epsilon, isinstance(norm, nn.LayerNorm)) is None:
            return
    total = norm(x + added)
    out.copy_(total)
    if is_cast:
        cast.copy_(total)


def _projection(attention: Any, names: str, dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a function to `[rows, columns, heads, head_dim]` for each projection, by one product."""
    weight = torch.cat([getattr(attention, f"{name}_projection").weight for name in names]).to(dtype)
    sizes = (len(names), -1, attention.head_dim)
    return lambda x: F.linear(x, weight).unflatten(-1, sizes).unbind(2)


def _over_columns(attention: Any) -> _Layer:
    """Attend to the other cells of a row."""

    def prepare(x: Tensor) -> Callable[[Tensor, bool], Tensor]:
        project = _projection(attention, "qkv", x.dtype)

        def hidden(x: Tensor, is_known: bool) -> Tensor:
            query, key, value = (one.transpose(1, 2) for one in project(x))
            return _attention.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)

        return hidden

    return _Layer(prepare, attention.out_projection.weight)


def _over_rows(attention: Any, known: int) -> _Layer:
    """Attend to the known cells of a column. The queries of the other rows have the first head of keys in common."""

    def prepare(x: Tensor) -> Callable[[Tensor, bool], Tensor]:
        key, value = _projection(attention, "kv", x.dtype)(x)
        project = _projection(attention, "q", x.dtype)

        def hidden(x: Tensor, is_known: bool) -> Tensor:
            (query,) = project(x)
            heads = slice(None if is_known else 1)
            return _attend_to_known(query, key[:, :, heads], value[:, :, heads]).flatten(2)

        return hidden

    return _Layer(prepare, attention.out_projection.weight, known)


def _attend_to_known(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend over the first axis of `[rows, columns, heads, head_dim]`."""
    query, key, value = (one.transpose(0, 1) for one in (query, key, value))
    columns, rows, heads, width = query.shape
    padded = columns * heads * -(-rows // _QUERIES) * _QUERIES * max(width, _MIN_HEAD_DIM)
    shared = sys.modules[_SHARED]
    backend = shared.find_attention_backend(query, key, value)
    if backend is not None or columns * heads > _pytorch.MAX_SLICE or (query.requires_grad and padded > _MAX_BACKWARD):
        # A user has registered the backend. Other calls run in slices.
        return shared.scaled_dot_product_attention(query, key, value, backend=backend).transpose(0, 1)
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    is_grouped = key.shape[1] != heads
    if is_grouped and query.dtype not in (torch.float16, torch.bfloat16):
        # PyTorch has no fused kernel for groups in this type.
        key, value, is_grouped = key.expand(-1, heads, -1, -1), value.expand(-1, heads, -1, -1), False
    out = _attention.scaled_dot_product_attention(query, key, value, enable_gqa=is_grouped)
    return out.permute(2, 0, 1, 3)


def _mlp(mlp: Any, needs_grad: bool) -> _Layer:
    first, activation, last = mlp
    in_place = functools.partial(torch.ops.aten.gelu_, approximate=activation.approximate)
    activate = activation if needs_grad else in_place

    def prepare(x: Tensor) -> Callable[[Tensor, bool], Tensor]:
        weight = first.weight.to(x.dtype)
        return lambda x, is_known: activate(F.linear(x, weight))

    return _Layer(prepare, last.weight)
