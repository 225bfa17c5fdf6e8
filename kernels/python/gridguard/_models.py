"""Attention of whole models on our kernels, where a model does not call PyTorch's function or calls it in slices."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridguard import _attention

# The bias that keeps apart the regions of a shifted window, in torchvision and timm.
_APART = -100.0
# Logarithm of the largest factor of cosine attention.
_MAX_LOGIT_SCALE = 4.605170185988092
# A fraction of the batch, and a batch that is large enough for the bandwidth of a GPU.
_CHUNKS, _MIN_CHUNK = 8, 4096


def replace_attention(model: nn.Module) -> int:
    """Replace the attention modules in `model` that `install` alone does not serve well, and return their number.

    These are the windows of Swin V1 and V2 in torchvision and timm, and the VAE encoder of Mochi in diffusers. Weights,
    names and `state_dict` do not change. Modules with a `forward` that something else replaced are skipped.

    Raises TypeError if `model` is not a module.
    """
    _check(model)
    count = 0
    for module in model.modules():
        replacement = _REPLACEMENTS.get((type(module).__module__, type(module).__qualname__))
        if replacement is not None and ("forward" not in module.__dict__ or _is_replaced(module)):
            module.forward = functools.partial(_forward, replacement, type(module).forward, module)
            count += 1
    return count


def restore_attention(model: nn.Module) -> int:
    """Undo `replace_attention`, and return the number of restored modules."""
    _check(model)
    replaced = [module for module in model.modules() if _is_replaced(module)]
    for module in replaced:
        # Another thread may have restored it already.
        module.__dict__.pop("forward", None)
    return len(replaced)


def _check(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}: pass a torch.nn.Module")


def _is_replaced(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(forward, functools.partial) and forward.func is _forward


def _forward(
    replacement: Callable[..., Any], original: Callable[..., Any], module: nn.Module, *arguments: Any, **options: Any
) -> Any:
    # `torch.fx` traces the module itself, whose sizes are not numbers then.
    if arguments and isinstance(arguments[0], Tensor):
        out = replacement(module, original, *arguments, **options)
        if out is not None:
            return out
    return original(module, *arguments, **options)


def _attend(
    x: Tensor,
    qkv: tuple[Tensor, Tensor | None],
    heads: int,
    bias: Tensor,
    mask: Tensor | None,
    logit_scale: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Attend within the windows of `x`, and return a tensor of its layout.

    Without a mask the layout is [batch * windows, tokens, channels]. A mask [windows, tokens, tokens] needs
    [batch, tokens, windows, channels], where windows and heads are one axis of constant stride: then the bias has the
    size of the mask times heads, whatever the batch.
    """
    weight, of_rows = qkv
    if mask is None:
        q, k, v = F.linear(x, weight, of_rows).unflatten(-1, (3, heads, -1)).unbind(-3)
        bias = bias.unsqueeze(0)
    else:
        parts = zip(weight.chunk(3), (None,) * 3 if of_rows is None else of_rows.chunk(3))
        q, k, v = (F.linear(x, *part).unflatten(-1, (heads, -1)) for part in parts)
        bias = (bias + mask.unsqueeze(1)).flatten(0, 1).unsqueeze(0)
    scale = None
    if logit_scale is not None:
        scale = 1.0
        # The usual 1e-12 is zero in f16, and the keys of padded tokens are zero.
        eps = max(1e-12, torch.finfo(q.dtype).tiny)
        q = F.normalize(q, dim=-1, eps=eps) * logit_scale.clamp(max=_MAX_LOGIT_SCALE).exp().view(heads, 1)
        k = F.normalize(k, dim=-1, eps=eps)
        q, k = q.to(v.dtype), k.to(v.dtype)
    sizes = q.shape[2:-1]
    q, k, v = (one.flatten(2, -2).transpose(1, 2) for one in (q, k, v))
    out = _attention.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), dropout_p, scale=scale)
    return out.transpose(1, 2).unflatten(2, sizes).flatten(-2)


def _torchvision(module: Any, original: Callable[..., Any], x: Tensor) -> Tensor | None:
    """Compute `ShiftedWindowAttention` and `ShiftedWindowAttentionV2` of torchvision."""
    if x.dim() != 4:
        return None
    height, width = x.shape[1:3]
    rows, columns = module.window_size
    padded = F.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
    # A single window is not shifted.
    shifts = [
        0 if window >= size else shift
        for size, window, shift in zip(padded.shape[1:3], module.window_size, module.shift_size)
    ]
    bias = module.get_relative_position_bias().squeeze(0)
    mask = None
    if any(shifts):
        mask = _mask_of_shift(padded.shape[1:3], module.window_size, shifts, bias)
        padded = padded.roll([-shift for shift in shifts], (1, 2))
    # [batch, vertical windows, rows, horizontal windows, columns, channels]
    tiles = padded.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    logit_scale = getattr(module, "logit_scale", None)
    of_rows = module.qkv.bias
    if logit_scale is not None and of_rows is not None:
        # Cosine attention has no bias of keys.
        of_queries, of_keys, of_values = of_rows.chunk(3)
        of_rows = torch.cat((of_queries, torch.zeros_like(of_keys), of_values))
    dropout_p = module.attention_dropout if module.training else 0.0
    if mask is None:
        tiles = tiles.permute(0, 1, 3, 2, 4, 5)
        inputs = tiles.flatten(3, 4).flatten(0, 2)
    else:
        tiles = tiles.permute(0, 2, 4, 1, 3, 5)
        inputs = tiles.flatten(3, 4).flatten(1, 2)
    out = _attend(inputs, (module.qkv.weight, of_rows), module.num_heads, bias, mask, logit_scale, dropout_p)
    out = F.dropout(F.linear(out, module.proj.weight, module.proj.bias), module.dropout, module.training)
    out = out.reshape(*tiles.shape[:-1], -1)
    out = out.permute(0, 1, 3, 2, 4, 5) if mask is None else out.permute(0, 3, 1, 4, 2, 5)
    out = out.flatten(3, 4).flatten(1, 2)
    if any(shifts):
        out = out.roll(shifts, (1, 2))
    return out[:, :height, :width].contiguous()


def _mask_of_shift(sizes: Any, windows: Any, shifts: list[int], like: Tensor) -> Tensor:
    """Return a bias [windows, tokens, tokens] that keeps apart what only the shift brought together."""
    vertical, horizontal = (
        (places >= size - window).int() + (places >= size - shift)
        for size, window, shift in zip(sizes, windows, shifts)
        for places in (torch.arange(size, device=like.device),)
    )
    regions = vertical.unsqueeze(1) * 3 + horizontal
    regions = regions.unflatten(1, (-1, windows[1])).unflatten(0, (-1, windows[0])).transpose(1, 2)
    regions = regions.flatten(2).flatten(0, 1)
    differs = regions.unsqueeze(1) != regions.unsqueeze(2)
    return torch.zeros(differs.shape, dtype=like.dtype, device=like.device).masked_fill(differs, _APART)


def _timm(module: Any, original: Callable[..., Any], x: Tensor, mask: Tensor | None = None) -> Tensor | None:
    """Compute `WindowAttention` of timm's Swin V1."""
    return _of_timm(module, x, mask, module.qkv.bias, module._get_rel_pos_bias().squeeze(0), None)


def _timm_v2(module: Any, original: Callable[..., Any], x: Tensor, mask: Tensor | None = None) -> Tensor | None:
    """Compute `WindowAttention` of timm's Swin V2."""
    tokens = x.shape[1]
    of_rows = None if module.q_bias is None else torch.cat((module.q_bias, module.k_bias, module.v_bias))
    table = module.cpb_mlp(module.relative_coords_table).view(-1, module.num_heads)
    bias = table[module.relative_position_index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
    return _of_timm(module, x, mask, of_rows, 16 * bias.sigmoid(), module.logit_scale)


def _of_timm(
    module: Any, x: Tensor, mask: Tensor | None, of_rows: Tensor | None, bias: Tensor, logit_scale: Tensor | None
) -> Tensor | None:
    # The weights are read without calling the layer.
    if type(module.qkv) is not nn.Linear or module.qkv._forward_hooks or module.qkv._forward_pre_hooks:
        return None
    dropout_p = module.attn_drop.p if module.training else 0.0
    if mask is not None:
        x = x.unflatten(0, (-1, mask.shape[0])).transpose(1, 2).contiguous()
    out = _attend(x, (module.qkv.weight, of_rows), module.num_heads, bias, mask, logit_scale, dropout_p)
    if mask is not None:
        out = out.transpose(1, 2).flatten(0, 1)
    return module.proj_drop(module.proj(out))


def _mochi(module: Any, original: Callable[..., Any], hidden_states: Tensor, *others: Any, **options: Any) -> Any:
    """Compute `MochiDownBlock3D` of diffusers, with its attention written in place instead of concatenated."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or others or "chunk_size" in options:
        return None
    return original(_InPlace(module), hidden_states, chunk_size=sys.maxsize, **options)


class _InPlace:
    """A block of Mochi whose attention modules write their output in place, chunk by chunk."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.attentions = [None if one is None else functools.partial(_in_chunks, one) for one in block.attentions]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


def _in_chunks(attention: nn.Module, x: Tensor) -> Tensor:
    size = max(-(-x.shape[0] // _CHUNKS), _MIN_CHUNK)
    if size >= x.shape[0]:
        return attention(x)
    out = torch.empty_like(x)
    for source, target in zip(x.split(size), out.split(size)):
        target.copy_(attention(source))
    return out


_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torchvision.models.swin_transformer", "ShiftedWindowAttention"): _torchvision,
    ("torchvision.models.swin_transformer", "ShiftedWindowAttentionV2"): _torchvision,
    ("timm.models.swin_transformer", "WindowAttention"): _timm,
    ("timm.models.swin_transformer_v2", "WindowAttention"): _timm_v2,
    ("diffusers.models.autoencoders.autoencoder_kl_mochi", "MochiDownBlock3D"): _mochi,
}
