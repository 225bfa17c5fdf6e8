"""The temporal transformer block of diffusers' motion modules on our kernels, with the module's own weights."""

from __future__ import annotations

import contextlib
import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gridguard import _arguments, _attention, _launch, _native, _pytorch, _stats

# The epsilon of the layer norms in the kernels.
_EPSILON = 1e-5
# The kernels and cuBLASLt load weights at multiples of this number of bytes.
_ALIGNMENT = 16
# Arguments that a block with plain layer norms does not use.
_IGNORED = {"timestep", "class_labels", "added_cond_kwargs"}
# The options of attention that the kernels support.
_ATTENTION = {"residual_connection": False, "rescale_output_factor": 1.0, "scale_qk": True}
# The modules of diffusers with blocks in temporal position.
_CONTAINERS = {
    "unets.unet_motion_model": "AnimateDiffTransformer3D",
    "transformers.transformer_temporal": "TransformerTemporalModel",
}
_MODEL = "a torch.nn.Module, for example a pipeline's unet"


def temporal_block(block: nn.Module, hidden_states: Tensor, memory_budget: _arguments.Bytes | None = None) -> Tensor:
    """Compute `block(hidden_states)`, for a `BasicTransformerBlock` of diffusers in temporal position.

    `hidden_states` is `[batch * height * width, frames, channels]`. The kernels read the module's weights in place, and
    copy only those of queries, keys and values, side by side, in each call. Other calls run in the module itself, and
    `gridguard.torch.stats` counts the reasons.

    `memory_budget` limits the scratch memory beside the output, in bytes or as a text, for example "2GiB". By default
    the batch runs as a whole, and in smaller chunks if memory is short.

    Raises GridguardError if a launch fails or the smallest chunk exceeds the budget. Raises TypeError or ValueError if
    the budget is not a positive number of bytes, and TypeError if `block` is not a module.
    """
    _check("block", block, "a BasicTransformerBlock of diffusers")
    return _forward(type(block).forward, block, _budget(memory_budget), hidden_states)


def replace_motion_modules(model: nn.Module, memory_budget: _arguments.Bytes | None = None) -> int:
    """Replace the temporal transformer blocks in `model` by `temporal_block`, and return their number.

    These are the blocks in diffusers' `AnimateDiffTransformer3D` and `TransformerTemporalModel`, for example in a
    `UNetMotionModel`. Weights, names and `state_dict` do not change. Blocks with a `forward` that something else
    replaced are skipped. A second call changes the budget.

    Raises ImportError without diffusers, and TypeError if `model` is not a module. Raises TypeError or ValueError if
    the budget is not a positive number of bytes.
    """
    _check("model", model, _MODEL)
    budget = _budget(memory_budget)
    containers = _containers()
    count = 0
    for container in model.modules():
        if not isinstance(container, containers):
            continue
        for block in container.transformer_blocks:
            if type(block) is _classes()["block"] and ("forward" not in block.__dict__ or _is_replaced(block)):
                block.forward = functools.partial(_forward, type(block).forward, block, budget)
                count += 1
    return count


def restore_motion_modules(model: nn.Module) -> int:
    """Undo `replace_motion_modules`, and return the number of restored blocks."""
    _check("model", model, _MODEL)
    replaced = [module for module in model.modules() if _is_replaced(module)]
    for module in replaced:
        # Another thread may have restored it already.
        module.__dict__.pop("forward", None)
    return len(replaced)


def _check(name: str, module: Any, accepted: str) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} is of type {type(module).__name__}: pass {accepted}")


def _budget(memory_budget: _arguments.Bytes | None) -> int | None:
    return None if memory_budget is None else _arguments.size_in_bytes("memory_budget", memory_budget, 1)


def _is_replaced(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(forward, functools.partial) and forward.func is _forward


def _forward(
    original: Callable[..., Tensor],
    block: nn.Module,
    memory_budget: int | None,
    hidden_states: Tensor,
    *others: Any,
    **options: Any,
) -> Tensor:
    if not torch.compiler.is_compiling():
        try:
            out = _serve(block, memory_budget, hidden_states, others, options)
            _stats.count(_stats.SERVED)
            return out
        except NotServed as reason:
            _stats.count(f"temporal block: {reason}")
    return original(block, hidden_states, *others, **options)


class NotServed(Exception):
    """Why the kernels do not serve a call. Nothing was launched."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise NotServed(reason)


def _serve(
    block: nn.Module, budget: int | None, x: Tensor, others: tuple[Any, ...], options: dict[str, Any]
) -> Tensor:
    """Return the output of the kernels, or raise NotServed."""
    _require(not _attention.is_transformed(), "transform")
    _require(not _pytorch.is_other_type(x) and not x.is_neg(), "tensor type")
    _require(getattr(x, _launch.SERVED_DEVICE), "device")
    given = [value for name, value in options.items() if name not in _IGNORED and value is not None]
    # diffusers may pass an empty dictionary of arguments for the attentions.
    _require(not others and all(isinstance(value, dict) and not value for value in given), "arguments")
    _require(x.dtype in _launch.DTYPES and not torch.is_autocast_enabled(_launch.DEVICE_TYPE), "dtype")
    _require(x.dim() == 3, "shape")
    tensors, positions, heads = _weights(block, x)
    x = x.contiguous()
    out = torch.empty_like(x)
    with torch.no_grad():
        # In each call: a weight may have changed unnoticed, for example by `weight.data += delta`.
        joined = [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in tensors]
    embedded = None if positions is None else positions.shape[1]
    problem = (*x.shape, heads, embedded, _launch.DTYPES[x.dtype], max(x.get_device(), 0), budget)
    addresses = (
        x.data_ptr(),
        out.data_ptr(),
        [tensor.data_ptr() for tensor in joined],
        0 if positions is None else positions.data_ptr(),
    )
    try:
        _run(problem, addresses, x.device)
    except ValueError as error:
        raise NotServed(str(error)) from None
    return out


class _Parts:
    """The modules of a block that has the architecture of the kernels."""

    def __init__(self, modules: dict[str, Any]) -> None:
        block = modules.pop("")
        # Without the block itself, which is the weak key of this object.
        self.modules = [(module, type(module), dict(module._modules)) for module in modules.values()]
        self.children = dict(block._modules)
        self.norms = [modules[f"norm{number}"] for number in (1, 2, 3)]
        self.attentions = [modules["attn1"], modules["attn2"]]
        self.dropouts = [modules[name] for name in ("attn1.to_out.1", "attn2.to_out.1", "ff.net.1")]
        self.positions = modules.get("pos_embed")

        def place(name: str) -> tuple[dict[str, Tensor | None], str]:
            module, _, key = name.rpartition(".")
            return modules[module]._parameters, key

        # For each weight of the kernels: where its parts are, and the size of a part in channels.
        self.tensors = [
            ([place(name) for name in names], rows // len(names), columns)
            for names, rows, columns in _native.BLOCK_TENSORS
        ]
        self.unserved = [place(f"attn{number}.to_{name}.bias") for number in (1, 2) for name in "qkv"]

    def is_of(self, block: nn.Module) -> bool:
        """Tell whether the block still has these modules."""
        return block._modules == self.children and all(
            type(module) is kind and module._modules == children for module, kind, children in self.modules
        )


_known: weakref.WeakKeyDictionary[nn.Module, _Parts] = weakref.WeakKeyDictionary()


def _parts(block: nn.Module) -> _Parts:
    """Return the modules of a block with the architecture of the kernels. An adapter is another module."""
    known = _known.get(block)
    if known is not None and known.is_of(block):
        return known
    _require(type(block).__module__.startswith("diffusers."), "modules")
    modules = dict(block.named_modules())
    _require({name: type(module) for name, module in modules.items()} in _served_types(), "modules")
    found = _known[block] = _Parts(modules)
    return found


def _weights(block: Any, x: Tensor) -> tuple[list[list[Tensor]], Tensor | None, int]:
    """Return the parts of each weight in the order of the kernels, the position embeddings and the number of heads."""
    parts = _parts(block)
    _require(block.norm_type == "layer_norm" and not block.only_cross_attention, "modules")
    _require_served(parts)
    channels = x.shape[-1]
    tensors: list[list[Tensor]] = []
    for places, rows, columns in parts.tensors:
        size = (rows * channels, columns * channels) if columns else (rows * channels,)
        tensors.append([])
        for values, key in places:
            tensor = values.get(key)
            if tensor is None or tensor.shape != size:
                raise NotServed("weights" if tensor is None else "shape")
            tensors[-1].append(tensor)
    _require(all(values.get(key) is None for values, key in parts.unserved), "weights")
    heads = parts.attentions[0].heads
    # Some attention processors use this attribute.
    scale = (channels // heads) ** -0.5
    _require(all(getattr(attention, "scale", scale) == scale for attention in parts.attentions), "attention")
    every = [tensor for some in tensors for tensor in some]
    positions = None
    if parts.positions is not None:
        positions = parts.positions.pe
        _require(positions.dim() == 3 and positions.shape[0] == 1 and positions.shape[-1] == channels, "shape")
        every.append(positions)
    needs_grad = x.requires_grad or any(tensor.requires_grad for tensor in every)
    _require(not (needs_grad and torch.is_grad_enabled()), "requires_grad")
    for tensor in every:
        reason = _refusal_of_weight(tensor, x)
        if reason is not None:
            raise NotServed(reason)
    return tensors, positions, heads


def _refusal_of_weight(tensor: Tensor, x: Tensor) -> str | None:
    """Return why the kernels cannot read a weight in place."""
    if _pytorch.is_other_type(tensor) or tensor.is_neg():
        return "tensor type"
    if tensor.dtype is not x.dtype:
        return "dtype"
    if tensor.get_device() != x.get_device():
        return "device"
    if not tensor.is_contiguous():
        return "strides"
    return "alignment" if tensor.data_ptr() % _ALIGNMENT else None


def _require_served(parts: _Parts) -> None:
    """Raise NotServed if the kernels compute something else than a block of these modules."""
    # Hooks of the block itself still run, before and after this.
    hooked = nn.modules.module._has_any_global_hook() or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        for module, _, _ in parts.modules
    )
    _require(not hooked, "hooks")
    _require(all(norm.eps == _EPSILON for norm in parts.norms), "epsilon")
    first, second = parts.attentions
    _require(first.heads == second.heads and first.heads > 0, "heads")
    for attention in parts.attentions:
        _require(type(attention.processor) in _classes()["processors"], "processor")
        is_plain = all(getattr(attention, name, wanted) == wanted for name, wanted in _ATTENTION.items())
        _require(is_plain, "attention")
    _require(not any(dropout.training and dropout.p > 0.0 for dropout in parts.dropouts), "dropout")


def _run(problem: tuple[Any, ...], addresses: tuple[Any, ...], device: torch.device) -> None:
    """Launch a problem on PyTorch's current stream. Raise ValueError or NotServed if the kernels do not serve it."""
    if device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return _run(problem, addresses, device)
    _launch.load_nvrtc()
    capturing = torch._C._cuda_isCurrentStreamCapturing()
    shortage: Exception | None = None
    while True:
        try:
            needed = _native.block_scratch(problem, capturing)
        except _native.UnavailableError as error:
            _launch.warn_once(str(error))
            raise NotServed("unavailable") from None
        except _native.GridguardError:
            if shortage is None:
                raise
            # There is no smaller chunk.
            raise shortage from None
        try:
            scratch = torch.empty(needed, dtype=torch.uint8, device=device)
            break
        except torch.cuda.OutOfMemoryError as error:
            shortage = error
            problem = (*problem[:-1], needed // 2)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    _native.block(problem, addresses, (scratch.data_ptr(), needed), stream, capturing)


@functools.cache
def _classes() -> dict[str, Any]:
    """Return the classes of diffusers that make up a block. Raise ImportError without diffusers."""
    from diffusers.models import attention_processor
    from diffusers.models.activations import GEGLU
    from diffusers.models.attention import BasicTransformerBlock, FeedForward
    from diffusers.models.embeddings import SinusoidalPositionalEmbedding

    names = ("AttnProcessor", "AttnProcessor2_0", "XFormersAttnProcessor")
    return {
        "block": BasicTransformerBlock,
        "attention": attention_processor.Attention,
        "feed-forward": FeedForward,
        "gate": GEGLU,
        "positions": SinusoidalPositionalEmbedding,
        "processors": {getattr(attention_processor, name, None) for name in names},
    }


@functools.cache
def _served_types() -> list[dict[str, type]]:
    """Return the types of all modules of a block by name, without and with position embeddings."""
    classes = _classes()
    attention: dict[str, type] = {
        "": classes["attention"],
        **dict.fromkeys((".to_q", ".to_k", ".to_v", ".to_out.0"), nn.Linear),
        ".to_out": nn.ModuleList,
        ".to_out.1": nn.Dropout,
    }
    plain: dict[str, type] = {
        "": classes["block"],
        **dict.fromkeys(("norm1", "norm2", "norm3"), nn.LayerNorm),
        **{f"attn{number}{name}": one for number in (1, 2) for name, one in attention.items()},
        "ff": classes["feed-forward"],
        "ff.net": nn.ModuleList,
        "ff.net.0": classes["gate"],
        "ff.net.0.proj": nn.Linear,
        "ff.net.1": nn.Dropout,
        "ff.net.2": nn.Linear,
    }
    return [plain, {**plain, "pos_embed": classes["positions"]}]


def _containers() -> tuple[type, ...]:
    """Return the classes in `_CONTAINERS` that this version of diffusers has."""
    try:
        _classes()
    except ImportError as error:
        raise ImportError("replace_motion_modules needs diffusers: pip install diffusers") from error
    found = []
    for module, name in _CONTAINERS.items():
        with contextlib.suppress(ImportError, AttributeError):
            found.append(getattr(importlib.import_module(f"diffusers.models.{module}"), name))
    if not found:
        raise ImportError("replace_motion_modules needs a version of diffusers with motion modules")
    return tuple(found)
