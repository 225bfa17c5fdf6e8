"""`gridguard.torch` in the place of other functions, and the programs of its documentation. Needs PyTorch."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import torch
from calls import PYTORCH
from stand_in import READER, qkv

import gridguard.torch as ours
from gridguard import _install

attention = ours.scaled_dot_product_attention


def test_installing_replaces_pytorchs_function_until_it_is_put_back(on_cpu):
    functional = torch.nn.functional
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 16, 64)
    with ours.installed():
        assert functional.scaled_dot_product_attention is attention
        with ours.installed():
            pass
        assert functional.scaled_dot_product_attention is attention, "the outer one holds"
        layer(x, x, x, need_weights=False)
    assert functional.scaled_dot_product_attention is PYTORCH
    assert on_cpu().served == 1
    ours.install()
    ours.install()
    ours.uninstall()
    ours.uninstall()
    assert functional.scaled_dot_product_attention is PYTORCH


def test_what_replaced_ours_is_left_there_and_may_call_ours(monkeypatch):
    def other(*arguments, **options):
        return attention(*arguments, **options)

    functional = torch.nn.functional
    ours.install()
    try:
        monkeypatch.setattr(functional, "scaled_dot_product_attention", other)
        ours.uninstall()
        assert functional.scaled_dot_product_attention is other
        tensors = qkv(2, 5, 16, 64)
        with ours.installed():
            torch.testing.assert_close(functional.scaled_dot_product_attention(*tensors), PYTORCH(*tensors))
        assert functional.scaled_dot_product_attention is other
    finally:
        monkeypatch.undo()
        monkeypatch.setattr(_install, "_replaced", PYTORCH)
        ours.uninstall()
    assert functional.scaled_dot_product_attention is PYTORCH


def test_xformers_is_served_where_it_is_imported(on_cpu, monkeypatch):
    def original(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
        heads_first = [t.transpose(1, 2) if t.dim() == 4 else t for t in (query, key, value)]
        out = PYTORCH(*heads_first, attn_bias, p, scale=scale)
        return out.transpose(1, 2) if query.dim() == 4 else out

    ops = types.ModuleType("xformers.ops")
    ops.memory_efficient_attention = original
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    monkeypatch.setattr(_install, "_xformers", None)
    with ours.installed():
        for sizes in ((2, 16, 5, 64), (10, 16, 64)):
            tensors = qkv(*sizes)
            found = ops.memory_efficient_attention(*tensors, scale=0.2)
            torch.testing.assert_close(found, original(*tensors, scale=0.2))
            assert found.is_contiguous()
        assert on_cpu().served == 2
        ops.memory_efficient_attention(*tensors, None, 0.1)
        ops.memory_efficient_attention(*tensors, op=object())
        assert on_cpu().served == 2
    assert ops.memory_efficient_attention is original


def test_the_programs_of_the_documentation_run():
    text = (Path(__file__).parents[3] / "docs/pytorch.md").read_text()
    programs = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    programs = [program for program in programs if ">>>" not in program]
    assert len(programs) == 2
    program = "\n".join(programs)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == f"Stats(served=0, copied=0, pytorch={{'device': 1}}, aligned=0, reader='{READER}')\n"
