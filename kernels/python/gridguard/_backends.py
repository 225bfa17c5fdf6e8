"""Our attention as a backend that users choose by name, in the registries of other packages."""

from __future__ import annotations

import enum
import importlib
from typing import Any

import torch
from torch import Tensor

from gridguard import _attention, _launch, _native

NAME = "gridguard"


def register_backend(package: str) -> None:
    """Register the attention backend `gridguard` in a package: `diffusers` or `tabpfn`.

    In diffusers, `model.set_attention_backend("gridguard")` then chooses it. TabPFN asks it for each call that the
    kernels serve. Both packages serve their other calls as before. A second call changes nothing.

    Raises ImportError if the package is not installed or its version has no such registry, and ValueError for other
    packages.
    """
    try:
        register = _PACKAGES[package]
    except (KeyError, TypeError):
        raise ValueError(f"package is {package!r}: pass one of {', '.join(map(repr, _PACKAGES))}") from None
    try:
        register()
    except (ImportError, AttributeError, TypeError) as error:
        try:
            version = importlib.import_module(package).__version__
        except (ImportError, AttributeError):
            raise ImportError(f"register_backend needs {package}: pip install {package}") from error
        message = (
            f"{package} {version} has no registry of attention backends that gridguard knows ({error}): "
            "call gridguard.torch.install() instead"
        )
        raise ImportError(message) from error


def _register_in_diffusers() -> None:
    dispatch = importlib.import_module("diffusers.models.attention_dispatch")
    names, registry = dispatch.AttentionBackendName, dispatch._AttentionBackendRegistry
    constraints = [dispatch._check_device, dispatch._check_shape]
    known = names._value2member_map_
    member = known.get(NAME)
    if member is None:
        _check_names(names)
        # The registry has no other names than the members of its enumeration, which Python does not extend.
        member = str.__new__(names, NAME)
        member._name_, member._value_ = NAME.upper(), NAME
    registry.register(member, constraints=constraints)(_diffusers_attention)
    if NAME not in known:
        names._member_names_.append(member._name_)
        names._member_map_[member._name_] = known[NAME] = member
        type.__setattr__(names, member._name_, member)


def _check_names(names: Any) -> None:
    if not (issubclass(names, str) and issubclass(names, enum.Enum)):
        raise TypeError("AttentionBackendName is no enumeration of texts")


def _diffusers_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> Tensor:
    """Compute attention over tensors [batch, length, heads, head_dim]."""
    if return_lse or _parallel_config is not None:
        option = "return_lse" if return_lse else "context parallelism"
        raise ValueError(f'the attention backend "{NAME}" does not support {option}: choose "native"')
    if attn_mask is not None and attn_mask.shape == (query.shape[0], key.shape[1]):
        # A mask of keys, as in the backend "native".
        attn_mask = attn_mask[:, None, None]
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    out = _attention.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out.transpose(1, 2)


class _TabPFN:
    """A backend for TabPFN's attention over features."""

    name = NAME

    def is_preferred(self, spec: Any) -> bool:
        lengths = (spec.seq_len_q, spec.seq_len_kv)
        return (
            spec.device.type == _launch.DEVICE_TYPE
            and torch.version.hip is None
            and spec.dtype in _launch.DTYPES
            and all(length is not None and length <= _native.MAX_LENGTH for length in lengths)
            and spec.head_dim <= _native.MAX_HEAD_DIM
        )

    def run(self, q_BSHD: Tensor, k_BSJD: Tensor, v_BSJD: Tensor, **others: Any) -> Tensor:  # noqa: N803
        query, key, value = (one.transpose(1, 2) for one in (q_BSHD, k_BSJD, v_BSJD))
        grouped = key.shape[1] != query.shape[1]
        return _attention.scaled_dot_product_attention(query, key, value, enable_gqa=grouped).transpose(1, 2)


_tabpfn = _TabPFN()


def _register_in_tabpfn() -> None:
    importlib.import_module("tabpfn.architectures.shared.attention_backends").register_attention_backend(_tabpfn)


_PACKAGES = {"diffusers": _register_in_diffusers, "tabpfn": _register_in_tabpfn}
