"""Fixtures of the package's tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def on_cpu(monkeypatch):
    """Serve CPU tensors, and return a function that returns the counts of a test."""
    from stand_in import serve_on_cpu

    return serve_on_cpu(monkeypatch)
