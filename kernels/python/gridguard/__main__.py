"""Runs the command `gridguard`; `install-start` and `uninstall-start` decide if Python reads `GRIDGUARD_INSTALL`."""

import os
import site
import sys
from pathlib import Path

from gridguard._command import find_command
from gridguard._native import GridguardError

# Python runs this line at its start, in each program of the environment.
_LINE = 'import os; os.environ.get("GRIDGUARD_INSTALL", "0") in ("", "0") or __import__("gridguard._start")\n'


def change_start(*, installs: bool) -> str:
    """Let Python read `GRIDGUARD_INSTALL` at its start or, without `installs`, no more. Return the file."""
    folder = Path(__file__).parents[1]
    if str(folder) not in [*site.getsitepackages(), site.getusersitepackages()]:
        raise OSError(f"Python reads no file at its start in {folder}: install gridguard into an environment")
    file = folder / "gridguard-start.pth"
    if installs:
        file.write_text(_LINE)
    else:
        file.unlink(missing_ok=True)
    return str(file)


if __name__ == "__main__":
    try:
        if sys.argv[1:] in (["install-start"], ["uninstall-start"]):
            print(change_start(installs=sys.argv[1] == "install-start"))
        else:
            os.execv(find_command(), ["gridguard", *sys.argv[1:]])
    except (GridguardError, OSError) as error:
        sys.exit(f"gridguard: {error}")
