#!/usr/bin/env python3
"""Tests the inference server under load, on all GPUs of this machine or on the host."""

# served.py FOLDER REPORT.json [--host] [--shape 128x5x16x64] [--sustained 120] [--overload 20]
#
# FOLDER has gridguard-server and gridguard-load. A closed loop measures the capacity of the server, for each type. Then
# come 80 % of it for long, twice the capacity, and SIGTERM under load. Fails if a reply is wrong or missing, if memory
# grows, or if the server is not bounded under overload.

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import suite

# The growth of memory that pools of the allocator and of connections may cause while the server runs.
SETTLED_AFTER = 0.3
GROWTH = 1.05


class Server:
    """A running server, with a record of its memory."""

    def __init__(self, folder, host):
        command = [folder / "gridguard-server", "--listen", "127.0.0.1:0", "--log", "error", *["--host"] * host]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = self.process.stdout.readline().split()[-1]
        self.samples = []
        self.load_command = [folder / "gridguard-load", url.removeprefix("http://")]
        with urllib.request.urlopen(f"{url}/ready") as reply:
            self.workers = json.load(reply)["workers"]

    def load(self, duration, *options):
        """Run gridguard-load, and return its report."""
        return json.loads(self.start_load(duration, *options).communicate()[0])

    def start_load(self, duration, *options):
        limits = ["--requests", str(10**9), "--duration", f"{duration}s"]
        command = [*self.load_command, *limits, *map(str, options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def sample(self, seconds):
        """Record the memory each second in a thread, for this time."""

        def run():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.samples.append((resident(self.process.pid), device_memory()))
                time.sleep(1)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def resident(process):
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def device_memory():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return sum(int(line) << 20 for line in subprocess.check_output(query, text=True).split())
    except FileNotFoundError:
        return 0


def growth(samples):
    """Return the growth of the peak from the second-last to the last part of the time."""
    settled = samples[int(len(samples) * SETTLED_AFTER) :]
    half = len(settled) // 2
    return max(settled[half:]) / max(max(settled[:half]), 1)


def is_good(load):
    """Tell whether every request got a status, and some were served, none wrongly."""
    return not load["failures"] and load["wrong"] == 0 and load["served"] > 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--shape", default="128x5x16x64")
    parser.add_argument("--sustained", type=int, default=120)
    parser.add_argument("--overload", type=int, default=20)
    options = parser.parse_args()
    shape = ["--shape", options.shape]
    failed = []

    def check(name, holds):
        print(f"{'good' if holds else 'BAD '}  {name}", flush=True)
        if not holds:
            failed.append(name)

    server = Server(options.folder.resolve(), options.host)
    report = {"workers": server.workers, "shape": options.shape}
    # The whole grid of this one is too large for y.
    split = server.load(5, "--shape", "15360x5x2x16", "--concurrency", 2, "--verify-every", 1)
    check(f"a launch beyond 65,535 blocks: {split['served']} served", is_good(split))
    for dtype in ("f32", "bf16", "f16"):
        load = server.load(10, *shape, "--dtype", dtype, "--concurrency", 64, "--verify-every", 100)
        report[f"closed_loop_{dtype}"] = load
        check(f"closed loop in {dtype}: {load['served_per_second']:.0f} requests a second", is_good(load))
    rate = report["closed_loop_f16"]["served_per_second"]

    sampling = server.sample(options.sustained)
    sustained = ["--rate", 0.8 * rate, "--concurrency", 100, "--verify-every", 1000]
    load = report["sustained"] = server.load(options.sustained, *shape, *sustained)
    sampling.join()
    host, device = zip(*server.samples)
    report["memory_growth"] = {"resident": growth(host), "device": growth(device)}
    latency = load["latency_s"]
    times = f"p50 {latency['p50'] * 1e3:.1f} ms, p99 {latency['p99'] * 1e3:.1f} ms"
    check(f"{options.sustained} s at 80 %: {load['served']} served, {times}", is_good(load) and set(load["statuses"]) == {"200"})
    check(f"memory of the server: {growth(host):.3f}, of the device: {growth(device):.3f}", max(growth(host), growth(device)) <= GROWTH)

    load = report["overload"] = server.load(options.overload, *shape, "--concurrency", 512, "--verify-every", 1000)
    refused = load["statuses"].get("503", 0)
    # A server that refuses a body may close the connection before its client has read the reply.
    check(f"overload: {load['served']} served, {refused} got 503", load["served"] > 0 and load["wrong"] == 0 and refused > 0)

    loading = server.start_load(10, *shape, *sustained)
    time.sleep(4)
    status = server.end()
    load = report["sigterm_under_load"] = json.loads(loading.communicate()[0])
    # Afterwards nobody listens, or a connection ends while a client writes its next request.
    lost = set(load["failures"]) - {"connection refused", "connection reset", "broken pipe", "unexpected end of file"}
    check(f"SIGTERM under load: {load['served']} served, exit status {status}, lost {lost or 'none'}", status == 0 and not lost)
    report["passed"] = not failed
    suite.write(options.report, report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
