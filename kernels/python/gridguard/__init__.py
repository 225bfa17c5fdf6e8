"""Checks CUDA launches against the limits of a GPU, and explains CUDA failures.

This module needs neither a GPU nor PyTorch. `gridguard.torch` needs PyTorch::

    >>> import gridguard
    >>> verdict = gridguard.check((1, 76_800, 1), (128, 1, 1), gpu="h200")
    >>> verdict.legality
    'rejected'
    >>> print(verdict.violations[0].message)
    grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 launches of 38400, or fold it into x
"""

import importlib
from typing import TYPE_CHECKING

try:
    from gridguard._native import GridguardError, UnavailableError, __version__
except ImportError as error:
    import platform

    if platform.libc_ver()[0] == "glibc":
        raise
    message = (
        "gridguard needs Linux with glibc 2.17 or later, but this Python uses another C library, for example musl in "
        "Alpine Linux: use an image with glibc, for example python:3.13-slim"
    )
    raise ImportError(message) from error
from gridguard._documents import (
    Batch,
    Cause,
    Consequence,
    DeviceLimits,
    Explanation,
    Failure,
    Launch,
    Line,
    Plan,
    Problem,
    Report,
    Verdict,
    Violation,
    check,
    doctor,
    explain,
    gpus,
    limits,
    plan,
)
from gridguard._tune import Tunable, TunedFunction, TuneError, tune
from gridguard._watching import Frame, RefusedLaunch, watching

__all__ = [
    "Batch",
    "Cause",
    "Consequence",
    "DeviceLimits",
    "Explanation",
    "Failure",
    "Frame",
    "GridguardError",
    "Launch",
    "Line",
    "Plan",
    "Problem",
    "RefusedLaunch",
    "Report",
    "Tunable",
    "TuneError",
    "TunedFunction",
    "UnavailableError",
    "Verdict",
    "Violation",
    "__version__",
    "check",
    "doctor",
    "explain",
    "gpus",
    "limits",
    "plan",
    "tune",
    "watching",
]

if not TYPE_CHECKING:  # a type checker would accept each name

    def __getattr__(name):
        """Import `gridguard.torch` at its first use: it needs PyTorch."""
        if name == "torch":
            return importlib.import_module(f"{__name__}.torch")
        raise AttributeError(f"gridguard has no {name!r}; the functions for PyTorch are in gridguard.torch")
