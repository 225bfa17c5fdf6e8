"""Small models of other packages, with random weights, and their inputs. Names begin with the package."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# A folder of packages. Those that are installed come first.
sys.path.extend(filter(None, [os.environ.get("MODELS")]))

Made = tuple[nn.Module, Any, Callable[[nn.Module, Any], Any]]
"""A model, its inputs, and how to call the model with them."""


def unet(kind: type[nn.Module], ending: str, **options: Any) -> nn.Module:
    """Make a UNet of two small blocks, whose types have an ending."""
    down, up = (f"CrossAttnDownBlock{ending}", f"DownBlock{ending}"), (f"UpBlock{ending}", f"CrossAttnUpBlock{ending}")
    sizes = {"sample_size": 8, "block_out_channels": (32, 64), "cross_attention_dim": 32, "layers_per_block": 1}
    return kind(down_block_types=down, up_block_types=up, **{**sizes, **options})


def motion_block(channels: int, heads: int, seed: int = 0, **options: Any) -> nn.Module:
    """Make a block of AnimateDiff with random norms, on the CPU in f32."""
    from diffusers.models.attention import BasicTransformerBlock

    torch.manual_seed(seed)
    made = BasicTransformerBlock(channels, heads, channels // heads, **{"double_self_attention": True, **options})
    for name, parameter in made.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0 if "weight" in name else 0.0, 0.2)
    return made.eval().requires_grad_(False)


def animatediff() -> Made:
    from diffusers import UNetMotionModel

    model = unet(UNetMotionModel, "Motion", num_attention_heads=4, norm_num_groups=8)
    inputs = (torch.randn(1, 4, 6, 8, 8), torch.tensor([10]), torch.randn(6, 5, 32))
    return model, inputs, lambda one, inputs: one(*inputs).sample


def svd() -> Made:
    from diffusers import UNetSpatioTemporalConditionModel

    times = {"addition_time_embed_dim": 32, "projection_class_embeddings_input_dim": 96}
    model = unet(UNetSpatioTemporalConditionModel, "SpatioTemporal", in_channels=4, num_attention_heads=(4, 8), **times)
    inputs = (torch.randn(1, 6, 4, 8, 8), torch.tensor([10]), torch.randn(1, 1, 32), torch.tensor([[6, 127, 0.02]]))
    return model, inputs, lambda one, inputs: one(*inputs).sample


def latte() -> Made:
    from diffusers import LatteTransformer3DModel

    model = LatteTransformer3DModel(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=8,
        in_channels=4,
        cross_attention_dim=16,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        video_length=6,
    )
    inputs = {
        "hidden_states": torch.randn(1, 4, 6, 8, 8),
        "encoder_hidden_states": torch.randn(1, 5, 8),
        "timestep": torch.tensor([10]),
    }
    return model, inputs, lambda one, inputs: one(**inputs, enable_temporal_attentions=True).sample


def mochi() -> Made:
    from diffusers import AutoencoderKLMochi

    model = AutoencoderKLMochi(
        latent_channels=4,
        encoder_block_out_channels=(32, 32, 64, 64),
        decoder_block_out_channels=(32, 32, 64, 64),
        layers_per_block=(1, 1, 1, 1, 1),
        scaling_factor=1,
    )
    return model, torch.randn(1, 3, 13, 32, 32), lambda one, frames: one.encode(frames).latent_dist.mean


def cosmos() -> Made:
    from diffusers import AutoencoderKLCosmos

    model = AutoencoderKLCosmos(
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 16, 16),
        decode_block_out_channels=(8, 8, 16, 16),
        attention_resolutions=(8,),
        resolution=64,
        num_layers=1,
        patch_size=4,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
    )
    return model, torch.randn(1, 3, 9, 64, 64), lambda one, frames: one.encode(frames).latent_dist.mode()


def _swin(package: str, version: int) -> Made:
    """Make two stages: shifted windows, in torchvision padded, and a single window, which is not shifted."""
    window = 7 if version == 1 else 8
    options = {"num_classes": 10, "depths": [2, 2], "embed_dim": 24, "num_heads": [1, 3]}
    if package == "torchvision":
        from torchvision.models import swin_transformer as swin

        if version == 2:
            options |= {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        model = swin.SwinTransformer([4, 4], window_size=[window] * 2, stochastic_depth_prob=0.0, **options)
        images = torch.randn(2, 3, 52, 100)
    else:
        import timm

        size = 8 * window
        name = {1: "swin_tiny_patch4_window7_224", 2: "swinv2_tiny_window8_256"}[version]
        model = timm.create_model(name, img_size=size, drop_path_rate=0.0, **options)
        images = torch.randn(2, 3, size, size)
    return model, images, lambda one, images: one(images)


TABPFN = ("tabpfn", "tabpfn.preprocessing", "tabpfn.preprocessing.torch")


def _tabpfn(name: str, **options: Any) -> Made:
    without_init(*TABPFN)
    architecture = importlib.import_module(f"tabpfn.architectures.{name}")
    config, _ = architecture.parse_config({"max_num_classes": 10, "num_buckets": 20, **options})
    inputs = (torch.randn(40, 1, 12), torch.randint(0, 3, (30, 1)).float())
    return architecture.get_architecture(config), inputs, lambda one, inputs: one(*inputs)


def tabicl() -> Made:
    """Make a model for tables of 12 and 7 features. Only training reads the number of features, for a mask."""
    without_init("tabicl")
    from tabicl._model.inference_config import InferenceConfig
    from tabicl._model.tabicl import TabICL

    columns = {"col_num_blocks": 1, "col_nhead": 4, "col_num_inds": 8, "col_feature_group": False}
    model = TabICL(max_classes=3, embed_dim=32, row_num_blocks=2, row_nhead=4, **columns)
    inputs = (torch.randn(2, 40, 12), torch.randint(0, 3, (2, 30)).float(), torch.tensor([12, 7]))

    def call(model: nn.Module, inputs: Any) -> Any:
        # By default inference moves its inputs to a GPU if there is one, and casts to a half type.
        own = {"device": inputs[0].device, "use_amp": False, "use_fa3": False}
        config = InferenceConfig(COL_CONFIG=dict(own), ROW_CONFIG=dict(own), ICL_CONFIG=dict(own))
        return model(*inputs, inference_config=config)

    return model, inputs, call


def without_init(*packages: str) -> None:
    """Let modules of these packages be imported without running `__init__`, which imports much more."""
    for name in packages:
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            assert spec is not None, f"{name} is not installed"
            sys.modules[name] = importlib.util.module_from_spec(spec)


MODELS: dict[str, Callable[[], Made]] = {
    "diffusers: AnimateDiff": animatediff,
    "diffusers: SVD": svd,
    "diffusers: Latte": latte,
    "diffusers: Mochi VAE": mochi,
    "diffusers: Cosmos VAE": cosmos,
    "torchvision: Swin V1": lambda: _swin("torchvision", 1),
    "torchvision: Swin V2": lambda: _swin("torchvision", 2),
    "timm: Swin V1": lambda: _swin("timm", 1),
    "timm: Swin V2": lambda: _swin("timm", 2),
    "tabpfn: v2": lambda: _tabpfn("tabpfn_v2", emsize=48, nlayers=2, nhead=3),
    "tabpfn: v2.5": lambda: _tabpfn("tabpfn_v2_5", emsize=48, nlayers=2, nhead=3),
    "tabpfn: v2.6": lambda: _tabpfn("tabpfn_v2_6", emsize=48, nlayers=2, nhead=3),
    "tabpfn: v3": lambda: _tabpfn(
        "tabpfn_v3",
        embed_dim=32,
        nlayers=2,
        dist_embed_num_blocks=1,
        dist_embed_num_heads=4,
        feat_agg_num_blocks=1,
        feat_agg_num_heads=4,
        icl_num_heads=4,
    ),
    "tabicl: TabICL": tabicl,
}


def make(
    name: str, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Make a model for inference, and a function that calls it with the same inputs each time.

    No weight is zero, so that all modules count.
    """
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model, inputs, call = MODELS[name]()
    finally:
        torch.set_default_dtype(usual)
    without_zeros(model)
    inputs = tree_map(lambda one: one.to(device), inputs)

    def run(model: nn.Module) -> Tensor:
        # Some models draw random numbers.
        torch.manual_seed(1)
        return flat(call(model, inputs))

    # Some tables of constants are in single precision.
    return model.to(device, dtype).eval(), run


def without_zeros(model: nn.Module) -> None:
    """Give the weights that are all zero random values. Some packages begin with blocks that compute nothing."""
    for parameter in model.parameters():
        if parameter.count_nonzero() == 0:
            nn.init.normal_(parameter, 0.0, 0.2)


def gradients(model: nn.Module, call: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    """Return the gradients of the parameters in a training step, by name."""
    model.train().zero_grad()
    call(model).float().square().mean().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


class Watch(TorchDispatchMode):
    """Records the sizes of concatenated tensors, and the peak of the memory that operators allocate, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.concatenated: list[int] = []
        self.peak = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one._cdata for one in storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default:
            self.concatenated.append(out.numel())
        self._storages = {key: kept for key, kept in self._storages.items() if not kept[0].expired()}
        for one in storages(out):
            if one._cdata not in given:
                self._storages[one._cdata] = StorageWeakRef(one), one.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._storages.values()))
        return out


def storages(values: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, Tensor)]


def flat(out: Any) -> Tensor:
    """Return the tensors of an output as one."""
    if isinstance(out, Tensor):
        return out.flatten()
    values = out.values() if isinstance(out, dict) else out
    return torch.cat([flat(one) for one in values if one is not None])


def installed() -> list[str]:
    """Return the names of the models whose packages are installed."""
    return [name for name in MODELS if importlib.util.find_spec(name.split(":")[0]) is not None]
