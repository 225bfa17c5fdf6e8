"""The temporal transformer block of diffusers' motion modules on our kernels, with the module's own weights."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gridguard import _arguments, _attention, _block_operator, _native, _pytorch, _replaced, _stats
from gridguard._block_operator import NotServed

Problem = tuple[Tensor, list[Tensor], Tensor | None, int]
"""Input, weights, position embeddings and heads."""

# The first version of PyTorch whose compiler is known to trace the checks of a block.
_IS_TRACED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)
# Arguments that a block with plain layer norms does not use.
_IGNORED = {"timestep", "class_labels", "added_cond_kwargs"}
_PROCESSORS = {"AttnProcessor", "AttnProcessor2_0", "XFormersAttnProcessor"}
# The options of attention that the kernels support.
_ATTENTION = {"residual_connection": False, "rescale_output_factor": 1.0, "scale_qk": True}
# The modules of diffusers with blocks in temporal position.
_CONTAINERS = {
    "unets.unet_motion_model": "AnimateDiffTransformer3D",
    "transformers.transformer_temporal": "TransformerTemporalModel",
}
# The attribute of a replaced block with its budget.
_BUDGET = "_memory_budget"
_MODEL = "a torch.nn.Module, for example a pipeline's unet"


def temporal_block(block: nn.Module, hidden_states: Tensor, memory_budget: _arguments.Bytes | None = None) -> Tensor:
    """Compute `block(hidden_states)`, for a `BasicTransformerBlock` of diffusers in temporal position.

    `hidden_states` is `[batch * height * width, frames, channels]`. The kernels read the module's weights in place, and
    copy only those of queries, keys and values, side by side, in each call. Other calls run in the module itself, and
    `gridguard.torch.stats` counts the reasons.

    Gradients equal the gradients of the module. The backward pass computes the block again, so that only inputs are
    kept. In compiled code the block is one operator, and this function takes the budget in bytes.

    `memory_budget` limits the scratch memory of the forward pass beside the output, in bytes or as a text, for example
    "2GiB". By default the batch runs as a whole, and in smaller chunks if memory is short.

    Raises GridguardError if a launch fails or the smallest chunk exceeds the budget. Raises TypeError or ValueError if
    the budget is not a positive number of bytes, and TypeError if `block` is not a module.
    """
    _replaced.check("block", block, "a BasicTransformerBlock of diffusers")
    return _forward(_replaced.forward(block), block, _budget(memory_budget), hidden_states)


def replace_motion_modules(model: nn.Module, memory_budget: _arguments.Bytes | None = None) -> int:
    """Replace the temporal transformer blocks in `model` by `temporal_block`, and return their number.

    These are the blocks in diffusers' `AnimateDiffTransformer3D` and `TransformerTemporalModel`, for example in a
    `UNetMotionModel`. Weights, names and `state_dict` do not change. Blocks with a `forward` that something else
    replaced are skipped. A second call changes the budget.

    Raises ImportError without diffusers, and TypeError if `model` is not a module. Raises TypeError or ValueError if
    the budget is not a positive number of bytes.
    """
    _replaced.check("model", model, _MODEL)
    budget = _budget(memory_budget)
    containers = _containers()
    count = 0
    for container in model.modules():
        if not isinstance(container, containers):
            continue
        for block in container.transformer_blocks:
            kind = _replaced.original(type(block))
            if kind is _classes()["block"] and "forward" not in block.__dict__:
                block.__class__, block.__dict__[_BUDGET] = _class_of(kind), budget
                count += 1
    return count


def restore_motion_modules(model: nn.Module) -> int:
    """Undo `replace_motion_modules`, and return the number of restored blocks."""
    _replaced.check("model", model, _MODEL)
    restored = _replaced.restore(model, _made)
    for block in restored:
        block.__dict__.pop(_BUDGET, None)
    return len(restored)


def _budget(memory_budget: _arguments.Bytes | None) -> int | None:
    return None if memory_budget is None else _arguments.size_in_bytes("memory_budget", memory_budget, 1)


@functools.cache
def _class_of(kind: Any) -> type:
    original = kind.forward

    def forward(self: Any, *arguments: Any, **options: Any) -> Tensor:
        return _forward(original, self, getattr(self, _BUDGET, None), *arguments, **options)

    return _replaced.like(kind, forward, _made)


def _made(kind: Any) -> nn.Module:
    """Make a copy without its state."""
    made = _class_of(kind)
    return made.__new__(made)


def _forward(
    original: Callable[..., Tensor],
    block: nn.Module,
    memory_budget: int | None,
    hidden_states: Tensor,
    *others: Any,
    **options: Any,
) -> Tensor:
    compiling = torch.compiler.is_compiling()
    try:
        problem = _problem(block, hidden_states, others, options)
        if compiling or _needs_grad(problem) or torch.autograd.profiler._is_profiler_enabled:
            # The dispatcher traces, differentiates and records the operator.
            return _block_operator.temporal_block(*problem, memory_budget)
        out = _block_operator.launch(*problem, memory_budget)
        _stats.count(_stats.SERVED)
        return out
    except NotServed as reason:
        if not compiling:
            _stats.count(f"temporal block: {reason}")
    return original(block, hidden_states, *others, **options)


def _needs_grad(problem: Problem) -> bool:
    x, weights, positions, _ = problem
    tensors = (x, *weights) if positions is None else (x, *weights, positions)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise NotServed(reason)


def _problem(block: nn.Module, x: Tensor, others: tuple[Any, ...], options: dict[str, Any]) -> Problem:
    """Return the arguments of the operator, or raise NotServed. Compilers trace this."""
    if torch.compiler.is_compiling():
        _require(_IS_TRACED and not getattr(torch.compiler, "_is_exporting_flag", False), "compiled")
        functorch = torch._C._functorch
        _require(not isinstance(functorch.peek_interpreter_stack(), functorch.CInterpreter), "transform")
    else:
        _require(not _attention.is_transformed(), "transform")
    _require(not _pytorch.is_other_type(x), "tensor type")
    given = [value for name, value in options.items() if name not in _IGNORED and value is not None]
    # diffusers may pass an empty dictionary of arguments for the attentions.
    _require(not others and all(isinstance(value, dict) and not value for value in given), "arguments")
    weights, positions, heads = _weights(block)
    reason = _block_operator.refusal(x, weights, positions, heads)
    if reason is not None:
        raise NotServed(reason)
    return x, weights, positions, heads


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
            path, _, key = name.rpartition(".")
            module = modules[path]
            # A replica of `DataParallel` has its weights as attributes.
            return module.__dict__ if hasattr(module, "_is_replica") else module._parameters, key

        # Where the weights are.
        self.weights = [place(name) for names, _, _ in _native.BLOCK_TENSORS for name in names]
        self.unserved = [place(f"attn{number}.to_{name}.bias") for number in (1, 2) for name in "qkv"]

    def is_of(self, block: nn.Module) -> bool:
        """Tell whether the block still has these modules."""
        return block._modules == self.children and all(
            type(module) is kind and module._modules == children for module, kind, children in self.modules
        )


_known: weakref.WeakKeyDictionary[nn.Module, _Parts] = weakref.WeakKeyDictionary()


def _parts(block: nn.Module) -> _Parts:
    """Return the modules of a block with the architecture of the kernels. An adapter is another module."""
    # Compilers trace each check, so that compiled code checks it again.
    compiling = torch.compiler.is_compiling()
    known = None if compiling else _known.get(block)
    if known is not None and known.is_of(block):
        return known
    _require(type(block).__module__.startswith("diffusers."), "modules")
    modules = dict(block.named_modules())
    types = {name: type(module) for name, module in modules.items()}
    types[""] = _replaced.original(type(block))
    _require(any(types == served for served in _classes()["served"]), "modules")
    found = _Parts(modules)
    if not compiling:
        _known[block] = found
    return found


def _weights(block: Any) -> tuple[list[Tensor], Tensor | None, int]:
    """Return the weights in the order of the kernels, the position embeddings and the number of heads."""
    parts = _parts(block)
    _require(block.norm_type == "layer_norm" and not block.only_cross_attention, "modules")
    _require_served(parts)
    weights = [values.get(key) for values, key in parts.weights]
    is_missing = any(weight is None for weight in weights)
    _require(not is_missing and all(values.get(key) is None for values, key in parts.unserved), "weights")
    first = parts.attentions[0]
    # Some attention processors use this attribute.
    scale = (weights[0].shape[0] // first.heads) ** -0.5
    _require(all(getattr(attention, "scale", scale) == scale for attention in parts.attentions), "attention")
    return weights, None if parts.positions is None else parts.positions.pe, first.heads


def _require_served(parts: _Parts) -> None:
    """Raise NotServed if the kernels compute something else than a block of these modules."""
    # Hooks of the block itself still run, before and after this.
    hooked = nn.modules.module._has_any_global_hook() or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        for module, _, _ in parts.modules
    )
    _require(not hooked, "hooks")
    _require(all(norm.eps == _block_operator.EPSILON for norm in parts.norms), "epsilon")
    first, second = parts.attentions
    _require(first.heads == second.heads and first.heads > 0, "heads")
    for attention in parts.attentions:
        kind = type(attention.processor)
        _require(kind.__module__.startswith("diffusers.") and kind.__name__ in _PROCESSORS, "processor")
        is_plain = all(getattr(attention, name, wanted) == wanted for name, wanted in _ATTENTION.items())
        _require(is_plain, "attention")
    _require(not any(dropout.training and dropout.p > 0.0 for dropout in parts.dropouts), "dropout")


_known_classes: dict[str, Any] = {}


def _classes() -> dict[str, Any]:
    """Return the classes of diffusers that make up a block. Raise ImportError without diffusers."""
    if _known_classes:
        return _known_classes
    from diffusers.models.activations import GEGLU
    from diffusers.models.attention import BasicTransformerBlock, FeedForward
    from diffusers.models.attention_processor import Attention
    from diffusers.models.embeddings import SinusoidalPositionalEmbedding

    attention: dict[str, type] = {
        "": Attention,
        **dict.fromkeys((".to_q", ".to_k", ".to_v", ".to_out.0"), nn.Linear),
        ".to_out": nn.ModuleList,
        ".to_out.1": nn.Dropout,
    }
    plain: dict[str, type] = {
        "": BasicTransformerBlock,
        **dict.fromkeys(("norm1", "norm2", "norm3"), nn.LayerNorm),
        **{f"attn{number}{name}": one for number in (1, 2) for name, one in attention.items()},
        "ff": FeedForward,
        "ff.net": nn.ModuleList,
        "ff.net.0": GEGLU,
        "ff.net.0.proj": nn.Linear,
        "ff.net.1": nn.Dropout,
        "ff.net.2": nn.Linear,
    }
    found = {
        "block": BasicTransformerBlock,
        # The types of all modules of a block by name, without and with position embeddings.
        "served": (plain, {**plain, "pos_embed": SinusoidalPositionalEmbedding}),
    }
    if not torch.compiler.is_compiling():
        _known_classes.update(found)
    return found


def _containers() -> tuple[type, ...]:
    """Return the classes in `_CONTAINERS` that this version of diffusers has."""
    try:
        _classes()
    except ImportError as error:
        raise ImportError("replace_motion_modules needs diffusers: pip install diffusers") from error
    found: list[type] = []
    cause: Exception | None = None
    for module, name in _CONTAINERS.items():
        try:
            found.append(getattr(importlib.import_module(f"diffusers.models.{module}"), name))
        except (ImportError, AttributeError, RuntimeError) as error:
            # A package that diffusers needs may be broken, for example a torchvision for another PyTorch.
            cause = error
    if not found:
        raise ImportError("replace_motion_modules needs a version of diffusers with motion modules") from cause
    return tuple(found)
