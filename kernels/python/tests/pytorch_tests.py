"""Runs PyTorch's own tests of attention with and without `install()`, and compares the outcomes."""

# `fetch` downloads `test_transformers.py` of PyTorch 2.6 from Debian's source archive, because no wheel contains it.
# `run` fails if a test passes without `install()` and fails, dies or is missing with it.

from __future__ import annotations

import argparse
import collections
import hashlib
import importlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import unittest
import urllib.request
from pathlib import Path

ARCHIVE = "http://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
FILES = ("test_transformers.py", "test_cpp_extensions_open_device_registration.py")
BATCH = 20
SILENCE_SECONDS = 120
"""A test without an outcome after this time counts as hanging."""
BAD = ("failed", "died", "hangs")


def fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if all((folder / name).exists() for name in FILES):
        return
    with tempfile.NamedTemporaryFile() as archive:
        with urllib.request.urlopen(ARCHIVE, timeout=300) as response:
            content = response.read()
        digest = hashlib.sha256(content).hexdigest()
        if digest != SHA256:
            raise SystemExit(f"{ARCHIVE} has SHA-256 {digest}, not {SHA256}")
        archive.write(content)
        archive.flush()
        with tarfile.open(archive.name) as members:
            for member in members:
                path = Path(member.name)
                if path.parent.name == "test" and path.name in FILES and len(path.parts) == 3:
                    content = members.extractfile(member)
                    assert content is not None
                    (folder / path.name).write_bytes(content.read())
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise SystemExit(f"{ARCHIVE} has no {missing}")


class Outcome(unittest.TestResult):
    """The outcome of one test, and the last line of its error."""

    outcome = "passed"
    why = ""

    def addFailure(self, test, error):
        self.outcome = "failed"
        self.why = "".join(traceback.format_exception_only(*error[:2])).strip()

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)

    def addSkip(self, test, reason):
        self.outcome = "skipped"

    def addUnexpectedSuccess(self, test):
        self.outcome = "failed"
        self.why = "passes unexpectedly"


def child(folder: Path, installs: bool) -> None:
    """Write the names of all tests, then run the tests named on stdin and write their outcomes."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if installs:
        import gridguard.torch

        # The file imports PyTorch's function by name.
        gridguard.torch.install()
    sys.path.insert(0, str(folder))
    sys.argv = [FILES[0]]
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(Path(FILES[0]).stem))
    tests = {test.id(): test for group in suite for test in group}
    print(json.dumps(sorted(tests)), file=out)
    for line in sys.stdin:
        result = Outcome()
        tests[line.strip()].run(result)
        print(json.dumps([result.outcome, result.why]), file=out)


class Child:
    """A process that runs tests one after another."""

    def __init__(self, folder: Path, installs: bool) -> None:
        command = [sys.executable, __file__, "child", str(folder)] + ["--installs"] * installs
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        first = self.process.stdout.readline()
        if not first:
            raise SystemExit(f"{' '.join(command)} ended with status {self.process.wait()}")
        self.names = json.loads(first)

    def run(self, name: str) -> tuple[str, str]:
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            self.process.kill()

        timer = threading.Timer(SILENCE_SECONDS, give_up)
        timer.start()
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            outcome, why = json.loads(line)
            return outcome, why
        return ("hangs", "") if hung.is_set() else ("died", f"status {self.process.wait()}")

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def outcomes(folder: Path, installs: bool, names: list[str], workers: int, deadline: float) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test that began before the deadline."""
    batches: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for begin in range(0, len(names), BATCH):
        batches.put(names[begin : begin + BATCH])
    found: dict[str, tuple[str, str]] = {}

    def work() -> None:
        one = Child(folder, installs)
        while time.monotonic() < deadline:
            try:
                batch = batches.get_nowait()
            except queue.Empty:
                break
            for name in batch:
                found[name] = one.run(name) if name in one.names else ("missing", "")
                if one.process.poll() is not None:
                    one = Child(folder, installs)
        one.end()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def run(options: argparse.Namespace) -> int:
    first = Child(options.folder, False)
    first.end()
    wanted = [name for name in first.names if re.search(options.match, name)]
    # A fixed order that is a random sample if the time runs out.
    names = random.Random(0).sample(wanted, len(wanted))[: options.most]
    begun = time.monotonic()
    installed = outcomes(options.folder, True, names, options.workers, begun + 0.4 * options.seconds)
    passed = {name: outcome for name, outcome in installed.items() if options.quick and outcome[0] == "passed"}
    others = [name for name in installed if name not in passed]
    plain = passed | outcomes(options.folder, False, others, options.workers, begun + 0.85 * options.seconds)
    compared = {name: (plain[name], installed[name]) for name in plain}
    new = {
        name: {"plain": before[0], "installed": after[0], "why": after[1][:300]}
        for name, (before, after) in compared.items()
        if after[0] != before[0] and (after[0] in BAD or after[0] == "missing" or before[0] == "passed")
    }

    # Repeated one after another: some of PyTorch's tests depend on free memory.
    again = outcomes(options.folder, True, list(new), 1, begun + options.seconds) if new else {}
    lasting = {name: report for name, report in new.items() if again.get(name, installed[name])[0] != plain[name][0]}
    import torch

    report = {
        "what": "test_transformers.py of PyTorch 2.6 without and with gridguard.torch.install()",
        "commit": os.environ.get("GRIDGUARD_COMMIT"),
        "date": os.environ.get("GRIDGUARD_DATE"),
        "driver": os.environ.get("GRIDGUARD_DRIVER"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "pytorch": torch.__version__,
        "tests": len(first.names),
        "matched": len(wanted),
        "compared": len(compared),
        "plain": dict(collections.Counter(before[0] for before, _ in compared.values())),
        "installed": dict(collections.Counter(after[0] for _, after in compared.values())),
        "new_failures": lasting,
        "only_once": sorted(set(new) - set(lasting)),
        "failing_anyway": sorted(name for name, (before, _) in compared.items() if before[0] in BAD),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.results is not None:
        options.results.write_text(text + "\n")
    return 1 if lasting or not compared else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("fetch", "run", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--installs", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="write the comparison to this file")
    parser.add_argument("--match", default="", help="run only tests whose names match this regular expression")
    parser.add_argument("--most", type=int, help="run at most this number of tests, in a random order with a fixed seed")
    parser.add_argument("--workers", type=int, default=1, help="the number of processes")
    parser.add_argument("--quick", action="store_true", help="take a test that passes with install() to pass without it")
    parser.add_argument("--seconds", type=float, default=3600, help="the time limit of the whole run")
    options = parser.parse_args()
    if options.command == "fetch":
        fetch(options.folder)
        return 0
    if options.command == "child":
        child(options.folder, options.installs)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
