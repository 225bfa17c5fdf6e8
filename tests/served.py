#!/usr/bin/env python3
"""The inference server under load, on all GPUs of this machine or on the host."""

#     served.py FOLDER REPORT.json [--devices auto] [--channels 1280] [--dtype f32] [--sustained 300] [--overload 30]
#     served.py host FOLDER REPORT.json [--sustained 300] [--requests 10000] [--drains 20]
#
# FOLDER has gridguard-server and gridguard-load, and gpu_server for direct launches. A closed loop measures the server's
# highest rate. Then it is loaded with 80 % of this rate for a long time, then with twice the rate, and then gets SIGTERM
# under load. Fails if a reply is wrong or missing, if memory grows, or if the server is not bounded under overload.
# `host` runs `served_host.py`: attacks on a server on the host.

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ITEMS, FRAMES = 32, 16
# The share of the samples to skip: pools of the allocator and of connections fill at first.
SETTLED_AFTER = 0.3
GROWTH = 1.05


class Server:
    """A server that takes requests, and its memory over time."""

    def __init__(self, folder, block, devices, options=("--peer-share", "100")):
        """A load test is a single client, which by default may use all of the limits."""
        command = [folder / "gridguard-server", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command += ["--devices", devices, "--log", "error", *options, *block]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url, self.admin = (self.process.stdout.readline().split()[-1] for _ in range(2))
        self.samples = []
        self.load_command = [folder / "gridguard-load", self.url, "--format", "json", *block]
        for _ in range(1200):
            try:
                with urllib.request.urlopen(f"{self.admin}/readyz") as reply:
                    self.devices = [one["device"] for one in json.load(reply)["workers"]]
                    return
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise RuntimeError("the server did not become ready")

    def load(self, duration, *options, **limits):
        """What gridguard-load says."""
        return json.loads(self.start_load(duration, *options, **limits).communicate()[0])

    def start_load(self, duration, *options, requests=1000000000):
        options = [str(option) for option in options]
        limits = ["--requests", str(requests), "--duration", f"{duration}s"]
        return subprocess.Popen([*self.load_command, *limits, *options], stdout=subprocess.PIPE, text=True)

    def sample(self, seconds):
        """Memory each second, in a thread, for so long."""

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
    """The peak of the last part of the time over that of the part before it, after memory settled."""
    settled = samples[int(len(samples) * SETTLED_AFTER) :]
    half = len(settled) // 2
    return max(settled[half:]) / max(max(settled[:half]), 1)


def direct(folder, report):
    """Items that direct launches compute in a second, by channels and type."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([folder / "gpu_server", file.name], check=True, stdout=subprocess.DEVNULL)
        document = json.load(open(file.name))
    for name in ("device", "driver", "date", "commit"):
        report[name] = document[name]
    report["direct_launches"] = document["blocks"]
    return {(row["channels"], row["dtype"]): row["items_per_second"] for row in document["blocks"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--channels", type=int, default=1280)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--sustained", type=int, default=300)
    parser.add_argument("--overload", type=int, default=30)
    options = parser.parse_args()
    folder = options.folder.resolve()
    block = ["--channels", str(options.channels), "--dtype", options.dtype]
    shape = ["--resource", "block", "--shape", f"{ITEMS}x1x{FRAMES}x64"]
    report, failed = {}, []
    launches = direct(folder, report) if options.devices != "host" else {}

    def check(name, holds):
        print(f"{'good' if holds else 'BAD '}  {name}", flush=True)
        if not holds:
            failed.append(name)

    server = Server(folder, block, options.devices)
    report["workers"] = server.devices
    report["request"] = {"resource": "block", "items": ITEMS, "frames": FRAMES, "channels": options.channels, "dtype": options.dtype}
    server.load(5, *shape, "--concurrency", 64, "--verify-every", 0)
    # Nothing is verified: to compute a reply takes a core of this machine for seconds.
    closed = report["closed_loop"] = server.load(15, *shape, "--concurrency", 192, "--verify-every", 0)
    capacity = closed["served_per_second"]
    check(f"closed loop: {capacity:.0f} requests a second, p99 {closed['latency_s']['p99'] * 1e3:.0f} ms", is_good(closed))
    if (options.channels, options.dtype) in launches:
        ratio = capacity * ITEMS / launches[options.channels, options.dtype]
        report["of_direct_launches"] = ratio
        check(f"throughput is {ratio:.3f} of direct launches (goal 0.9)", ratio >= 0.9)

    sampling = server.sample(options.sustained)
    sustained = report["sustained"] = server.load(
        options.sustained, *shape, "--rate", 0.8 * capacity, "--concurrency", 1000, "--verify-every", 5000
    )
    sampling.join()
    host, device = zip(*server.samples)
    report["sustained_memory"] = {
        "resident_mib": [round(one / 2**20) for one in host[::10]],
        "device_mib": [round(one / 2**20) for one in device[::10]],
        "resident_growth": growth(host),
        "device_growth": growth(device),
    }
    latency = sustained["latency_s"]
    only_ok = set(sustained["statuses"]) == {"200"} and sustained["skipped"] == 0
    check(
        f"{options.sustained} s at 80 %: {sustained['served']} served, p50 {latency['p50'] * 1e3:.1f} ms, p99 {latency['p99'] * 1e3:.1f} ms",
        is_good(sustained) and only_ok,
    )
    check(f"memory of the server: {growth(host):.3f}, of the device: {growth(device):.3f}", max(growth(host), growth(device)) <= GROWTH)

    overload = report["overload"] = server.load(
        options.overload, *shape, "--rate", 2 * capacity, "--concurrency", 1000, "--verify-every", 5000
    )
    refused = overload["statuses"].get("429", 0)
    check(
        f"{options.overload} s at 200 %: {overload['served']} served, {refused} got 429, p99 {overload['latency_s']['p99'] * 1e3:.0f} ms",
        is_good(overload) and refused > 0 and set(overload["statuses"]) == {"200", "429"},
    )

    loading = server.start_load(10, *shape, "--rate", 0.8 * capacity, "--concurrency", 1000, "--verify-every", 5000)
    time.sleep(4)
    status = server.end()
    ending = report["sigterm_under_load"] = json.loads(loading.communicate()[0])
    ending["server_exit_status"] = status
    # The server ends with 0 if every request that it read has its reply. After that nobody listens, or a connection
    # ends while a client writes its next request.
    after_the_end = ("client error (Connect)", "client error (SendRequest)")
    lost = {reason: count for reason, count in ending["failures"].items() if not reason.startswith(after_the_end)}
    check(f"SIGTERM under load: {ending['served']} served, exit status {status}, lost {lost or 'none'}", status == 0 and not lost)

    report["others"] = []
    if options.devices != "host":
        server = Server(folder, ["--channels", "320", "--dtype", "f16"], options.devices)
        for resource, sizes in [("block", "128x1x16x64"), ("attention", "128x5x16x64")]:
            load = server.load(8, "--resource", resource, "--shape", sizes, "--concurrency", 128, "--verify-every", 1000)
            row = {"resource": resource, "shape": sizes, "dtype": "f16", **load}
            if resource == "block":
                row["of_direct_launches"] = load["served_per_second"] * 128 / launches[320, "f16"]
            report["others"].append(row)
            check(f"{resource} {sizes} f16: {load['served_per_second']:.0f} requests a second", is_good(load))
        check("exit status", server.end() == 0)
    report["passed"] = not failed
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


def is_good(load):
    """Whether every request got a status, some were served, and none wrongly."""
    return not load["failures"] and load["wrong"] == 0 and load["served"] > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        import served_host

        sys.exit(served_host.main(sys.argv[2:]))
    sys.exit(main())
