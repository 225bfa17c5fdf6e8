"""Tests of the folder for ComfyUI. `COMFYUI=FOLDER` tests it with the attention of a checkout of ComfyUI, too."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from stand_in import qkv

import gridguard.torch as ours

NODE = Path(__file__).parents[1] / "comfyui/__init__.py"
LIMIT = 4
NAME = "comfy.ldm.modules.attention"
# The part of ComfyUI's module that matters: the name of the limit, and a function that cuts.
STAND_IN = """
import torch
SDP_BATCH_LIMIT = 2**15
def attention_pytorch(q, k, v, heads, mask=None):
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    parts = zip(*(one.split(SDP_BATCH_LIMIT) for one in (q, k, v)))
    out = [torch.nn.functional.scaled_dot_product_attention(*part) for part in parts]
    return torch.cat(out).transpose(1, 2).flatten(2)
"""


def sources():
    yield "stand-in", STAND_IN
    if "COMFYUI" in os.environ:
        yield "checkout", (Path(os.environ["COMFYUI"]) / "comfy/ldm/modules/attention.py").read_text()


class Surroundings(types.ModuleType):
    """A module of ComfyUI that the attention imports, but that these tests do not need."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name, return_value=False)


@pytest.fixture(params=[source for _, source in sources()], ids=[name for name, _ in sources()])
def attention(request, monkeypatch):
    names = ["comfy", "comfy.model_management", "comfy.cli_args", "comfy.ops", "comfy.ldm", "comfy.ldm.modules"]
    others = ("diffusionmodules", "diffusionmodules.util", "sub_quadratic_attention")
    names += [f"comfy.ldm.modules.{one}" for one in others]
    modules = {name: Surroundings(name) for name in names}
    modules["comfy.ops"].scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention
    module = modules[NAME] = types.ModuleType(NAME)
    for name, one in modules.items():
        monkeypatch.setitem(sys.modules, name, one)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, one)
    module.__package__ = "comfy.ldm.modules"
    exec(compile(request.param, NAME, "exec"), module.__dict__)
    module.SDP_BATCH_LIMIT = LIMIT
    yield module
    ours.uninstall()


def load_node():
    spec = importlib.util.spec_from_file_location("gridguard_of_comfyui", NODE)
    node = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(node)
    return node


def test_a_large_batch_is_one_call(attention, on_cpu):
    tensors = [one.flatten(2) for one in qkv(3 * LIMIT - 1, 6, 2, 8)]
    want = attention.attention_pytorch(*tensors, 2)
    assert load_node().NODE_CLASS_MAPPINGS == {}
    before = on_cpu().served
    torch.testing.assert_close(attention.attention_pytorch(*tensors, 2), want)
    assert on_cpu().served == before + 1


def test_a_call_that_the_kernels_do_not_serve_is_right(attention, on_cpu):
    tensors = [one.flatten(2) for one in qkv(2 * LIMIT, 600, 1, 8)]
    want = attention.attention_pytorch(*tensors, 1)
    load_node()
    torch.testing.assert_close(attention.attention_pytorch(*tensors, 1), want)
    assert "length" in on_cpu().pytorch


def test_another_version_is_told_in_words(attention, caplog):
    del attention.SDP_BATCH_LIMIT
    load_node()
    assert "this version of ComfyUI has no SDP_BATCH_LIMIT" in caplog.text
    assert not hasattr(attention, "SDP_BATCH_LIMIT")


def test_without_comfyui_nothing_is_installed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "comfy", None)
    load_node()
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("gridguard serves no attention: ")
