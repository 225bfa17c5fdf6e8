#!/usr/bin/env python3
"""Measures what `gridguard tune --idle` costs a server on the same GPU."""

# idle.py GRIDGUARD REPORT.json [--seconds 24] [--rounds 2]
#
# The server answers bursts of requests, one after another, with pauses between the bursts. It runs alone and beside the
# tuner, in turns. Fails if the 99th percentile of the times beside the tuner is above 1.05 of the one alone, or if the
# tuner took no sample.

import argparse
import json
import pathlib
import signal
import subprocess
import tempfile
import time

import suite
import torch

# A request is some 3 ms of large products, so that the device decides how long it takes. A burst has some 200, and the tuner a second to begin after it.
REQUEST_MS, BURST_S, PAUSE_S = 3.0, 0.8, 4.0
MOST_RATIO = 1.05


class Server:
    """Requests that a stream of products answers."""

    def __init__(self):
        self.matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        self.product = self.matrix.clone()
        self.count = 1
        self.request()
        self.count = 50
        self.count = max(1, int(50 * REQUEST_MS * 1e-3 / min(self.request() for _ in range(5))))

    def request(self):
        """Return the seconds that one request takes."""
        begin = time.perf_counter()
        for _ in range(self.count):
            torch.mm(self.matrix, self.matrix, out=self.product)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def serve(self, seconds):
        """Return the times of all requests, and of the first one of each burst, in milliseconds."""
        times, firsts, end = [], [], time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(PAUSE_S)
            burst_end, burst = time.monotonic() + BURST_S, []
            while time.monotonic() < burst_end:
                burst.append(self.request() * 1e3)
                time.sleep(0.001)
            times += burst
            firsts.append(burst[0])
        return times, firsts


def tuner(gridguard, folder):
    """Start a tuning of shapes whose launches are short."""
    shapes = [f"--shape={rows}x1024" for rows in range(20000, 40000, 1000)]
    command = [gridguard, "tune", "--idle", "--device", "0", "--kernel", "rms_norm", *shapes]
    command += ["--again", "--profile", folder / "tuned.ron", "--format", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def percentile(times, share):
    """Return the time that this share of the times does not exceed."""
    times = sorted(times)
    return times[min(len(times) - 1, int(share * len(times)))]


def described(times, firsts):
    """Return what a report says about the times."""
    return {
        "requests": len(times),
        "median_ms": round(percentile(times, 0.5), 3),
        "p99_ms": round(percentile(times, 0.99), 3),
        "longest_ms": round(max(times), 3),
        "longest_first_ms": round(max(firsts), 3),
    }


def main():
    """Measure, write the report, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gridguard")
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    server, problems, samples = Server(), 0, 0
    all_times = {"alone": ([], []), "beside": ([], [])}
    for _ in range(given.rounds):
        for name, (times, firsts) in all_times.items():
            with tempfile.TemporaryDirectory() as folder:
                beside = tuner(given.gridguard, pathlib.Path(folder)) if name == "beside" else None
                new_times, new_firsts = server.serve(given.seconds)
                times += new_times
                firsts += new_firsts
                if beside:
                    beside.send_signal(signal.SIGINT)
                    tuned = json.loads(beside.communicate(timeout=60)[0])["tuned"]
                    problems += len(tuned)
                    samples += sum(one.get("report", {}).get("evaluations", 0) for one in tuned)
    result = {name: described(*times) for name, times in all_times.items()}
    result["p99_ratio"] = round(result["beside"]["p99_ms"] / result["alone"]["p99_ms"], 3)
    result |= {"device": torch.cuda.get_device_name(), "problems": problems, "samples": samples}
    suite.write(given.report, result)
    assert samples > 0, "the tuner took no sample"
    assert result["p99_ratio"] <= MOST_RATIO, f"the server is slowed by {result['p99_ratio']}"


if __name__ == "__main__":
    main()
