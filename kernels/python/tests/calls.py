"""Random calls of scaled dot product attention, compared with PyTorch in double precision."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

PYTORCH = torch.nn.functional.scaled_dot_product_attention
"""PyTorch's own function, imported before any test installs ours."""

# PyTorch 2.5 added `enable_gqa`, and zeros for a query whose keys are all masked.
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5)

TOLERANCES = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 2e-4, torch.float64: 1e-6}
AUTOCAST = torch.bfloat16
# The weights of the modes. Compiling takes a second.
MODES = {
    "plain": 30,
    "grad": 12,
    "no_grad": 8,
    "inference": 8,
    "autocast": 8,
    "autocast grad": 6,
    "second": 8,
    "compiled": 2,
    "compiled grad": 3,
}
NOT_ALIGNED = "not aligned"


@dataclass
class Call:

    tensors: list[Tensor]
    mask: Tensor | None
    options: dict[str, Any]
    mode: str
    """One of `MODES`. `grad` also compares gradients, and `second` their gradients."""
    notes: list[str] = field(default_factory=list)
    shift: int = 0
    """The offset of the output's gradient, in elements after a multiple of 64 bytes."""
    backend: str = "aot_eager"

    def is_aligned(self) -> bool:
        """Tell whether PyTorch's kernels can read all tensors in place."""
        tensors = [*self.tensors, *([] if self.mask is None else [self.mask])]
        return all(map(_is_aligned, tensors)) and _is_aligned(shifted(torch.empty(8, dtype=torch.float32), self.shift))

    def aligned(self) -> Call:
        """Copy the tensors that PyTorch's kernels cannot read."""

        def copy(tensor: Tensor) -> Tensor:
            return tensor if _is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)

        mask = None if self.mask is None else copy(self.mask)
        if mask is not None and mask.dim() >= 2 and mask.shape[-1] == 1:
            # PyTorch expands it to strides that its own kernels refuse, or that end the process.
            mask = mask.expand(*mask.shape[:-1], self.tensors[1].shape[-2])
        return replace(self, tensors=list(map(copy, self.tensors)), mask=mask, shift=0)

    def __str__(self) -> str:
        shapes = [(tuple(t.shape), t.stride(), t.dtype) for t in self.tensors]
        mask = None if self.mask is None else (tuple(self.mask.shape), self.mask.dtype)
        return f"{shapes} mask {mask} {self.options} {self.mode} {self.notes}"


def random_call(seed: int, device: str) -> Call:
    """Draw a call. Most are valid, and most have short sequences."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    dtype = pick.choice([torch.float16] * 4 + [torch.bfloat16, torch.float32, torch.float32, torch.float64])
    rank = pick.choice([2, 3, 4, 4, 4, 4, 5])
    length = pick.choice([pick.randint(1, 40), pick.choice([1, 8, 16, 32, 64, 127, 128, 129, 144, 256, 257, 512, 513])])
    keys = pick.randint(1, 150) if pick.random() < 0.1 else length
    width = pick.choice([64, 64, 40, 72, 80, 128, 160, 16, pick.randint(1, 168), 256, 264, 512, 520])
    heads = pick.choice([1, 2, 5, 6, 8])
    batch = {2: [], 3: [pick.randint(1, 9)], 4: [pick.randint(1, 9), heads], 5: [2, pick.randint(1, 3), heads]}[rank]
    options: dict[str, Any] = {}
    notes = []
    kv_batch = list(batch)
    if rank >= 4 and pick.random() < 0.15:
        kv_heads = pick.randint(1, heads)
        if not IS_OLD:
            options["enable_gqa"] = True
            kv_batch[-1] = kv_heads
    kind = pick.choice(["contiguous", "contiguous", "heads last", "packed", "sliced", "expanded", "columns"])
    notes.append(kind)
    query = laid_out(kind, batch, length, width, dtype, device)
    key = laid_out(kind, kv_batch, keys, width, dtype, device)
    value_width = pick.choice([width + 8, 16, 128]) if pick.random() < 0.1 else width
    value = laid_out(kind, kv_batch, keys, value_width, dtype, device)
    tensors = [query, key, value]

    if pick.random() < 0.3:
        options["is_causal"] = True
    if pick.random() < 0.3:
        options["scale"] = pick.choice([0.3, 1.0, 0.0, 0.125, -0.5])
    mask = None
    if pick.random() < 0.35 and not (options.get("is_causal") and pick.random() < 0.9):
        mask = _mask(pick, batch, length, keys, dtype, device)
    fault = pick.random()
    if fault < 0.02:
        tensors[1] = key.to(torch.float32 if dtype != torch.float32 else torch.float16)
        notes.append("mixed types")
    elif fault < 0.04:
        tensors[2] = value[..., : max(keys - 1, 0), :]
        notes.append("values are short")
    elif fault < 0.05:
        options["dropout_p"] = 2.0
    elif fault < 0.06 and mask is not None:
        mask = mask[..., : max(keys - 1, 0)]
        notes.append("mask is short")
    if pick.random() < 0.2:
        elements = pick.choice([1, 2, 4, 8])
        at = pick.choice([0, 1, 2, 3])
        notes.append(f"tensor {at} begins {elements} elements later")
        if at < 3:
            tensors[at] = shifted(tensors[at], elements)
        elif mask is not None:
            mask = shifted(mask, elements)
    [mode] = pick.choices(list(MODES), list(MODES.values()))
    shift = pick.choice([0, 0, 0, 1, 2, 4]) if "compiled" not in mode else 0
    backend = "inductor" if device == "cuda" and pick.random() < 0.2 else "aot_eager"
    return Call(tensors, mask, options, mode, notes, shift, backend)


def shifted(tensor: Tensor, elements: int = 1) -> Tensor:
    """Copy a tensor to memory that begins `elements` elements after a multiple of 64 bytes."""
    if elements == 0:
        return tensor
    memory = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    return memory[elements:].view(tensor.shape).copy_(tensor)


def _is_aligned(tensor: Tensor) -> bool:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return True
    steps = [0] if tensor.is_contiguous() else [step for size, step in zip(tensor.shape, tensor.stride()) if size > 1][:-1]
    return all(at % 16 == 0 for at in (tensor.data_ptr(), *(step * tensor.element_size() for step in steps)))


def run(call: Call, function: Any, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return the output of a call, and the gradients of its mode; in `dtype`, after autocast's rounding, if given."""

    def cast(tensor: Tensor) -> Tensor:
        if dtype is None or not tensor.is_floating_point():
            return tensor
        if "autocast" in call.mode and tensor.dtype != torch.float64:
            tensor = tensor.to(AUTOCAST)
        return tensor.to(dtype)

    tensors = [cast(tensor) for tensor in call.tensors]
    mask = None if call.mask is None else cast(call.mask)
    device = tensors[0].device.type
    differentiated = "grad" in call.mode or call.mode == "second"
    if differentiated:
        tensors = [t.detach().requires_grad_() for t in tensors]
    inputs = _joined(tensors) if call.mode == "second" else tensors
    contexts = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast(device, AUTOCAST, enabled=dtype is None),
    }
    if call.mode.startswith("compiled") and function is not PYTORCH:
        function = _compiled(function, call.backend)
    with contexts.get(call.mode.removesuffix(" grad"), contextlib.nullcontext()):
        out = function(*inputs, mask, **call.options)
    if not differentiated or call.mode == "no_grad":
        return [out]
    grad = torch.linspace(-1, 1, out.shape[-1], device=out.device, dtype=torch.float32).to(out.dtype).expand(out.shape)
    grad = shifted(grad.contiguous(), call.shift)
    first = torch.autograd.grad(out, tensors, grad, create_graph=call.mode == "second")
    second = torch.autograd.grad(sum(one.sum() for one in first), tensors) if call.mode == "second" else []
    return [out.detach(), *(one.detach() for one in first), *second]


def _joined(tensors: list[Tensor]) -> list[Tensor]:
    """Make query, key and value depend on one another, as in self-attention, if their sizes allow it."""
    query, key, value = tensors
    if key.shape == query.shape and key.dtype == query.dtype:
        key = key + query * 0.5
    if value.shape == key.shape and value.dtype == key.dtype:
        value = value - key * 0.5
    return [query, key, value]


def _pytorch_compiled(*arguments: Any, **options: Any) -> Tensor:
    """Wrap PyTorch's function: `run` compiles everything but PyTorch's function itself."""
    return PYTORCH(*arguments, **options)


def _compiled(function: Any, backend: str) -> Any:
    torch.compiler.reset()
    return torch.compile(lambda *arguments, **options: function(*arguments, **options), backend=backend)


def reference(call: Call) -> list[Tensor] | Exception:
    """Return what PyTorch returns or raises, on copies of tensors that its kernels would misread."""
    return outcome(call.aligned(), PYTORCH)


def outcome(call: Call, function: Any, dtype: torch.dtype | None = None) -> list[Tensor] | Exception:
    # On the CPU, PyTorch has fused kernels in double precision. They have no second derivatives.
    is_exact = dtype is not None and call.mode == "second"
    try:
        with sdpa_kernel(SDPBackend.MATH) if is_exact else contextlib.nullcontext():
            return run(call, function, dtype)
    except Exception as error:
        # Its traceback would keep the tensors.
        return error.with_traceback(None)


@dataclass(frozen=True)
class Comparison:
    """How a call was compared, and the difference, if any."""

    kind: str
    wrong: str | None = None


COMPARED = "compared"
BOTH_RAISE = "both raise"
SERVED_REFUSED = "computed where PyTorch refuses the layout"
# PyTorch's errors for layouts that its own function makes of valid masks and slices.
REFUSED_LAYOUTS = (
    "is not correctly aligned",
    "last dimension must be contiguous",
    "no kernel found to launch",
    # Of a query that is expanded over the items, with values of another head dimension.
    "The stride for the last dimension corresponding to the embedding size per head should be 1",
)
SERVED_DERIVATIVE = "computed where PyTorch has no second derivative"
NO_DERIVATIVE = "is not implemented"
COMPILED_RAISES_NOT = "PyTorch's compiled code does not raise either"
NOT_EXACT = "not compared: PyTorch raises in double precision"


def compare(call: Call, function: Any, theirs: list[Tensor] | Exception | None) -> Comparison:
    """Compare `function` with a `reference` (None: its process ended), and with PyTorch in double precision."""
    # A call of PyTorch that failed once may end the process the second time, so it is not repeated.
    if isinstance(theirs, Exception):
        ours = outcome(call, function)
        if type(ours) is type(theirs) or (isinstance(ours, Exception) and call.mode.startswith("compiled")):
            return Comparison(BOTH_RAISE)
        if call.mode.startswith("compiled") and not isinstance(outcome(call, _pytorch_compiled), Exception):
            return Comparison(COMPILED_RAISES_NOT)
        kind = SERVED_REFUSED
        if call.mode == "second" and NO_DERIVATIVE in str(theirs):
            kind = SERVED_DERIVATIVE
        elif isinstance(ours, Exception) or not any(text in str(theirs) for text in REFUSED_LAYOUTS):
            result = repr(ours) if isinstance(ours, Exception) else "no error"
            return Comparison(BOTH_RAISE, f"{result} instead of {theirs!r}")
        if isinstance(ours, Exception):
            return Comparison(kind, repr(ours))
        return Comparison(kind, _difference(call, ours, outcome(call, PYTORCH, torch.float64), None))
    exact = outcome(call, PYTORCH, torch.float64)
    ours = outcome(call, function)
    if isinstance(ours, Exception):
        if theirs is None and type(ours) is type(exact):
            return Comparison(BOTH_RAISE)
        return Comparison(COMPARED, repr(ours))
    return Comparison(NOT_EXACT if isinstance(exact, Exception) else COMPARED, _difference(call, ours, exact, theirs))


def _difference(
    call: Call, found: list[Tensor], exact: list[Tensor] | Exception, theirs: list[Tensor] | None
) -> str | None:
    """Return the difference from PyTorch's results and from those in double precision, if any."""
    known = [results for results in (theirs, exact) if isinstance(results, list)]
    for at, ours in enumerate(found):
        for results in known:
            if ours.shape != results[at].shape or ours.device != results[at].device:
                return f"result {at}: {ours.shape} on {ours.device} instead of {results[at].shape}"
        if theirs is not None and ours.dtype != theirs[at].dtype:
            return f"result {at}: {ours.dtype} instead of {theirs[at].dtype}"
        if isinstance(exact, Exception):
            continue
        true = exact[at]
        theirs_at = true if theirs is None else theirs[at].double()
        # If PyTorch gives NaN in one precision and a number in the other, both are right.
        target = torch.where(true.isnan(), theirs_at, true)
        dtype = AUTOCAST if "autocast" in call.mode and ours.dtype != torch.float64 else ours.dtype
        # The output, three gradients, and three second gradients.
        tolerance = TOLERANCES[dtype] * (1 if at == 0 else 4 if at <= 3 else 16)
        allowed = tolerance * (1 + target.nan_to_num().abs().amax() if target.numel() else 1)
        # PyTorch's own error is allowed where it is larger, for example in gradients.
        allowed = torch.maximum(allowed + torch.zeros_like(target), 2 * (theirs_at - target).abs().nan_to_num())
        error = (ours.double() - target).abs()
        right = (error <= allowed) | (ours.isnan() & (true.isnan() | theirs_at.isnan()))
        if not bool(right.all()):
            return f"result {at}: off by {error[~right].nan_to_num(torch.inf).max().item():.3g}"
    return None


def laid_out(kind: str, batch: list[int], rows: int, width: int, dtype: torch.dtype, device: str) -> Tensor:
    """Draw a tensor `[*batch, rows, width]` in a layout."""

    def random_of(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float32, device=device).to(dtype)

    if kind == "heads last" and len(batch) >= 2:
        *outer, heads = batch
        return random_of(*outer, rows, heads, width).transpose(-2, -3)
    if kind == "packed" and len(batch) >= 2:
        *outer, heads = batch
        return random_of(*outer, rows, 3, heads, width).select(-3, 1).transpose(-2, -3)
    if kind == "sliced":
        return random_of(*batch, rows, width + 3)[..., 1 : width + 1]
    if kind == "expanded" and batch:
        return random_of(1, *batch[1:], rows, width).expand(*batch, rows, width)
    if kind == "columns":
        return random_of(*batch, width, rows).transpose(-1, -2)
    return random_of(*batch, rows, width)


def _mask(
    pick: random.Random, batch: list[int], rows: int, columns: int, dtype: torch.dtype, device: str
) -> Tensor:
    sizes = pick.choice([[rows, columns], [rows, columns], [1, columns], [rows, 1], [1] * len(batch) + [rows, columns]])
    if pick.random() < 0.3 and batch:
        sizes = [*(pick.choice([1, size]) for size in batch), rows, columns]
    scores = torch.randn(*sizes, device=device)
    kind = pick.choice(["bool", "bool", "additive", "infinite", "nan"])
    if kind == "bool":
        return scores > -0.7
    if kind == "infinite":
        scores = scores.masked_fill(scores < -0.7, -torch.inf)
    if kind == "nan" and pick.random() < 0.3:
        scores[..., 0, 0] = torch.nan
    return scores.to(dtype)
