"""Runs each subcommand that writes JSON, and compares its documents with the schemas in `autotune/cli/schemas`.

    schemas.py GRIDGUARD     the command, built with the feature `fleet`; needs jsonschema and openssl, but no GPU

A document that lacks a required field, or has one that its schema does not name, is an error; so is a schema that no
document is compared with, a subcommand without a schema, and a field of SKILL.md that no schema has.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "autotune/cli/schemas/1").glob("*.json"))}
# These write no document: a program's own output, and a script.
WITHOUT = {"run", "completions", "help"}
LAUNCH = "--grid 1,76800 --block 128"
BATCH = "--batch-axis y --items 15360 --blocks-per-item 5"
NORM = "--device host --policy hot-eager --kernel rms_norm --dtype f32 --budget 1m"
# A kernel whose 32-bit index wraps, and one that stays within 64 bits.
PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 out)
{
    .reg .b32 %r<5>; .reg .b64 %rd<4>; .reg .f32 %f<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.s32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;
    mov.f32 %f1, 0f00000000; st.global.f32 [%rd3], %f1;
    ret;
}
"""
MISSES = '(schema: 1, shapes: [(kernel: "rms_norm", dtypes: "f16", shape: [("rows", 300), ("columns", 64)], seen: 3)])\n'
HELD = {"bytes": 1, "allocations": 1, "peak_bytes": 1}
FRAME = {"file": "train.py", "line": 1, "function": "f"}
REQUEST = {"grid": [1, 76800, 1], "block": [128, 1, 1]}


def report(limits):
    """A report of `run` with each kind of row."""
    kernel = {"name": "k", "demangled": "k", "launches": 1, "refused": 1, "max_grid": [1, 1, 1]}
    refusal = {"kernel": "k", "code": 1, "error": "invalid", "request": REQUEST, "violations": ["x"], "python": [FRAME], "stack": ["a"]}
    memory = {"function": "cuMemAlloc", "code": 2, "error": "out of memory", "kind": "device", "requested_bytes": 1, "device_name": "GPU"}
    memory |= {"device": {"free_bytes": 1, "total_bytes": 2, "pool_unused_bytes": 0}, "held": HELD, "python": [FRAME], "stack": ["a"]}
    memory |= {"largest": [{"bytes": 1, "allocations": 1, "stack": ["a"]}]}
    return {
        "format": 1, "program": "python3", "process": 7, "watched": True, "devices": [limits], "launches": 2, "refused": 1,
        "launches_after_refusal": 0, "unlisted_launches": 0,
        "kernels": [kernel | {"max_threads_per_block": 1, "max_dynamic_shared_bytes": 0}], "refusals": [refusal],
        "indices": [{"kernel": "k", "request": REQUEST, "wraps": ["i wraps"]}],
        "index_coverage": {"kernels": 1, "launches": 1, "kernels_without_ptx": 0, "kernels_in_part": 0},
        "memory": {"devices": [{"device": 0, "held": HELD}], "managed": HELD, "pinned": HELD, "untracked": 0, "refused": 1, "retried": 0, "refusals": [memory]},
    }  # fmt: skip


def commands(url):
    """The arguments of each call, beside the schema of its documents and standard input."""
    yield from (("limits", words, "") for words in ("limits", "limits h200", "limits --compare a30 h200"))
    yield from (
        ("check", f"check {words}", text)
        for words, text in (
            (f"--gpu h200 {LAUNCH}", ""),
            (f"--gpu h200,a100 {LAUNCH} {BATCH}", ""),
            (f"--gpu h200 {LAUNCH} {BATCH} --max-items", ""),
            ("--gpu h200 --image a.ptx", ""),
            ("--gpu h200 --image a.ptx --grid 16777216 --block 256", ""),
            ("--gpu h200 --requests -", json.dumps(REQUEST) + "\nno request\n"),
        )
    )
    for text in ("RuntimeError: CUDA error: invalid configuration argument", "CUDA error: an illegal memory access was encountered\nRuntimeError: CUDA error: unspecified launch failure", "nothing here"):
        yield "explain", "explain -", text
    yield "explain", "explain grid-dim-y", ""
    yield "doctor", "doctor", ""
    yield "report", "report report.json", ""
    yield "bug-report", "bug-report --report report.json", ""
    yield "ptx", "ptx a.ptx --output b.ptx", ""
    yield "ptx", "ptx a.ptx --index", ""
    yield "tune", f"tune {NORM} --shape 300x8 --shape 70000x8 --profile t.ron", ""
    yield "tune", f"tune {NORM} --shape 300x8 --verify --profile t.ron", ""
    yield "profile-show", "profile show p.ron", ""
    yield "profile-explain", "profile explain rms_norm 32768x4096 --gpu h200 --profile p.ron", ""
    yield "profile-explain", "profile explain rms_norm 7x8 --gpu h200 --profile p.ron", ""
    yield "profile-merge", "profile merge p.ron p.ron --output r.ron", ""
    yield "profile-prune", "profile prune r.ron --defaults", ""
    yield "profile-release", f"profile push {url} p.ron --key key.pem", ""
    yield "profile-release", f"profile push {url} p.ron --key key.pem --percent 10", ""
    yield "profile-release", f"profile verify {url} --keys keys.pem", ""
    yield "profile-pull", f"profile pull {url} --keys keys.pem --folder pulled", ""
    yield "profile-list", f"profile list {url}", ""
    yield "profile-push-misses", f"profile push-misses {url} misses.ron", ""
    yield "profile-pull-misses", f"profile pull-misses {url} --file missed.ron", ""


def strict(schema):
    """The schema with no fields but those that it names."""
    if isinstance(schema, dict):
        closed = {"additionalProperties": False} if "properties" in schema and "additionalProperties" not in schema else {}
        return {name: strict(inner) for name, inner in schema.items()} | closed
    return [strict(inner) for inner in schema] if isinstance(schema, list) else schema


def has(schema, path, root):
    """Whether a schema has a field such as `failures[0].cause`, given as its names and `0`."""
    if "$ref" in schema:
        file, _, name = schema["$ref"].partition("#/$defs/")
        root = next(one for one in SCHEMAS.values() if one["$id"] == file) if file else root
        return has(root["$defs"][name] if name else root, path, root)
    if not path:
        return True
    inner = schema.get("items") if path[0] == "0" else schema.get("properties", {}).get(path[0])
    return any(has(one, path, root) for one in schema.get("anyOf", [])) or inner is not None and has(inner, path[1:], root)


def faults_of_skill():
    """Yield the fields that SKILL.md tells agents to read and no schema has."""
    command = None
    for line in (ROOT / "autotune/cli/SKILL.md").read_text().splitlines():
        row = re.fullmatch(r"\|.*`.*\bgridguard ([a-z-]+).*\| `([^`]+)` \|", line)
        command = next(filter(None, [row and row[1], *re.findall(r"^\*\*`([a-z-]+)`", line), command]), None)
        for field in [row[2]] if row else re.findall(r"`((?:\w|\[0\])+(?:\.\w+|\[0\])+)`", line):
            path = re.findall(r"\w+", field)
            if not has(SCHEMAS[command], path, SCHEMAS[command]):
                yield f"SKILL.md: {command} has no {field}"


def main():
    gridguard = pathlib.Path(sys.argv[1]).resolve()
    closed = {name: strict(schema) for name, schema in SCHEMAS.items()}
    registry = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in closed.values())
    validators = {name: Draft202012Validator(schema, registry=registry) for name, schema in closed.items()}
    compared, wrong = dict.fromkeys(SCHEMAS, 0), []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        limits = json.loads(subprocess.check_output([gridguard, "limits", "h200", "--format", "json"]))
        limits.pop("sources")
        profile = (ROOT / "bench-data/profiles/nvidia-h200.ron").read_text()
        for name, text in (("p.ron", profile), ("a.ptx", PTX), ("misses.ron", MISSES), ("report.json", json.dumps(report(limits)))):
            pathlib.Path(name).write_text(text)
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", "key.pem"], check=True)
        subprocess.run(["openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "keys.pem"], check=True)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "GRIDGUARD_PROFILES": "off"}
        for name, words, text in commands(f"file://{folder}/store:stable"):
            ran = subprocess.run([gridguard, *words.split(), "--format", "json"], input=text, env=environment, capture_output=True, text=True)
            if not ran.stdout:
                wrong.append(f"{words}: no document, exit code {ran.returncode}: {ran.stderr}")
            for line in ran.stdout.splitlines():
                compared[name] += 1
                wrong += [f"{words}: {error.json_path}: {error.message[:300]}" for error in validators[name].iter_errors(json.loads(line))]
    known = {name.split("-")[0] if name.startswith("profile-") else name for name in SCHEMAS}
    help_text = subprocess.check_output([gridguard, "--help"], text=True)
    named = {line.split()[0] for line in help_text.split("Commands:\n")[1].split("\n\n")[0].splitlines()}
    wrong += [f"the subcommand {name} has no schema" for name in named - known - WITHOUT]
    wrong += [f"no document was compared with {name}" for name, count in compared.items() if not count]
    wrong += faults_of_skill()
    print(*wrong, sep="\n")
    print(f"{sum(compared.values())} documents, {len(SCHEMAS)} schemas, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
