"""Runs our benches, times peers in the same way, describes the machine, and makes tables."""

# PyTorch is a parameter, so that tables and pictures can be made without it.

import datetime
import importlib
import json
import math
import os
import subprocess
import time
import sys
import tempfile
from pathlib import Path

# The names of types in rows, and in PyTorch.
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
# The largest relative error of a correct result, as for our own kernels.
TOLERANCES = {"f16": 1e-3, "bf16": 8e-3, "f32": 1e-5}

BENCH_SECONDS = 300
# In our bench's messages about cases without figures.
MESSAGES = ("skipped", "void", "no CUDA device")
# The approximate time of a sample of launches, so that the resolution of events does not matter.
SAMPLE_US = 4000
MOST_LAUNCHES = 50
SAMPLES, LEAST_SAMPLES = 21, 5
# The time limit of one peer on one shape.
CASE_US = 500_000
WARM_UP_S = 0.3


def run_bench(executable, pick, notes):
    """Return rows of our bench for the cases that contain `pick`. Add its messages about skipped cases to `notes`."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "bench.jsonl"
        environment = dict(os.environ, GRIDGUARD_BENCH_JSON=str(lines), CRITERION_HOME=str(Path(folder) / "criterion"))
        command = [str(Path(executable).resolve()), "--bench", *([pick] if pick else [])]
        print("running", *command, flush=True)
        try:
            ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 timeout=BENCH_SECONDS)
        except OSError as error:
            return note(notes, f"our bench did not run: {error}")
        except subprocess.TimeoutExpired:
            # The rows written so far are kept.
            note(notes, f"our bench was stopped after {BENCH_SECONDS} seconds")
        else:
            for line in ran.stderr.splitlines():
                if ran.returncode or any(part in line for part in MESSAGES):
                    note(notes, line)
            if ran.returncode:
                note(notes, f"our bench ended with {ran.returncode}")
        if not lines.exists():
            return note(notes, f"our bench wrote no figures for '{pick}'")
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
    return [dict(row, source="ours", name=row.pop("case")) for row in rows]


def note(notes, line):
    print(line, file=sys.stderr, flush=True)
    notes.append(line)
    return []


def median_us(torch, run, quick=False):
    """Return the median over samples of launches back to back between two events."""
    # One more launch precedes the first event, so that the device is busy while the others are submitted.
    def sample(launches):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        run()
        start.record()
        for _ in range(launches):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / launches

    # As long as our bench, so that clocks settle under load.
    begin = time.monotonic()
    run()
    while not quick and time.monotonic() - begin < WARM_UP_S:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
    estimate = sample(2)
    launches = max(1, min(MOST_LAUNCHES, int(SAMPLE_US / estimate)))
    samples = max(LEAST_SAMPLES, min(SAMPLES, int(CASE_US / (estimate * (launches + 1)))))
    samples = LEAST_SAMPLES if quick else samples
    return median([sample(launches) for _ in range(samples)]), samples, launches


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


class Peers:
    """Measure peers one after another. A failure is a row too."""

    def __init__(self, torch, quick):
        self.torch, self.quick, self.rows = torch, quick, []

    def measure(self, group, shape, dtype, name, run, moved, check=None):
        row = {"group": group, "shape": shape, "dtype": dtype, "source": "peer", "name": name, "us": None,
               "bytes": moved, "gb_s": None, "error": None, "failed": None}
        try:
            result = run()
            self.torch.cuda.synchronize()
            error = check(result) if check else None
            if error is not None and not math.isfinite(error):
                raise ValueError("the result is not finite")
            row["error"] = error
            del result
            us, samples, launches = median_us(self.torch, run, self.quick)
            row.update(us=round(us, 3), gb_s=round(moved / us / 1e3, 1), samples=samples, launches=launches)
        except Exception as error:  # of any kind: the other peers are still measured
            row["failed"] = in_a_line(error)
            self.torch.cuda.empty_cache()
        self.add(row)

    def skip(self, group, shape, dtype, name, why):
        self.add({"group": group, "shape": shape, "dtype": dtype, "source": "peer", "name": name, "us": None,
                  "bytes": None, "gb_s": None, "error": None, "failed": in_a_line(why)})

    def add(self, row):
        figures = f"{row['us']:.1f} us" if row["us"] else row["failed"]
        print(f"{row['group']} {row['shape']} {row['dtype']} {row['name']}: {figures}", flush=True)
        self.rows.append(row)

    def measure_cases(self, cases, measure):
        """Call `measure` with each operation, shape and type, after a copy on the device, and return all rows."""
        self.torch.manual_seed(0)
        self.device_copy()
        for case in cases:
            try:
                measure(self, *case)
            except Exception as error:  # for example, inputs that do not fit
                self.skip(*case, "inputs", error)
            # Our bench uses the same device.
            self.torch.cuda.empty_cache()
        return self.rows

    def device_copy(self):
        """Measure a copy of 2 GiB, read and written."""
        torch = self.torch
        bytes_ = 2 << 30
        source = torch.empty(bytes_, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        self.measure("copy", "2GiB", "u8", "device copy", lambda: target.copy_(source), 2 * bytes_)


def in_a_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def imported(name, notes):
    """Return the module, or None if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation counts as none
        note(notes, f"no {name}: {in_a_line(error)}")
        return None


def machine(torch=None, triton=None):
    """Return the machine and the versions of a run. The suite provides the commit."""
    def from_suite(name, otherwise):
        return os.environ.get(name) or otherwise()

    def driver():
        try:
            return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                  capture_output=True, text=True, check=True).stdout.split()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            return "unknown"

    return {
        "device": torch.cuda.get_device_name() if torch else "unknown",
        "driver": from_suite("GRIDGUARD_DRIVER", driver),
        "torch": torch.__version__ if torch else "unknown",
        "triton": triton.__version__ if triton else "unknown",
        "date": from_suite("GRIDGUARD_DATE", lambda: datetime.datetime.now(datetime.timezone.utc).date().isoformat()),
        "commit": from_suite("GRIDGUARD_COMMIT", lambda: "unknown"),
    }


def described(machine):
    """Describe the machine in one line."""
    return (f"{machine['device']}, driver {machine['driver']}, PyTorch {machine['torch']}, Triton {machine['triton']}, "
            f"{machine['date']}, commit {machine['commit']}")


def cases_of(rows):
    """Return the distinct combinations of operation, shape and type of the rows, in order."""
    return list(dict.fromkeys((row["group"], row["shape"], row["dtype"]) for row in rows))


def best(rows):
    """Return the fastest correct row, if any. Our bench times correct results only."""
    def is_correct(row):
        return row["source"] == "ours" or (row.get("error") or 0) <= TOLERANCES.get(row["dtype"], 0)

    measured = [row for row in rows if row.get("us") and is_correct(row)]
    return min(measured, key=lambda row: row["us"], default=None)


def us(value):
    """Format microseconds with at least three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


# Describes the rows named `limit` of our bench.
LIMIT = ("the fastest of 16 copy kernels: with and without streaming loads and stores, with four and eight loads of "
         "16 bytes in flight per thread, with one block per chunk and with resident blocks; or the driver's device "
         "copy if reads equal writes. Each reads and writes the minimal bytes of the case, computes nothing, and is "
         "launched back to back over the same memory, with the same L2 hits as our kernel. The .json has the name "
         "of the fastest kernel")


def beyond(shares):
    """Report the number of cases that are faster than their limit, which is then no limit."""
    count = sum(share > 1 for share in shares if share)
    cases = f"{count} case is" if count == 1 else f"{count} cases are"
    return f"{cases} faster than the limit: there the true limit is not known. " if count else ""


def percent(value):
    return "-" if value is None else f"{value * 100:.1f} %"


def divided(a, b):
    return a / b if a and b else None


def table(head, rows):
    """Make a Markdown table. Each title in `head` begins with '<' or '>', its alignment."""
    lines = [[name[1:] for name in head], ["---" if name[0] == "<" else "---:" for name in head], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def appendix(document):
    """Report drift, failures and notes, if there are any."""
    text = []
    if document["again"]:
        text += ["## Drift\n", drift_table(document["rows"], document["again"])]
    failed = [row for row in document["rows"] if row.get("failed")]
    if failed:
        text += ["## What did not run\n", table(["<operation", "<shape", "<type", "<peer", "<why"], [
            [row["group"], row["shape"], row["dtype"], row["name"], row["failed"].replace("|", "/")]
            for row in failed])]
    if document["notes"]:
        text += ["## Notes\n", "\n".join(f"- {note}" for note in document["notes"]) + "\n"]
    return text


def drift_table(first, again):
    """Compare our own figures at the start and at the end of the run."""
    earlier = {(row["group"], row["shape"], row["dtype"], row["name"]): row for row in first}
    rows = []
    for row in again:
        before = earlier.get((row["group"], row["shape"], row["dtype"], row["name"]), {}).get("us")
        change = divided(row.get("us"), before)
        rows.append([row["group"], row["shape"], row["dtype"], us(before), us(row.get("us")),
                     "-" if change is None else f"{(change - 1) * 100:+.1f} %"])
    return table(["<operation", "<shape", "<type", ">before the peers, us", ">after them, us", ">change"], rows)


def stub_bench(folder, rows):
    """Make a program with the output of our bench, for self-tests."""
    path = Path(folder) / "stub"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(f"#!{sys.executable}\nimport os, sys\nassert sys.argv[1:] == ['--bench', 'pick'], sys.argv\n"
                    "print('a/b/f16/ours was skipped: no reason', file=sys.stderr)\n"
                    f"open(os.environ['GRIDGUARD_BENCH_JSON'], 'a').write({lines!r})\n")
    path.chmod(0o755)
    return path
