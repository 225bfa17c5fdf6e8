"""A server on the host against hostile clients, for longer than tests run: `served.py host`."""

import argparse
import datetime
import json
import pathlib
import platform
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import served

# For the fairness run: how long a request waits for others, and how much work is accepted.
DEADLINE = 0.25
DRAIN = 3.0
# Starting and ending a process.
SLACK = 0.5
SHAPES = ["64x1x16x64", "8x2x24x32", "1x1x2x4", "128x1x4x32", "4x1x128x64"]
ATTACKS = ["hot-shape", "header", "quadratic", "leavers", "slow-readers", "idle", "cut", "too-short", "too-long", "endless"]


def start(folder, *options):
    return served.Server(folder, [], "host", options)


def attack(server, kind, duration, attackers=16):
    """Ordinary requests of a small shape beside an attack."""
    ordinary = ["--shape", "1x1x2x4", "--rate", 20, "--concurrency", 1000, "--timeout", "10m"]
    return server.load(duration, *ordinary, "--attack", kind, "--attackers", attackers)


def fairness(folder, requests):
    """Mixed shapes, most of them of one."""
    times = f"{DEADLINE}s"
    server = start(folder, "--batch-wait", times, "--queue-work", times, "--batch-bytes", "2MiB", "--peer-share", "100")
    shapes = [option for shape in SHAPES for option in ("--shape", shape)]
    load = server.load(1800, *shapes, "--concurrency", 64, requests=requests)
    server.end()
    load["batch_deadline_s"] = DEADLINE
    good = load["sent"] == requests and load["longest_wait_s"] <= 2 * DEADLINE
    return load, good and not load["failures"] and load["wrong"] == 0


def memory(folder, duration):
    """Each request has another mask, and is a full batch."""
    server = start(folder, "--batch-bytes", "1MiB")
    sampling = server.sample(duration)
    load = attack(server, "masks", duration)
    sampling.join()
    samples = [host for host, _ in server.samples]
    load["resident_mib"] = [round(one / 2**20) for one in samples[::10]]
    load["resident_growth"] = served.growth(samples)
    served_all = set(load["statuses"]) == {"200"} and not load["failures"]
    server.end()
    return load, served_all and load["resident_growth"] <= served.GROWTH


def body(sizes):
    """A safetensors body of zeros in f16."""
    elements = 2
    for size in sizes:
        elements *= size
    tensors = {}
    for number, name in enumerate("qkv"):
        offsets = [number * elements, (number + 1) * elements]
        tensors[name] = {"dtype": "F16", "shape": sizes, "data_offsets": offsets}
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(3 * elements)


def drains(folder, tries):
    """SIGTERM while a batch runs that takes longer than the bound, whose client waits or has left."""
    data = body([10000, 1024, 1])
    head = f"POST /v1/attention HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    took = []
    for number in range(tries):
        server = start(folder, "--drain", f"{DRAIN}s", "--max-work", "1h", "--queue-work", "3h")
        host, port = server.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)))
        client.sendall(head + data)
        while b"gridguard_server_accepted_total 1" not in urllib.request.urlopen(f"{server.admin}/metrics").read():
            time.sleep(0.01)
        time.sleep(0.1 * (number % 5))
        if number % 2:
            client.close()
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=120)
        took.append(round(time.monotonic() - begun, 3))
        client.close()
    within = sum(one <= DRAIN + SLACK for one in took)
    return {"bound_s": DRAIN, "took_s": took, "within": within}, within == tries


def attacks(folder):
    """Each attack for a few seconds with the default limits."""
    rows, good = [], True
    for kind in ATTACKS:
        server = start(folder, "--body-timeout", "2s")
        slowest, peak, over = [0.0], [0], threading.Event()

        def ask():
            while not over.wait(0.2):
                begun = time.monotonic()
                urllib.request.urlopen(f"{server.admin}/healthz").read()
                slowest.append(time.monotonic() - begun)
                peak.append(served.resident(server.process.pid))

        asking = threading.Thread(target=ask)
        asking.start()
        load = attack(server, kind, 5, 4 if kind in ("header", "quadratic", "slow-readers") else 16)
        over.set()
        asking.join()
        rows.append({
            "attack": load["attack"],
            "ordinary": load["statuses"],
            "latency_s": load["latency_s"],
            "longest_wait_s": load["longest_wait_s"],
            "health_slowest_s": round(max(slowest), 3),
            "resident_peak_mib": max(peak) >> 20,
        })
        good &= set(load["statuses"]) == {"200"} and not load["failures"]
        server.process.kill()
        server.process.wait()
    return rows, good


def main(arguments):
    parser = argparse.ArgumentParser(prog="served.py host")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--sustained", type=int, default=300)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--drains", type=int, default=20)
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True, cwd=pathlib.Path(__file__).parent)
    report = {"commit": commit.strip(), "date": datetime.date.today().isoformat(), "machine": platform.machine()}
    failed = []
    for name, run in [
        ("fairness", lambda: fairness(folder, options.requests)),
        ("attacks", lambda: attacks(folder)),
        ("drains", lambda: drains(folder, options.drains)),
        ("masks", lambda: memory(folder, options.sustained)),
    ]:
        report[name], good = run()
        print(f"{'good' if good else 'BAD '}  {name}", flush=True)
        if not good:
            failed.append(name)
        report["passed"] = not failed
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0
