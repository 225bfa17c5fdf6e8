"""`python -m gridguard` runs the command `gridguard`."""

import os
import sys

from gridguard._command import find_command
from gridguard._native import GridguardError

if __name__ == "__main__":
    try:
        command = find_command()
        os.execv(command, ["gridguard", *sys.argv[1:]])
    except (GridguardError, OSError) as error:
        sys.exit(f"gridguard: {error}")
