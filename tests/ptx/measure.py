#!/usr/bin/env python3
"""Assembles PTX and its rewritten form, and compares the registers and spills of forms with their originals'."""

#     measure.py PTXAS GRIDGUARD FOLDER ARCHITECTURE... [--all-rewritten] [--no-more-spills] [--registers]
#
# Exits 1 if the rewrite breaks a file that assembled, or if a condition of the options does not hold.

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_MORE_REGISTERS = 8
# Each warp gets registers in units of 256 (all architectures from sm_75 on): 8 for each thread.
UNIT = 8


def assemble(ptxas, path, architecture):
    """Registers and spilled bytes of each entry; None and the message if it does not assemble."""
    command = [ptxas, "-v", "-arch", architecture, str(path), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None, (done.stderr.strip() or done.stdout.strip()).splitlines()[:1]
    usage, name, spilled = {}, None, 0
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '([^']+)'", line):
            name, spilled = found[1], None
        elif name and spilled is None and (found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            spilled = int(found[1]) + int(found[2])
        elif name and (found := re.search(r"Used (\d+) registers", line)):
            usage[name] = int(found[1]), spilled or 0
    return usage, []


class Rewritten:
    """A file, its report, and its rewritten text."""

    def __init__(self, gridguard, path, folder):
        self.path, self.rewritten = path, folder / path.name
        command = [gridguard, "ptx", path, "--output", self.rewritten, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{path}: {done.stderr}")
        self.entries = json.loads(done.stdout)["entries"]


def median(values):
    return values[len(values) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ptxas")
    parser.add_argument("gridguard")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("architectures", nargs="+")
    parser.add_argument("--all-rewritten", action="store_true", help="no entry may be refused")
    parser.add_argument("--no-more-spills", action="store_true", help="no form may spill more")
    parser.add_argument("--registers", action="store_true", help="the 95th percentile may not be more, the worst by 8")
    options = parser.parse_args()
    wrong, forms_made, entries, refused = [], 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = [Rewritten(options.gridguard, path, folder) for path in sorted(options.folder.glob("*.ptx"))]
        if not files:
            sys.exit(f"no PTX in {options.folder}")
        for file in files:
            entries += len(file.entries)
            forms_made += 2 * sum("forms" in entry for entry in file.entries)
            refused += [f"{file.path.name}: {entry['refusal']['message']}" for entry in file.entries if "refusal" in entry]
            # A file of the corpus says how many of its entries have forms.
            expected = re.search(r"^// rewritten: (\d+)", file.path.read_bytes().decode("latin1"), re.M)
            made = sum("forms" in entry for entry in file.entries)
            if expected and int(expected[1]) != made:
                wrong.append(f"{file.path.name}: {made} entries were rewritten, not {expected[1]}")
        print(f"{options.folder.name}: {len(files)} files, {entries} entries, {forms_made} forms, {len(refused)} refused")
        for refusal in refused:
            print(f"  {refusal}")
        if options.all_rewritten:
            wrong += refused
        print(f"{'':8} {'form':8} {'entries':>7} {'median':>6} {'95 %':>5} {'worst':>5} {'best':>5} {'more units':>10} {'more spills':>11}")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for architecture in options.architectures:
                run = lambda file: (assemble(options.ptxas, file.path, architecture), assemble(options.ptxas, file.rewritten, architecture))
                results = list(pool.map(run, files))
                for form in ("shifted", "folded"):
                    differences, spills, units = [], [], 0
                    for file, ((before, why_before), (after, why)) in zip(files, results):
                        if before is None or after is None:
                            if form == "shifted":
                                # What did not assemble before need not after, but the corpus must.
                                what = f"{'original' if before is None else 'rewritten'} {file.path.name}"
                                wrong.append(f"{what} does not assemble for {architecture}: {why_before or why}")
                            continue
                        for entry in file.entries:
                            if "forms" not in entry or entry["name"] not in before:
                                continue
                            (own, own_spill), (registers, spill) = before[entry["name"]], after[entry["forms"][form]]
                            differences.append((registers - own, entry["name"]))
                            units += -(-registers // UNIT) > -(-own // UNIT)
                            if spill > own_spill:
                                spills.append(f"{entry['forms'][form]} spills {spill} bytes, its original {own_spill} ({architecture})")
                    if not differences:
                        continue
                    differences.sort()
                    numbers = [number for number, _ in differences]
                    high = numbers[(len(numbers) - 1) * 95 // 100]
                    worst = differences[-1]
                    print(f"{architecture:8} {form:8} {len(numbers):7} {median(numbers):+6} {high:+5} {worst[0]:+5} {numbers[0]:+5} {units:10} {len(spills):11}  worst: {worst[1]}", flush=True)
                    for spill in spills:
                        print(f"  {spill}")
                    if options.no_more_spills:
                        wrong += spills
                    if options.registers and (high > 0 or worst[0] > MOST_MORE_REGISTERS):
                        wrong.append(f"{architecture} {form}: {high:+} registers at the 95th percentile, {worst[0]:+} for {worst[1]}")
    for one in wrong:
        print(f"wrong: {one}", file=sys.stderr)
    return 1 if wrong else 0


sys.exit(main())
