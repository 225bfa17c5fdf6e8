"""The temporal transformer block of diffusers' motion modules on our kernels, with the module's own weights."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gridguard import _arguments, _attention, _counts, _fallback, _launch, _native

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
_EPSILON = 1e-5
"""Of the norms that the kernels compute."""
_ALIGNMENT = 16
"""Bytes at multiples of which the kernels load and cuBLASLt multiplies."""
_IGNORED = {"timestep", "class_labels", "added_cond_kwargs"}
"""Arguments that a block whose norms are plain does not use."""
_ATTENTION = {"residual_connection": False, "rescale_output_factor": 1.0, "scale_qk": True}


def temporal_block(block: nn.Module, hidden_states: Tensor, memory_budget: _arguments.Bytes | None = None) -> Tensor:
    """As `block(hidden_states)`, for a `BasicTransformerBlock` of diffusers in temporal position.

    `hidden_states` are `[batch * height * width, frames, channels]`. The kernels read the module's weights where
    they are, and copy only those of queries, keys and values, side by side, for each call. What they do not serve
    runs in the module, and `gridguard.torch.stats` says why.

    `memory_budget` is the most bytes of scratch beside the output, as a whole number or a text such as "2GiB". By
    default the batch runs as a whole, and in smaller parts if memory is short.

    Raises GridguardError if a launch fails, or the smallest part exceeds the budget, and TypeError or ValueError for a
    budget that is no positive number of bytes.
    """
    return _forward(type(block).forward, block, _budget(memory_budget), hidden_states)


def replace_motion_modules(model: nn.Module, memory_budget: _arguments.Bytes | None = None) -> int:
    """Has the temporal transformer blocks of a model's motion modules run as `temporal_block`, and returns how many.

    These are the blocks in diffusers' `AnimateDiffTransformer3D` and `TransformerTemporalModel`, such as those of a
    `UNetMotionModel`. Weights, names and `state_dict` stay as they are. Blocks whose `forward` something else has
    replaced are left alone. A second call sets another budget.

    Raises ImportError without diffusers, TypeError if `model` is not a module, and TypeError or ValueError for a
    budget that is no positive number of bytes.
    """
    _check(model)
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
    """Has the blocks that `replace_motion_modules` replaced run as before, and returns how many."""
    _check(model)
    replaced = [module for module in model.modules() if _is_replaced(module)]
    for module in replaced:
        # Another thread may have restored it meanwhile.
        module.__dict__.pop("forward", None)
    return len(replaced)


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a module, such as a pipeline's unet, not {type(model).__name__}")


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
    """As `original`, the forward function of the block's class."""
    if not torch.compiler.is_compiling():
        out = _serve(block, memory_budget, hidden_states, others, options)
        if out is not None:
            return out
    return original(block, hidden_states, *others, **options)


def _serve(
    block: nn.Module, budget: int | None, x: Tensor, others: tuple[Any, ...], options: dict[str, Any]
) -> Tensor | None:
    """The output, if the kernels compute it."""
    reason = "transform" if _attention.is_transformed() else _refusal_of_call(x, others, options)
    out = None
    if reason is None:
        found = _weights(block, x)
        if isinstance(found, str):
            reason = found
        else:
            tensors, positions, heads = found
            x = x.contiguous()
            out = torch.empty_like(x)
            reason = _submit(x, out, tensors, positions, heads, budget)
    _counts.count(reason and f"temporal block: {reason}")
    return out if reason is None else None


def _refusal_of_call(x: Tensor, others: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Why the kernels do not serve a call, whatever the block is."""
    if type(x) not in _fallback.PLAIN or x.is_nested or x.layout is not torch.strided or x.is_neg():
        return "tensor type"
    if not getattr(x, _launch.SERVED_DEVICE):
        return "device"
    given = [value for name, value in options.items() if name not in _IGNORED and value is not None]
    # Without arguments for the attentions the dictionary may be empty.
    if others or any(not (isinstance(value, dict) and not value) for value in given):
        return "arguments"
    if x.dtype not in _DTYPES or torch.is_autocast_enabled(_launch.DEVICE_TYPE):
        return "dtype"
    return "shape" if x.dim() != 3 else None


class _Parts:
    """The modules of a block that has the architecture of the kernels, found once."""

    def __init__(self, modules: dict[str, Any]) -> None:
        block = modules.pop("")
        # Not the block itself, which is the key that this is kept under.
        self.modules = [(module, type(module), dict(module._modules)) for module in modules.values()]
        self.children = dict(block._modules)
        self.norms = [modules[f"norm{number}"] for number in (1, 2, 3)]
        self.attentions = [modules["attn1"], modules["attn2"]]
        self.dropouts = [modules[name] for name in ("attn1.to_out.1", "attn2.to_out.1", "ff.net.1")]
        self.positions = modules.get("pos_embed")

        def place(name: str) -> tuple[dict[str, Tensor | None], str]:
            module, _, key = name.rpartition(".")
            return modules[module]._parameters, key

        self.tensors = [
            ([place(name) for name in names], rows // len(names), columns)
            for names, rows, columns in _native.BLOCK_TENSORS
        ]
        """The parts of each tensor, in the order of the kernels, with the sizes of a part in channels."""
        self.unserved = [place(f"attn{number}.to_{name}.bias") for number in (1, 2) for name in "qkv"]

    def is_of(self, block: nn.Module) -> bool:
        """Whether the block still has these modules."""
        return block._modules == self.children and all(
            type(module) is kind and module._modules == children for module, kind, children in self.modules
        )


_known: weakref.WeakKeyDictionary[nn.Module, _Parts] = weakref.WeakKeyDictionary()


def _parts(block: nn.Module) -> _Parts | None:
    """The modules of a block, if they have the architecture of the kernels. Adapters are modules, too."""
    known = _known.get(block)
    if known is not None and known.is_of(block):
        return known
    if not type(block).__module__.startswith("diffusers."):
        return None
    modules = dict(block.named_modules())
    if {name: type(module) for name, module in modules.items()} not in _served_types():
        return None
    found = _known[block] = _Parts(modules)
    return found


def _weights(block: Any, x: Tensor) -> tuple[list[list[Tensor]], Tensor | None, int] | str:
    """The parts of each tensor of the block in the order of the kernels, the embeddings of positions and the
    heads; or why the kernels do not compute what the block does."""
    parts = _parts(block)
    if parts is None or block.norm_type != "layer_norm" or block.only_cross_attention:
        return "modules"
    reason = _refusal_of_parts(parts)
    if reason is not None:
        return reason
    channels = x.shape[-1]
    tensors = [[values.get(key) for values, key in places] for places, _, _ in parts.tensors]
    for some, (_, rows, columns) in zip(tensors, parts.tensors):
        size = (rows * channels, columns * channels) if columns else (rows * channels,)
        for tensor in some:
            if tensor is None:
                return "weights"
            if tensor.shape != size:
                return "shape"
    if any(values.get(key) is not None for values, key in parts.unserved):
        return "weights"
    heads = parts.attentions[0].heads
    # Some processors read it.
    scale = (channels // heads) ** -0.5
    if any(getattr(attention, "scale", scale) != scale for attention in parts.attentions):
        return "attention"
    every = [tensor for some in tensors for tensor in some if tensor is not None]
    positions = None
    if parts.positions is not None:
        positions = parts.positions.pe
        if positions.dim() != 3 or positions.shape[0] != 1 or positions.shape[-1] != channels:
            return "shape"
        every.append(positions)
    if torch.is_grad_enabled() and (x.requires_grad or any(tensor.requires_grad for tensor in every)):
        return "requires_grad"
    reason = next(filter(None, (_refusal_of_weight(tensor, x) for tensor in every)), None)
    return (tensors, positions, heads) if reason is None else reason  # type: ignore[return-value]


def _refusal_of_weight(tensor: Tensor, x: Tensor) -> str | None:
    """Why the kernels do not read a weight where it is."""
    if type(tensor) not in _fallback.PLAIN or tensor.layout is not torch.strided or tensor.is_neg():
        return "tensor type"
    if tensor.dtype is not x.dtype:
        return "dtype"
    if tensor.get_device() != x.get_device():
        return "device"
    if not tensor.is_contiguous():
        return "strides"
    return "alignment" if tensor.data_ptr() % _ALIGNMENT else None


def _refusal_of_parts(parts: _Parts) -> str | None:
    """Why the kernels do not compute what a block of these modules does."""
    # Hooks of the block itself run before and after us.
    if nn.modules.module._has_any_global_hook() or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        for module, _, _ in parts.modules
    ):
        return "hooks"
    if any(norm.eps != _EPSILON for norm in parts.norms):
        return "epsilon"
    first, second = parts.attentions
    if first.heads != second.heads or first.heads <= 0:
        return "heads"
    for attention in parts.attentions:
        if type(attention.processor) not in _classes()["processors"]:
            return "processor"
        if any(getattr(attention, name, wanted) != wanted for name, wanted in _ATTENTION.items()):
            return "attention"
    if any(dropout.training and dropout.p > 0.0 for dropout in parts.dropouts):
        return "dropout"
    return None


def _submit(
    x: Tensor,
    out: Tensor,
    tensors: Sequence[Sequence[Tensor]],
    positions: Tensor | None,
    heads: int,
    budget: int | None,
) -> str | None:
    """Launches the block in the current stream of the tensors' device. Returns why not, if the kernels do not
    compute it: then nothing was launched."""
    with torch.no_grad():
        # For each call: a weight may have changed in place without a trace, as `weight.data += delta` does.
        joined = [parts[0] if len(parts) == 1 else torch.cat(list(parts)) for parts in tensors]
    embedded = None if positions is None else positions.shape[1]
    index = x.get_device()
    problem = (*x.shape, heads, embedded, _DTYPES[x.dtype], max(index, 0), budget)
    addresses = (
        x.data_ptr(),
        out.data_ptr(),
        [tensor.data_ptr() for tensor in joined],
        0 if positions is None else positions.data_ptr(),
    )
    return _run(problem, addresses, x.device)


def _run(problem: tuple[Any, ...], addresses: tuple[Any, ...], device: torch.device) -> str | None:
    """Launches a problem in the current stream of a device. Memory is as of `gridguard.torch`'s attention."""
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
            return "unavailable"
        except _native.GridguardError:
            if shortage is None:
                raise
            # There is no smaller chunk.
            raise shortage from None
        if isinstance(needed, str):
            return needed
        try:
            scratch = torch.empty(needed, dtype=torch.uint8, device=device)
            break
        except torch.cuda.OutOfMemoryError as error:
            shortage = error
            problem = (*problem[:-1], needed // 2)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    _native.block(problem, addresses, (scratch.data_ptr(), needed), stream, capturing)
    return None


@functools.cache
def _classes() -> dict[str, Any]:
    """The classes of diffusers that a block is made of. Raises ImportError without diffusers."""
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
    """The types of all modules of a block by their names, without and with embeddings of positions."""
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
    """The modules of diffusers whose blocks are in temporal position."""
    try:
        _classes()
    except ImportError as error:
        raise ImportError("replace_motion_modules needs diffusers: pip install diffusers") from error
    found = tuple(_import_containers())
    if not found:
        raise ImportError("replace_motion_modules needs a version of diffusers with motion modules")
    return found


def _import_containers() -> Iterator[type]:
    try:
        from diffusers.models.unets.unet_motion_model import AnimateDiffTransformer3D

        yield AnimateDiffTransformer3D
    except ImportError:
        pass
    try:
        from diffusers.models.transformers.transformer_temporal import TransformerTemporalModel

        yield TransformerTemporalModel
    except ImportError:
        pass
