"""Tests of `install`, and of the programs in the documentation. Needs PyTorch."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from calls import PYTORCH
from stand_in import qkv

import gridguard.torch as ours
from gridguard import _install, _pytorch

attention = ours.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def uninstall():
    """Uninstall after a test that failed."""
    yield
    ours.uninstall()
    assert not _install._is_active


def is_served(counts, function=PYTORCH):
    """Tell whether our kernels serve a call of PyTorch's function."""
    before = counts().served
    function(*qkv(2, 5, 16, 64))
    return counts().served > before


def test_installing_serves_pytorchs_function_until_it_is_undone(on_cpu):
    functional = torch.nn.functional
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 16, 64)
    assert not is_served(on_cpu)
    with ours.installed():
        assert functional.scaled_dot_product_attention is PYTORCH
        assert is_served(on_cpu) and is_served(on_cpu, functional.scaled_dot_product_attention)
        with ours.installed():
            pass
        assert is_served(on_cpu), "the outer one holds"
        before = on_cpu().served
        layer(x, x, x, need_weights=False)
        assert on_cpu().served == before + 1
    assert not is_served(on_cpu)
    ours.install()
    ours.install()
    assert is_served(on_cpu)
    ours.uninstall()
    assert not is_served(on_cpu)
    ours.uninstall()
    assert not is_served(on_cpu)


def test_overlapping_contexts_hold_until_the_last_one_ends(on_cpu):
    first, second = ours.installed(), ours.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_served(on_cpu)
    ours.uninstall()
    assert is_served(on_cpu), "uninstall undoes install alone"
    second.__exit__(None, None, None)
    assert not is_served(on_cpu)
    ours.install()
    with ours.installed():
        pass
    assert is_served(on_cpu), "a context does not undo install"


def test_contexts_end_by_an_error_or_when_they_are_collected(on_cpu):
    with pytest.raises(KeyError), ours.installed():
        raise KeyError

    def generator():
        with ours.installed():
            yield is_served(on_cpu)

    forgotten = generator()
    assert next(forgotten)
    assert is_served(on_cpu)
    del forgotten
    assert not is_served(on_cpu)


def test_contexts_of_many_threads_are_undone(on_cpu):
    def enter():
        for _ in range(200):
            with ours.installed():
                assert _install._is_active

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(enter) for _ in range(8)]:
            done.result()
    assert not is_served(on_cpu)


def test_a_replacement_of_the_function_by_others_is_kept(on_cpu, monkeypatch):
    def other(*arguments, **options):
        return attention(*arguments, **options) + 1

    functional = torch.nn.functional
    monkeypatch.setattr(functional, "scaled_dot_product_attention", other)
    tensors = qkv(2, 5, 16, 64)
    with ours.installed():
        torch.testing.assert_close(functional.scaled_dot_product_attention(*tensors), _pytorch.unserved(*tensors) + 1)
    assert functional.scaled_dot_product_attention is other
    assert on_cpu().served == 1


def test_the_programs_of_the_documentation_run():
    text = (Path(__file__).parents[3] / "docs/pytorch.md").read_text()
    programs = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    programs = [program for program in programs if ">>>" not in program]
    assert len(programs) == 2
    program = "\n".join(programs)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [line.split() for line in ran.stdout.splitlines()[1:3]] == [["kernels", "0"], ["kernels,", "backward", "pass", "0"]]
    assert "PyTorch: device               1\n" in ran.stdout


def test_only_cuda_tensors_pass_our_kernel():
    program = """
import torch
import gridguard.torch as ours

def table():
    return set(torch._C._dispatch_dump_table("aten::scaled_dot_product_attention").splitlines())

before = table()
ours.install()
installed = table()
ours.uninstall()
print(sorted(line.partition(":")[0] for line in installed - before), table() == installed)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "['AutogradCUDA', 'CUDA'] True\n"
