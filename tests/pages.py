#!/usr/bin/env python3
"""Checks the pages of `report --html` and `tune --html` in Chromium, at the widths of a phone and of a desktop.

tests/pages.py COMMAND [FOLDER]    the command `gridguard`, and a folder that keeps the pages and pictures of them

No page may scroll sideways, run a script, load anything, or write to the console, whatever kernels are named.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
HOSTILE = "\"><script>document.title='hostile'</script><img src=x onerror=\"document.title='hostile'\">'&lt;\u202e\x1b[2J"
LONG = "void at::native::vectorized_elementwise_kernel<4, " + "at::native::CUDAFunctor_add<float>, " * 12 + ">"
TEMPLATE = "_ZN2at6native" + "x" * 400
CHROMIUM = [
    "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr",
    "--allow-file-access-from-files", "--hide-scrollbars", "--virtual-time-budget=2000",
]
# Loads a page in a frame of a width, and writes what it measures there.
HARNESS = """<!DOCTYPE html><iframe id="frame" src="{page}" style="border:0; width:{width}px; height:{height}px"></iframe>
<pre id="found"></pre><script>
onload = () => {{
    const page = frame.contentDocument, root = page.documentElement;
    const boxes = name => [...page.querySelectorAll(name)].map(one => one.getBoundingClientRect());
    const widest = Math.max(...boxes("h1, h2, h3, p, dd, li, summary, figure").map(box => box.right));
    found.textContent = JSON.stringify({{
        width: root.scrollWidth, widest, title: page.title, text: root.innerText,
        scripts: page.scripts.length, images: page.images.length, links: page.links.length,
        meters: boxes("meter").filter(box => box.width > 20 && box.height > 5).length,
        charts: boxes("svg").filter(box => box.width > 200 && box.height > 40).length,
    }});
}};
</script>"""


def report():
    """A report with hostile and long names, many kernels, and refusals of all kinds."""
    kernel = {"launches": 9, "refused": 0, "fixed": 0, "max_threads_per_block": 128, "max_dynamic_shared_bytes": 0}
    names = [HOSTILE, LONG, TEMPLATE] + [f"kernel_{number}(float*)" for number in range(60)]
    kernels = [
        {**kernel, "name": name, "demangled": name, "max_grid": [8, 1 + place * 1000, 1], "fixed": place % 2,
         "refused": int(place < 3)}
        for place, name in enumerate(names)
    ]
    frames = [{"file": f"/home/a/{name}.py", "line": 42, "function": name} for name in names[:3]]
    refusals = [
        {"kernel": name, "code": 1, "error": name, "request": {"grid": [1, 70000, 1], "block": [128, 1, 1]},
         "violations": [name, "grid.y is 70000 blocks, the limit is 65535"], "not_fixed": name, "python": frames,
         "stack": names[:20]}
        for name in names[:3]
    ]
    held = {"bytes": 5, "allocations": 1, "peak_bytes": 1 << 33}
    refused = {
        "function": HOSTILE, "code": 2, "error": HOSTILE, "kind": "device", "requested_bytes": 1 << 40,
        "device_name": HOSTILE, "device": None, "held": held, "largest": [], "stack": names[:5],
    }
    memory = {
        "devices": [{"device": device, "held": held} for device in range(2)],
        "managed": held, "pinned": held, "untracked": held, "refused": 1, "retried": 0, "refusals": [refused],
    }
    return {
        "format": 1, "program": HOSTILE, "process": 7, "devices": [], "launches": 9, "refused": 3,
        "launches_after_refusal": 4, "unlisted_launches": 0, "unwatched_functions": 1, "kernels": kernels,
        "refusals": refusals, "memory": memory,
    }


def chromium(folder, *arguments):
    command = [*CHROMIUM, f"--user-data-dir={folder / 'profile'}", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    return ran.stdout


def check(folder, page, expected):
    for name, (width, height) in WIDTHS.items():
        harness = folder / f"{page.stem}-{name}.harness.html"
        harness.write_text(HARNESS.format(page=page.name, width=width, height=height))
        size = f"--window-size={width + 40},{height + 200}"
        dom = chromium(folder, size, "--dump-dom", harness.as_uri())
        found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL).group(1)))
        text = found.pop("text")
        print(f"{page.name}, {name}: {found}")
        assert found["width"] <= width and found["widest"] <= width, found
        assert (found["scripts"], found["images"], found["links"]) == (0, 0, 0), found
        assert (found["title"], found["meters"], found["charts"]) == expected[:3], found
        for part in expected[3]:
            assert part in text, (part, text)
        harness.unlink()
        picture = folder / f"{page.stem}-{name}.png"
        chromium(folder, f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri())
        assert picture.stat().st_size > 10_000, picture


def main(command, folder):
    command = str(Path(command).resolve())
    (folder / "report.json").write_text(json.dumps(report()))
    page = folder / "report.html"
    run = [command, "report", "report.json", "--html", page.name]
    assert subprocess.run(run, cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode == 1
    script = HOSTILE[:35]
    check(folder, page, ("Launches and memory", 3 * 63, 0, [script, "60001 of 65535", "not fixed", "kernel_59"]))
    page = folder / "tuning.html"
    tune = [
        command, "tune", "--device", "host", "--kernel", "rms_norm", "--shape", "64x64", "--profile", "p.ron",
        "--html", page.name,
    ]
    subprocess.run(tune, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    check(folder, page, ("Tuning", 0, 1, ["rms_norm", "tuned"]))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        kept = Path(sys.argv[2]).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        main(sys.argv[1], kept)
        shutil.rmtree(kept / "profile")
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(sys.argv[1], Path(temporary).resolve())
    print("2 passed, 0 failed")
