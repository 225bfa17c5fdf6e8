"""Adds the digests of the installed packages' modules to those that `replace_attention` knows: `python digests.py`.

Run test_replaced.py and test_tabpfn.py with these packages first: what passes is tested.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from models import TABPFN, without_init

from gridguard import _models

HEAD = '''"""The sources of other packages' modules that `replace_attention` was tested with: tests/digests.py writes them."""

DIGESTS: dict[str, dict[str, str]] = {
'''


def main() -> None:
    if importlib.util.find_spec("tabpfn"):
        without_init(*TABPFN)
    digests = {name: dict(known) for name, known in _models.DIGESTS.items()}
    for name in _models.COMPUTE:
        module, _, kind = name.rpartition(".")
        package = name.partition(".")[0]
        try:
            version = f"{package} {metadata.version(package)}"
            found = _models.digest(getattr(importlib.import_module(module), kind))
        except (ImportError, AttributeError) as error:
            print(f"{name}: {error}")
            continue
        known = digests.setdefault(name, {})
        print(f"{name}: {version}, {found}{'' if found in known else ', new'}")
        known.setdefault(found, version)
    rows = (f'    "{name}": {{\n{"".join(map(row, known.items()))}    }},\n' for name, known in sorted(digests.items()))
    path = Path(__file__).parents[1] / "gridguard" / "_digests.py"
    path.write_text(f"{HEAD}{''.join(rows)}}}\n")


def row(known: tuple[str, str]) -> str:
    return f'        "{known[0]}": "{known[1]}",\n'


if __name__ == "__main__":
    main()
