#!/usr/bin/env python3
"""Counts the entries of PTX that get forms, and assembles the forms of some: forms.py PTXAS GRIDGUARD FOLDER..."""

# Each folder has the PTX of one project. The entries whose forms are assembled are drawn with a fixed seed.
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

DRAWN_PER_PROJECT = 20
SECONDS_PER_FILE = 120

ptxas, gridguard, *folders = sys.argv[1:]
draw = random.Random(1)


def assemble(rewritten, target, forms):
    """Return whether ptxas takes these forms."""
    command = [ptxas, "-arch", target, "--entry", ",".join(forms), str(rewritten), "-o", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_FILE)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"{rewritten.name}: {done.stderr.strip()}", file=sys.stderr)
    return done.returncode == 0


def report(path, output):
    command = [gridguard, "ptx", str(path), "--output", str(output), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{path}: {done.stderr}")
    return json.loads(done.stdout)


def count(folder, scratch):
    """Return the numbers of a project's row, and its refusals. Files may share instances of templates."""
    files = sorted(folder.glob("*.ptx"))
    if not files:
        sys.exit(f"no PTX in {folder}")
    names, entries, refusals, with_forms = set(), 0, [], []
    for path in files:
        found = report(path, os.devnull)
        entries += len(found["entries"])
        for entry in found["entries"]:
            names.add(entry["name"])
            if "forms" in entry:
                with_forms.append((path, entry["name"]))
            else:
                refusals.append((path.name, entry["refusal"]))
    drawn = {}
    for path, name in draw.sample(with_forms, min(DRAWN_PER_PROJECT, len(with_forms))):
        drawn.setdefault(path, set()).add(name)
    results = {True: 0, False: 0, None: 0}
    for path, chosen in drawn.items():
        rewritten = scratch / path.name
        found = report(path, rewritten)
        forms = [entry["forms"] for entry in found["entries"] if entry["name"] in chosen]
        both = [form[kind] for form in forms for kind in ("shifted", "folded")]
        results[assemble(rewritten, found["target"].split(",")[0], both)] += len(chosen)
        rewritten.unlink()
    return (len(files), entries, len(names), len(with_forms), len(refusals), *results.values()), refusals


def main():
    total, everything = [0] * 8, []
    print(f"{'project':8}{'files':>7}{'entries':>9}{'names':>7}{'forms':>8}{'refused':>9}{'assembled':>11}{'failed':>8}{'no time':>9}")
    line = "{:8}{:7}{:9}{:7}{:8}{:9}{:11}{:8}{:9}"
    with tempfile.TemporaryDirectory() as scratch:
        for folder in map(pathlib.Path, folders):
            row, refusals = count(folder, pathlib.Path(scratch))
            print(line.format(folder.name, *row), flush=True)
            total = [old + new for old, new in zip(total, row)]
            everything += [(f"{folder.name}/{name}", refusal) for name, refusal in refusals]
    print(line.format("all", *total))
    for name, refusal in everything:
        print(f"\nrefused {name}: {refusal['reason']}\n        {refusal['message']}")
    return 1 if total[6] else 0


sys.exit(main())
