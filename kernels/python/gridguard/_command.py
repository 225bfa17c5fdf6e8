"""Finds the command `gridguard`, which the wheel brings."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from gridguard import _native


def find_command(command: str = "gridguard") -> str:
    """Return the path of the wheel's command, or else of one on PATH.

    Raises GridguardError if there is none.
    """
    own = None
    if command == "gridguard":
        # Where pip installs the command: beside this interpreter, for the user, or with `--target`.
        folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
        folders.append(str(Path(__file__).parents[1] / "bin"))
        own = shutil.which(command, path=os.pathsep.join(folders))
    found = own or shutil.which(command)
    if found is None:
        raise _native.GridguardError(
            f"no command {command} on PATH: install it in a checkout with `cargo install --path autotune/cli`"
        )
    return found
