#!/usr/bin/env python3
"""Counts the verdicts of `gridguard ptx --index` over folders of PTX: index.py GRIDGUARD FOLDER...

Each folder is a project. Sizes are not given, so that an index wraps if any legal launch makes it wrap.
"""
import collections
import json
import pathlib
import subprocess
import sys

program, *folders = sys.argv[1:]
print(f"{'project':<10}{'lines':>9}{'entries':>9}{'grid':>7}{'safe':>7}{'wraps':>7}{'unknown':>9}  reasons")
for folder in map(pathlib.Path, folders):
    counts, reasons, lines = collections.Counter(), collections.Counter(), 0
    for path in sorted(folder.glob("*.ptx")):
        done = subprocess.run([program, "ptx", path, "--index", "--format", "json"], capture_output=True, text=True)
        if not done.stdout:
            sys.exit(f"{path}: {done.stderr}")
        lines += path.read_text().count("\n")
        for entry in json.loads(done.stdout)["entries"]:
            counts["entries"] += 1
            # Entries without block indices have nothing that a larger grid could make wrap.
            if entry["uses_grid"]:
                counts["grid"] += 1
                counts[entry["verdict"]] += 1
                reasons[entry.get("reason")] += entry["verdict"] == "unknown"
    numbers = "".join(f"{counts[key]:>{width}}" for key, width in
                      (("entries", 9), ("grid", 7), ("safe", 7), ("wraps", 7), ("unknown", 9)))
    named = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common() if count)
    print(f"{folder.name:<10}{lines:>9}{numbers}  {named}".rstrip())
