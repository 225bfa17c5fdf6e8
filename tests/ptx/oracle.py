#!/usr/bin/env python3
"""Changes PTX at random, and checks the rewrite with ptxas: valid PTX must still assemble."""

#     oracle.py PTXAS GRIDGUARD SEEDS FINDINGS [--seconds N] [--seed N] [--architecture NAME]
#
# SEEDS is a folder with PTX: the seeds and the corpus of the fuzz target `ptx`, or a compiler's output. A large file is
# cut to one entry and the text before its first entry. Every file is first assembled unchanged. Texts
# whose rewrite does not assemble, or that `gridguard ptx` cannot read though ptxas can, are kept in FINDINGS.
# Exits 1 if there are any.

import argparse
import collections
import hashlib
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

LARGE = 64 << 10
READS = [
    "mov.u32 {b32}, %ctaid.{axis};", "mov.b32 {b32},%nctaid.{axis};", "mov.s32\t{b32} , %ctaid/* a */.{axis};",
    "cvt.u64.u32 {b64}, %nctaid.{axis};", "add.u32 {b32}, %ctaid.{axis}, %nctaid.{axis};",
    "mov.v4.u32 {{{b32}, _, _, _}}, %ctaid;", "mov.b64 {b64}, {{%ctaid.{axis}, %nctaid.{axis}}};",
    "@{pred} mov.u32 {b32}, %ctaid.{axis};", "{{ mov.u32 {b32}, %nctaid.{axis}; }}",
    "mad.lo.u32 {b32}, %ctaid.{axis}, %ntid.x, %tid.x;", "setp.lt.u32 {pred}, %ctaid.{axis}, 7;",
]


def shrunk(text, source):
    """A large file with one of its entries."""
    starts = [found.start() for found in re.finditer(rb"^\.(visible|weak)[ \t]+\.entry", text, re.M)]
    if len(text) <= LARGE or not starts:
        return text
    at = source.choice(starts)
    end = text.find(b"\n}", at)
    return text[:starts[0]] + text[at:end + 2] + b"\n"


def registers(lines, kind):
    """The names of some declared registers."""
    found = []
    for name, _, count in re.findall(rb"\.reg \." + kind + rb"\s+(%\w+)(<(\d+)>)?", b"\n".join(lines)):
        found.append(name + (b"1" if count and int(count) > 1 else b""))
    return found


def changed(text, source):
    """The text with a few changes. Most changes keep it valid."""
    lines = text.split(b"\n")
    for _ in range(source.choice((1, 1, 2, 3, 5))):
        at, other = source.randrange(len(lines)), source.randrange(len(lines))
        inside = [number for number, line in enumerate(lines) if re.match(rb"\s*(@!?%\w+ )?[a-z][\w.:]*\s.*;\s*$", line)]
        kind = source.randrange(13)
        if kind < 5 and inside:
            names = {one: source.choice(registers(lines, one.encode()) or [b"%none"]).decode() for one in ("b32", "b64", "pred")}
            read = source.choice(READS).format(axis=source.choice("xyz"), **names)
            lines.insert(source.choice(inside), read.encode())
        elif kind == 5:
            lines[at] = re.sub(rb"%n?tid\.", source.choice((b"%ctaid.", b"%nctaid.")), lines[at])
            for number in inside:
                if source.random() < 0.3:
                    lines[number] = re.sub(rb"%n?tid\.", source.choice((b"%ctaid.", b"%nctaid.")), lines[number])
        elif kind == 6:
            lines[at] += source.choice((b" // %ctaid.x }", b" /* { .entry */", b"\r", b"\t", b"\x0c", b" // \xff\xfe"))
        elif kind == 7 and inside:
            place = source.choice(inside)
            lines[place:place + 1] = [b"{", lines[place], b"}"]
        elif kind == 8 and inside:
            lines.insert(source.choice(inside), b"L__%d:" % source.randrange(1 << 30))
        elif kind == 9:
            lines.insert(at, lines[other])
        elif kind == 10:
            del lines[at:at + source.choice((1, 1, 2, 8))]
            lines = lines or [b""]
        elif kind == 11:
            words = re.findall(rb"[.%$]?\w+|\S", lines[other]) or [b""]
            parts = re.split(rb"([.%$]?\w+)", lines[at])
            parts[source.randrange(len(parts))] = source.choice(words)
            lines[at] = b"".join(parts)
        else:
            lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


class Judge:
    """Assembles and rewrites texts in a folder of its own."""

    def __init__(self, ptxas, gridguard, architecture, folder):
        self.ptxas, self.gridguard, self.architecture = ptxas, gridguard, architecture
        self.before, self.after, self.image = folder / "before.ptx", folder / "after.ptx", folder / "image"

    def assemble(self, path):
        # Without optimization: only the validity of the text is checked.
        command = [self.ptxas, "-O0", "-arch", self.architecture, path, "-o", self.image]
        done = subprocess.run(command, capture_output=True, timeout=120)
        return None if done.returncode == 0 else (done.stderr or done.stdout).decode("latin1").strip()

    def verdict(self, text):
        """`invalid`, `right`, or the error."""
        self.before.write_bytes(text)
        if self.assemble(self.before) is not None:
            return "invalid"
        self.after.unlink(missing_ok=True)
        command = [self.gridguard, "ptx", self.before, "--output", self.after]
        done = subprocess.run(command, capture_output=True, timeout=120)
        if done.returncode not in (0, 1) or not self.after.exists():
            return f"unreadable: {done.stderr.decode('latin1').strip().splitlines()[:1]}"
        why = self.assemble(self.after)
        return "right" if why is None else f"does not assemble: {why.splitlines()[:1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptxas")
    parser.add_argument("gridguard")
    parser.add_argument("seeds", type=pathlib.Path)
    parser.add_argument("findings", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--architecture", default="sm_90")
    options = parser.parse_args()
    seeds = [path.read_bytes() for path in sorted(options.seeds.rglob("*")) if path.is_file()]
    if not seeds:
        parser.error(f"no files in {options.seeds}")
    source, counts, begun = random.Random(options.seed), collections.Counter(), time.monotonic()
    options.findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(options.ptxas, options.gridguard, options.architecture, pathlib.Path(folder))
        valid = []
        unchanged = iter([shrunk(seed, source) for seed in seeds])
        while time.monotonic() - begun < options.seconds:
            text = next(unchanged, None)
            if is_seed := text is not None:
                pass
            elif valid:
                text = changed(source.choice(valid), source)
            else:
                sys.exit("none of the seeds assembles")
            verdict = judge.verdict(text)
            kind = verdict.split(":")[0]
            counts[kind] += 1
            if verdict == "right" and (is_seed or len(valid) < 4096):
                valid.append(text)
            elif verdict not in ("right", "invalid"):
                path = options.findings / f"{hashlib.sha256(text).hexdigest()[:16]}.ptx"
                path.write_bytes(text)
                print(f"{path}: {verdict}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())), f"in {time.monotonic() - begun:.0f} s")
    return 1 if counts.keys() - {"right", "invalid"} else 0


sys.exit(main())
