"""Tests of the package; those of `gridguard.torch` need PyTorch and are chosen by name where it is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
