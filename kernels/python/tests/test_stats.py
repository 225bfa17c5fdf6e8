"""Tests of what `stats` shows. Needs PyTorch."""

from __future__ import annotations

import logging

import pytest
import torch
from stand_in import qkv

import gridguard.torch as ours
from gridguard import _native, _stats

attention = ours.scaled_dot_product_attention
LENGTH, WIDTH = _native.MAX_LENGTH, _native.MAX_HEAD_DIM


def test_calls_are_a_table(on_cpu):
    attention(*qkv(2, 5, 16, 64))
    for _ in range(2):
        attention(*qkv(2, 5, 16, 64), dropout_p=0.1)
    attention(*qkv(2, 5, LENGTH + 1, 64))
    rows = [line.split("  ") for line in str(ours.stats()).splitlines()]
    rows = [[cell.strip() for cell in row if cell] for row in rows]
    sizes = f"(2, 5, {LENGTH + 1}, 64), " * 3, f"(2, 5, {LENGTH}, 64), " * 3
    assert rows == [
        ["path", "calls", "first call, and the most that kernels take"],
        ["kernels", "1"],
        ["kernels, backward pass", "0"],
        ["copied for their strides", "0"],
        ["PyTorch: dropout", "2"],
        ["PyTorch: length", "1", "; ".join(size[:-2] for size in sizes)],
        ["copied for PyTorch", "0"],
    ]


def test_the_table_is_html_without_markup_of_others(on_cpu):
    _stats.count("<b>")
    text = ours.stats()._repr_html_()
    assert "<td>PyTorch: &lt;b&gt;</td><td>1</td><td></td>" in text
    assert text.startswith("<table><tr><th>path</th>") and text.count("<tr>") == text.count("</tr>") == 6


@pytest.mark.parametrize(
    ("reason", "tensors", "near"),
    [
        ("shape", qkv(2, 16, WIDTH + 8), "; " + ", ".join([f"(2, 16, {WIDTH})"] * 3)),
        (
            "shape",
            [*qkv(2, 16, 64)[:2], torch.randn(2, 16, WIDTH + 8)],
            f"; (2, 16, 64), (2, 16, 64), (2, 16, {WIDTH})",
        ),
        (
            "dtype",
            qkv(2, 16, 64, dtype=torch.float64),
            "float64; torch.float16 or torch.bfloat16 or torch.float32 for all",
        ),
        ("dtype", [*qkv(2, 16, 64)[:2], torch.randn(2, 16, 64).double()], "float64; torch.float32 for all"),
    ],
)
def test_the_nearest_call_is_named_once(on_cpu, caplog, reason, tensors, near):
    caplog.set_level(logging.INFO, "gridguard")
    for _ in range(2):
        try:
            attention(*tensors)
        except RuntimeError:
            assert reason == "dtype", "PyTorch refuses different types"
    assert ours.stats().nearest[reason].endswith(near)
    (message,) = caplog.messages
    assert message.startswith(f"left to PyTorch: {reason}: ") and near in message
