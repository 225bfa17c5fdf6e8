"""Transformer blocks of motion modules, from diffusers or, if it is not installed, from a copy in plain PyTorch."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "diffusers.models"


class GEGLU(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(channels, 2 * inner)

    def forward(self, hidden: Tensor) -> Tensor:
        value, gate = self.proj(hidden).chunk(2, dim=-1)
        return value * nn.functional.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        down = nn.Linear(4 * channels, channels)
        self.net = nn.ModuleList([GEGLU(channels, 4 * channels), nn.Dropout(0.0), down])

    def forward(self, hidden: Tensor) -> Tensor:
        for module in self.net:
            hidden = module(hidden)
        return hidden


class AttnProcessor2_0:
    def __call__(self, attention: Attention, hidden: Tensor) -> Tensor:
        layers = (attention.to_q, attention.to_k, attention.to_v)
        heads = [layer(hidden).unflatten(-1, (attention.heads, -1)).transpose(1, 2) for layer in layers]
        attended = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return attention.to_out[1](attention.to_out[0](attended))


class Attention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.processor = AttnProcessor2_0()
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels), nn.Dropout(0.0)])

    def forward(self, hidden: Tensor) -> Tensor:
        return self.processor(self, hidden)


class SinusoidalPositionalEmbedding(nn.Module):
    pe: Tensor

    def __init__(self, channels: int, positions: int) -> None:
        super().__init__()
        rates = 1e4 ** (-torch.arange(0, channels, 2) / channels)
        angles = torch.arange(positions).unsqueeze(1) * rates
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).flatten(1).unsqueeze(0))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.pe[:, : hidden.shape[1]]


class BasicTransformerBlock(nn.Module):
    norm_type, only_cross_attention = "layer_norm", False

    def __init__(self, channels: int, heads: int, head_dim: int, **options: Any) -> None:
        super().__init__()
        positions = options.get("num_positional_embeddings")
        self.pos_embed = SinusoidalPositionalEmbedding(channels, positions) if positions else None
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.attn1, self.attn2 = (Attention(channels, heads) for _ in range(2))
        self.ff = FeedForward(channels)

    def forward(self, hidden: Tensor) -> Tensor:
        for norm, attention in ((self.norm1, self.attn1), (self.norm2, self.attn2)):
            normed = norm(hidden)
            hidden = attention(normed if self.pos_embed is None else self.pos_embed(normed)) + hidden
        return self.ff(self.norm3(hidden)) + hidden


class AnimateDiffTransformer3D(nn.Module):
    """A motion module without what surrounds its blocks."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(blocks)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.transformer_blocks:
            hidden = block(hidden)
        return hidden


INSTALLED = importlib.util.find_spec("diffusers") is not None


def provide() -> None:
    """Provide these classes as modules of diffusers if it is not installed."""
    if INSTALLED or "diffusers" in sys.modules:
        return
    places = {
        "attention": (BasicTransformerBlock, FeedForward),
        "activations": (GEGLU,),
        "attention_processor": (Attention, AttnProcessor2_0),
        "embeddings": (SinusoidalPositionalEmbedding,),
        "unets.unet_motion_model": (AnimateDiffTransformer3D,),
    }
    for name in ("diffusers", PACKAGE, f"{PACKAGE}.unets"):
        sys.modules[name] = types.ModuleType(name, "The stand-in of our tests.")
    for place, classes in places.items():
        module = types.ModuleType(f"{PACKAGE}.{place}")
        for one in classes:
            one.__module__ = module.__name__
            setattr(module, one.__name__, one)
        sys.modules[module.__name__] = module
        parent, _, last = module.__name__.rpartition(".")
        setattr(sys.modules[parent], last, module)


def block(channels: int, heads: int, positions: int | None = 32, seed: int = 0) -> nn.Module:
    """Make a block of AnimateDiff with random norms, on the CPU in f32."""
    provide()
    from diffusers.models.attention import BasicTransformerBlock as Block

    torch.manual_seed(seed)
    embedded = {"positional_embeddings": "sinusoidal", "num_positional_embeddings": positions} if positions else {}
    made = Block(channels, heads, channels // heads, double_self_attention=True, **embedded)
    for name, parameter in made.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0 if "weight" in name else 0.0, 0.2)
    return made.eval().requires_grad_(False)
