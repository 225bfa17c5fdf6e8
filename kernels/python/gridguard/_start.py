"""Installs the kernels when a program imports PyTorch, without a change to the program.

After `python -m gridguard install-start`, Python imports this module at its start if `GRIDGUARD_INSTALL` is set. PyTorch
is not imported here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# After each of these is imported, `install` serves more of the process.
_MODULES = {"torch", "xformers.ops", "mslk.attention.fmha"}
_log = logging.getLogger("gridguard")


class _Finder:
    """Finds no module itself. It makes the loader of each of these modules call `_install` at the end."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader = getattr(spec, "loader", None)
        if loader is not None:
            execute = loader.exec_module

            def execute_and_install(module: ModuleType) -> None:
                # The loader stays as Python made it.
                del loader.exec_module
                execute(module)
                _install(name)

            try:
                loader.exec_module = execute_and_install
            except AttributeError:
                _log.warning("GRIDGUARD_INSTALL: the loader of %s, a %s, cannot be hooked", name, type(loader).__name__)
        return spec


def _install(name: str) -> None:
    """Install. The program goes on if that fails."""
    if name != "torch" and "gridguard.torch" not in sys.modules:
        return
    try:
        import gridguard.torch

        gridguard.torch.install()
    except Exception as error:
        _log.warning("GRIDGUARD_INSTALL: gridguard is not installed in this process: %s", error)


def _start(value: str) -> None:
    if value != "1":
        _log.warning("GRIDGUARD_INSTALL is %r, so gridguard is not installed in this process: set it to 1", value)
    elif "torch" in sys.modules:
        _install("torch")
    else:
        sys.meta_path.insert(0, _Finder())


_start(os.environ.get("GRIDGUARD_INSTALL", ""))
