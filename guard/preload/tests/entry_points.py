#!/usr/bin/env python3
"""Compares entry_points.ron with the bindings of a CUDA release, and fails with what the table lacks.

    entry_points.py cuda_bindings-*.whl            the table and a package
    entry_points.py --since OLD.whl NEW.whl        what of the kinds in the table NEW has and OLD lacks
"""

import pathlib
import re
import sys
import zipfile

TABLE = pathlib.Path(__file__).parent.parent / "entry_points.ron"
ENUMS = {
    "CUlaunchAttributeID_enum": ("CU_LAUNCH_ATTRIBUTE_", "."),
    "CUfunction_attribute_enum": ("CU_FUNC_ATTRIBUTE_", "."),
    # Those that may limit launches.
    "CUdevice_attribute_enum": (
        "CU_DEVICE_ATTRIBUTE_",
        r"LAUNCH|GRID_DIM|BLOCK_DIM|_PER_BLOCK|_PER_MULTIPROCESSOR",
    ),
}


def section(text, name):
    """The strings of a field of the table."""
    body = re.search(rf"^    {name}: \[(.*?)^    \]", text, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r'"(\w+)"', re.sub(r"//.*", "", body))


def relevant(wheel, starts):
    """Functions of the kinds that begin with `starts`, and attributes, as their declarations name them."""
    found = set()
    with zipfile.ZipFile(wheel) as package:
        declarations = [name for name in package.namelist() if re.search(r"(driver|runtime\w*)\.px[di]$", name)]
        for text in (package.read(name).decode() for name in declarations):
            names = re.findall(r"^cdef (?:CUresult|cudaError_t) _?((?:cu|cuda)[A-Z]\w*)\(", text, re.MULTILINE)
            found.update(name for name in names if name.startswith(starts))
            for enum, (prefix, wanted) in ENUMS.items():
                for body in re.findall(rf"enum {enum}:\n((?: {{8}}.*\n)+)", text):
                    names = re.findall(rf"^ +({prefix}\w+)", body, re.MULTILINE)
                    names = [name for name in names if re.search(wanted, name.removeprefix(prefix))]
                    found.update(name for name in names if not name.endswith("_MAX"))
    if not found:
        sys.exit(f"{wheel} declares no function that is known here: its form has changed")
    return found


def main(words):
    text = TABLE.read_text()
    starts = tuple(section(text, "launches") + section(text, "others"))
    if words[:1] == ["--since"]:
        known = relevant(words[1], starts)
        print("\n".join(sorted(relevant(words[2], starts) - known)))
        return
    known = {name for field in ("intercepted", "forwarded") for name in section(text, field)}
    fields = ("launch_attributes", "function_attributes", "device_attributes")
    for field, (prefix, _) in zip(fields, ENUMS.values()):
        known.update(prefix + name for name in section(text, field))
    for wheel in words:
        new = sorted(relevant(wheel, starts) - known)
        if new:
            sys.exit(f"{pathlib.Path(wheel).name} has what {TABLE.name} lacks: {', '.join(new)}")


main(sys.argv[1:] or sys.exit(__doc__))
