"""Tests of the package; those of `gridguard.torch` need PyTorch and are chosen by name where it is installed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def on_cpu(monkeypatch):
    """Serves tensors of the CPU, and gives the counts of a test."""
    from stand_in import serve_on_cpu

    return serve_on_cpu(monkeypatch)
