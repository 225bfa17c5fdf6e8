"""Tests of `gridguard.torch.compare_profiles` with processes of `torch.distributed`. Needs PyTorch, but no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, warnings
from torch import distributed
import gridguard, gridguard.torch as ours
rank = int(sys.argv[1])
os.environ["GRIDGUARD_PROFILES"] = sys.argv[2 + rank]
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[5]}", rank=rank, world_size=3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warned = ours.compare_profiles(action="warn")
texts = [str(one.message) for one in caught if "ranks" in str(one.message)]
try:
    assert ours.compare_profiles() == warned
    print("equal", len(warned))
except gridguard.GridguardError as error:
    assert texts == [str(error)]
    print(error)
# The end of a group of PyTorch 2.4 may wait for ranks that have left.
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("differs", [False, True])
def test_ranks_with_another_profile_are_named(tmp_path, differs):
    tuned = tmp_path / "tuned"
    tune = [sys.executable, "-c", "import gridguard, sys; print(gridguard._native.profile_digest(None))"]
    assert len(subprocess.check_output(tune, text=True).strip()) == 64
    if differs:
        program = tmp_path / "program.py"
        program.write_text(
            "import gridguard, numpy\n"
            "@gridguard.tune(A=[1, 2])\n"
            "def f(x, *, A):\n    return x\n"
            "if __name__ == '__main__':\n    f.tune(numpy.ones(3))\n"
        )
        subprocess.run([sys.executable, program], env=environment() | {"GRIDGUARD_PROFILES": str(tuned)}, check=True)
    folders = [tmp_path / "none", tuned, tmp_path / "none"]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), *map(str, folders), str(tmp_path / "store")],
            stdout=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        for rank in range(3)
    ]
    for rank in ranks:
        out, _ = rank.communicate(timeout=600)
        assert rank.returncode == 0
        if differs:
            assert out.startswith("1 of 3 ranks have other tuned choices: rank 1 (")
        else:
            assert out == "equal 64\n"


def environment():
    return {name: value for name, value in os.environ.items() if name != "GRIDGUARD_PROFILES"}
