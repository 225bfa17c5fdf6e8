"""PyTorch instead of the kernels, where the native module calls `compute`, and of replicas on several devices."""

from __future__ import annotations

import contextlib
import ctypes
from typing import NamedTuple

import pytest
import torch
from calls import IS_OLD
from torch.nn.attention import SDPBackend, sdpa_kernel

import gridguard.torch as ours
from gridguard import _launch, _native, _operator, _stats
from gridguard._pytorch import unserved

# How this version of PyTorch is read: 2.10 is the first with C functions.
READER = "dlpack" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10) else "attributes"
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@pytest.fixture(autouse=True)
def right_masks():
    """Avoid PyTorch's wrong results for masks of one column, and its other strides, on the CPU before 2.5."""
    with sdpa_kernel(SDPBackend.MATH) if IS_OLD else contextlib.nullcontext():
        yield


class Refusing:
    gradients = False
    """Whether no gradients are computed."""


def compute(tensors, scale, is_causal, dtype):
    """Compute attention or its gradients like the kernels, on the memory at these addresses."""
    if Refusing.gradients and len(tensors) > 6:
        raise _native.UnavailableError

    def tensor(address, sizes, strides, is_mask=False):
        kind = torch.bool if is_mask else DTYPES[dtype]
        elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
        memory = (ctypes.c_char * (elements * kind.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=kind).as_strided(sizes, strides)

    if len(tensors) == 2:
        parts, out = (tensor(*one) for one in tensors)
        out.copy_(parts.sum(1))
        return
    query, key, value, *others = (tensor(*one) for one in tensors)
    options = {"is_causal": is_causal, "scale": scale}
    if len(others) <= 2:
        out, *bias = others
        with torch.no_grad():
            out.copy_(unserved(query, key, value, *bias, **options))
        return
    grad, *gradients = others[:4]
    bias, of_bias = (*others[4:], None, None)[:2]
    gradients += [] if of_bias is None else [of_bias]
    with _operator._differentiation("cpu"):
        leaves = [one.detach().requires_grad_() for one in (query, key, value)]
        if of_bias is not None:
            bias = bias.expand(of_bias.shape).clone().requires_grad_()
            leaves.append(bias)
        found = torch.autograd.grad(unserved(*leaves[:3], bias, **options), leaves, grad)
    for gradient, one in zip(gradients, found):
        gradient.copy_(one)


def residual_norm(x, added, out, cast, weight, epsilon, is_centered):
    """Compute the norm of a sum like the kernel."""
    total = x.double() + added
    if is_centered:
        total -= total.mean(-1, keepdim=True)
    out.copy_(total * (total.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight)
    cast.copy_(out)


def served_by(function, **options):
    """Attention whose kernels are `function`, on CPU tensors."""
    kernels = _native.Attention(torch, **{"compares": False, **options})
    _native.set_stand_in(kernels, function)
    return kernels


def serve_on_cpu(monkeypatch, **options):
    """Serve CPU tensors by `compute`, and return a function that returns the counts of a test."""
    kernels = served_by(compute, **options)
    monkeypatch.setattr(_launch, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(_launch, "SERVED_DEVICE", "is_cpu")
    monkeypatch.setattr(_launch, "kernels", kernels)
    monkeypatch.setattr(_launch, "residual_norm", residual_norm)
    monkeypatch.setattr(_stats, "_counts", {})

    def counts():
        stats = ours.stats()
        assert stats.reader == kernels.reader
        return Counts(stats.served, stats.pytorch, stats.copied, stats.backward)

    return counts


def leave_backward_to_pytorch(monkeypatch):
    """Make the kernels refuse all gradients."""
    monkeypatch.setattr(_operator, "_gradients", lambda *call: ([], "refused"))
    monkeypatch.setattr(Refusing, "gradients", True)


class Counts(NamedTuple):
    served: int
    pytorch: dict
    copied: int = 0
    backward: int = 0


def qkv(*sizes, dtype=torch.float32, requires_grad=False):
    return [torch.randn(*sizes, dtype=dtype).requires_grad_(requires_grad) for _ in range(3)]


def replicate(module):
    """Return a replica with weights of its own, as `DataParallel` makes it for each device."""
    replica = module._replicate_for_data_parallel()
    for key, child in module._modules.items():
        replica._modules[key] = child and replicate(child)
    for key, tensor in module._parameters.items():
        setattr(replica, key, None if tensor is None else tensor.clone())
    return replica
