"""Attention of whole models on our kernels, where a model does not call PyTorch's function or calls it in slices."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridguard import _attention, _replaced, _tabpfn
from gridguard._digests import DIGESTS

# The bias that keeps apart the regions of a shifted window, in torchvision and timm.
_APART = -100.0
# Logarithm of the largest factor of cosine attention.
_MAX_LOGIT_SCALE = 4.605170185988092
# A fraction of the batch, a batch that is large enough for the bandwidth of a GPU, and the most that PyTorch's kernels
# take with `install` or without.
_CHUNKS, _MIN_CHUNK, _MAX_CHUNK = 8, 4096, 2**15
# The frames of a video that convolutions read at once.
_FRAMES = 16
_log = logging.getLogger("gridguard")


def replace_attention(model: nn.Module) -> int:
    """Replace the modules in `model` whose attention `install` alone does not serve well, and return their number.

    These are the windows of Swin V1 and V2 in torchvision and timm, the blocks of TabPFN v2, v2.5 and v2.6, and in
    diffusers the attention of Cosmos' VAE, and the attention, norms and residual blocks of Mochi's. Weights, names and
    `state_dict` do not change. Modules with a `forward` that something else replaced are skipped. A class whose source
    differs from that of the tested versions is skipped with a warning.

    Raises TypeError if `model` is not a module.
    """
    _replaced.check("model", model, "a torch.nn.Module")
    count, left = 0, set()
    for module in model.modules():
        kind = type(module)
        if name_of(kind) not in COMPUTE or "forward" in module.__dict__:
            continue
        if not _is_replaced(module):
            difference = _difference(kind)
            if difference is not None:
                left.add(f"{name_of(kind)} is not replaced: {difference}")
                continue
            module.__class__ = _class_of(kind)
        count += 1
    for reason in sorted(left):
        _log.warning(reason)
    return count


def restore_attention(model: nn.Module) -> int:
    """Undo `replace_attention`, and return the number of restored modules."""
    _replaced.check("model", model, "a torch.nn.Module")
    return len(_replaced.restore(model, _made))


def name_of(kind: type) -> str:
    """Return the name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def digest(kind: type) -> str:
    """Return the SHA-256 of the source of a class and of its bases in the same module. Raise OSError without a source."""
    own = (base for base in kind.__mro__ if base.__module__ == kind.__module__)
    return hashlib.sha256("".join(map(inspect.getsource, own)).encode()).hexdigest()


def _is_replaced(module: nn.Module) -> bool:
    return _replaced.is_replaced(module, _made)


@functools.cache
def _difference(kind: type) -> str | None:
    """Return why a class is not one that its replacement was tested with, in words."""
    try:
        found = digest(kind)
    except (OSError, TypeError) as error:
        return f"its source cannot be read: {error}"
    known = DIGESTS.get(name_of(kind), {})
    tested = ", ".join(sorted(set(known.values())))
    return None if found in known else f"its source, {found[:16]}, is not that of the tested versions: {tested}"


@functools.cache
def _class_of(kind: Any) -> type:
    original, compute = kind.forward, COMPUTE[name_of(kind)]

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        # `torch.fx` traces the module itself, whose sizes are not numbers then. TabPFN passes a list of one tensor.
        if arguments and isinstance(arguments[0], (Tensor, list)):
            out = compute(self, original, *arguments, **options)
            if out is not None:
                return out
        return original(self, *arguments, **options)

    return _replaced.like(kind, forward, _made)


def _made(kind: Any) -> nn.Module:
    """Make a copy without its state. Another version of the package may read the file."""
    made = kind if _difference(kind) else _class_of(kind)
    return made.__new__(made)


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
    if type(module.qkv) is not nn.Linear or not _replaced.is_plain(module.qkv):
        return None
    dropout_p = module.attn_drop.p if module.training else 0.0
    if mask is not None:
        x = x.unflatten(0, (-1, mask.shape[0])).transpose(1, 2).contiguous()
    out = _attend(x, (module.qkv.weight, of_rows), module.num_heads, bias, mask, logit_scale, dropout_p)
    if mask is not None:
        out = out.transpose(1, 2).flatten(0, 1)
    return module.proj_drop(module.proj(out))


def _cosmos(
    module: Any, original: Callable[..., Any], hidden_states: Tensor, attention_mask: Tensor | None = None
) -> Tensor | None:
    """Compute `CosmosCausalAttention` of diffusers, whose convolutions of one element concatenate and pad.

    As products they write contiguous rows of channels, which attention reads in place.
    """
    layout = _COSMOS.get(type(module.processor).__qualname__)
    layers = (module.to_q, module.to_k, module.to_v, module.to_out[0])
    if layout is None or hidden_states.dim() != 5 or not all(map(_is_product, layers)):
        return None
    order, back, batch_axes = layout
    rows = module.norm(hidden_states).permute(order)
    sizes = rows.shape
    rows = rows.flatten(batch_axes, 3).flatten(0, batch_axes - 1).contiguous()
    query, key, value = _heads(rows, layers[:3], module.num_attention_heads)
    del rows
    out = _attention.scaled_dot_product_attention(query, key, value, attention_mask).transpose(1, 2).flatten(2)
    del query, key, value
    out = _product(out, layers[3]).view(sizes).permute(back)
    # The first operand gives the sum its layout.
    return hidden_states + module.to_out[1](out)


# By processor: the order of [batch, channels, frames, height, width] for attention over a frame or over frames, the
# order back, and how many axes are batch axes.
_COSMOS = {
    "CosmosSpatialAttentionProcessor2_0": ((0, 2, 3, 4, 1), (0, 4, 1, 2, 3), 2),
    "CosmosTemporalAttentionProcessor2_0": ((0, 3, 4, 2, 1), (0, 4, 3, 1, 2), 3),
}


def _is_product(layer: Any) -> bool:
    """Tell whether a convolution of Cosmos multiplies each place by its weight."""
    if type(layer).__qualname__ != "CosmosCausalConv3d" or not _replaced.is_plain(layer):
        return False
    pads = (getattr(layer, "temporal_pad", None), *getattr(layer, "spatial_pad", (None,)))
    return layer.kernel_size == layer.stride == (1, 1, 1) and layer.groups == 1 and set(pads) == {0}


def _heads(x: Tensor, layers: Sequence[Any], heads: int) -> list[Tensor]:
    return [_product(x, one).unflatten(-1, (heads, -1)).transpose(1, 2) for one in layers]


def _product(x: Tensor, layer: Any) -> Tensor:
    return F.linear(x, layer.weight.flatten(1), layer.bias)


def _mochi(module: Any, original: Callable[..., Any], hidden_states: Tensor, *others: Any, **options: Any) -> Any:
    """Compute `MochiDownBlock3D` of diffusers, with its attention written in place instead of concatenated."""
    if _may_concatenate() or others or "chunk_size" in options:
        return None
    return original(_InPlace(module), hidden_states, chunk_size=sys.maxsize, **options)


def _mochi_norm(module: Any, original: Callable[..., Any], x: Tensor) -> Tensor | None:
    """Compute `MochiChunkedGroupNorm3D` of diffusers, which concatenates a few frames at a time."""
    if _may_concatenate():
        return None
    frames = x.transpose(1, 2).flatten(0, 1)
    out = _in_chunks(module.norm_layer, module.chunk_size, frames)
    return out.unflatten(0, (x.shape[0], -1)).transpose(1, 2)


def _mochi_resnet(
    module: Any, original: Callable[..., Any], inputs: Tensor, conv_cache: Any = None
) -> tuple[Tensor, dict[str, None]] | None:
    """Compute `MochiResnetBlock3D` of diffusers, a few frames at a time. Its causal convolutions read earlier frames.

    Each frame is contiguous where norms read it. PyTorch's padding and its sums over other layouts are slow.
    """
    stages = ((module.norm1, module.conv1), (module.norm2, module.conv2))
    if _may_concatenate() or inputs.dim() != 5:
        return None
    activation = module.nonlinearity
    if type(activation) is not nn.SiLU or not _replaced.is_plain(activation) or not all(_is_causal(*one) for one in stages):
        return None
    batch, channels, _, height, width = inputs.shape
    # The package splits larger convolutions, too.
    most = 2**30 // max(batch * channels * (height + 2) * (width + 2), 1) - 2
    size = max(1, min(_FRAMES, most))
    tails: list[Tensor] = []
    padded: Tensor | None = None
    out: Tensor | None = None
    for begin in range(0, inputs.shape[2], size):
        source = part = inputs[:, :, begin : begin + size]
        for at, (norm, conv) in enumerate(stages):
            frames = norm.norm_layer(part.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(part), -1))
            padded = _activated(frames.transpose(1, 2), conv, padded, tails.pop(0) if begin > 0 else None)
            tails.append(padded[:, :, -conv.time_pad :].clone())
            del frames
            made = F.conv3d(padded, conv.conv.weight)
            if at == 0:
                part = _by_frames(made, made.shape[2])
            else:
                out = _by_frames(made, inputs.shape[2]) if out is None else out
                part = out[:, :, begin : begin + size]
            torch.add(made, conv.conv.bias.to(made.dtype).view(-1, 1, 1, 1), out=part)
            del made
        part += source
    assert out is not None
    return out, {"conv1": None, "conv2": None}


def _is_causal(norm: Any, conv: Any) -> bool:
    """Tell whether a norm and a causal convolution of diffusers, padded by replication, have the known parts."""
    known = type(getattr(norm, "norm_layer", None)) is nn.GroupNorm and type(conv).__name__ == "CogVideoXCausalConv3d"
    if not known or conv.pad_mode != "replicate" or conv.time_pad <= 0 or not all(map(_replaced.is_plain, (norm, conv))):
        return False
    inner = conv.conv
    plain = isinstance(inner, nn.Conv3d) and _replaced.is_plain(inner) and _replaced.is_plain(norm.norm_layer)
    return plain and inner.stride == inner.dilation == (1, 1, 1) and inner.groups == 1 and inner.bias is not None


def _by_frames(like: Tensor, frames: int) -> Tensor:
    """Allocate [batch, channels, frames, height, width] with contiguous frames."""
    batch, channels, _, *places = like.shape
    return like.new_empty(batch, frames, channels, *places).transpose(1, 2)


def _activated(x: Tensor, conv: Any, memory: Tensor | None, earlier: Tensor | None) -> Tensor:
    """Return SiLU of x, padded for a causal convolution by replication, or after the earlier frames."""
    time, vertical, horizontal = conv.time_pad, conv.height_pad, conv.width_pad
    *outer, frames, height, width = x.shape
    sizes = (*outer, frames + time, height + 2 * vertical, width + 2 * horizontal)
    padded = x.new_empty(sizes) if memory is None or memory.shape != sizes or memory.dtype != x.dtype else memory
    rows = padded[:, :, time:]
    bottom, right = vertical + height, horizontal + width
    torch.ops.aten.silu.out(x, out=rows[..., vertical:bottom, horizontal:right])
    rows[..., :vertical, :] = rows[..., vertical : vertical + 1, :]
    rows[..., bottom:, :] = rows[..., bottom - 1 : bottom, :]
    rows[..., :horizontal] = rows[..., horizontal : horizontal + 1]
    rows[..., right:] = rows[..., right - 1 : right]
    padded[:, :, :time] = rows[:, :, :1] if earlier is None else earlier
    return padded


def _may_concatenate() -> bool:
    """Tell whether copies to slices of an output would cost more than a concatenation."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling()


class _InPlace:
    """A block of Mochi whose attention modules write their output in place, chunk by chunk."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.attentions = [one and functools.partial(_attend_in_chunks, one) for one in block.attentions]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


def _attend_in_chunks(attention: nn.Module, x: Tensor) -> Tensor:
    return _in_chunks(attention, min(max(-(-x.shape[0] // _CHUNKS), _MIN_CHUNK), _MAX_CHUNK), x)


def _in_chunks(module: nn.Module, size: int, x: Tensor) -> Tensor:
    """Compute a module that keeps the shape of `x`, a few items at a time, in the layout of `x`."""
    if size >= x.shape[0]:
        return module(x)
    out = None
    for begin in range(0, x.shape[0], size):
        source = x.narrow(0, begin, min(size, x.shape[0] - begin))
        part = module(source)
        # Autocast chooses the type.
        out = torch.empty_like(x, dtype=part.dtype) if out is None else out
        out.narrow(0, begin, source.shape[0]).copy_(part)
        del part
    assert out is not None
    return out


COMPUTE: dict[str, Callable[..., Any]] = {
    "torchvision.models.swin_transformer.ShiftedWindowAttention": _torchvision,
    "torchvision.models.swin_transformer.ShiftedWindowAttentionV2": _torchvision,
    "timm.models.swin_transformer.WindowAttention": _timm,
    "timm.models.swin_transformer_v2.WindowAttention": _timm_v2,
    "diffusers.models.autoencoders.autoencoder_kl_cosmos.CosmosCausalAttention": _cosmos,
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiDownBlock3D": _mochi,
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiChunkedGroupNorm3D": _mochi_norm,
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiResnetBlock3D": _mochi_resnet,
    **{f"tabpfn.architectures.tabpfn_{version}.TabPFNBlock": _tabpfn.compute for version in ("v2", "v2_5", "v2_6")},
}
"""By the name of a class, what returns the output of (module, original `forward`, *arguments), or None to run the module
itself."""
