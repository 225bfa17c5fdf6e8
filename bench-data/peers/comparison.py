"""The program of a comparison: its options, the document of all rows, and the files made from it."""

import argparse
import json
from pathlib import Path

import measuring

# The machine in the documents of self-tests.
SYNTHETIC_MACHINE = {"device": "NVIDIA H200", "driver": "580.159.04", "torch": "2.11.0+cu130", "triton": "3.6.0",
                   "date": "2026-11-20", "commit": "recorded"}


def main(description, measure, makers, self_test, quick, more_options=lambda cli: None):
    """Measure and write files, or run the self-test, as the command line says."""
    # `measure` makes the document from the options. `makers` make the other files from it. The first one is also printed,
    # and gives the document its name. `quick` is the help text of --quick.
    cli = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--bench", help="our bench executable")
    cli.add_argument("--output", type=Path, help="the folder of the results")
    cli.add_argument("--quick", action="store_true", help=quick)
    cli.add_argument("--self-test", action="store_true", help="makes all files from synthetic rows, without a GPU")
    more_options(cli)
    args = cli.parse_args()
    if args.self_test:
        return self_test()
    if not args.bench or not args.output:
        cli.error("--bench and --output are needed")
    measured = measure(args)
    first = next(iter(makers))
    # Rows are written first, so that they are kept if the rest fails.
    write(args.output, Path(first).with_suffix(".json").name, json.dumps(measured, indent=1) + "\n")
    for name, make in makers.items():
        write(args.output, name, make(measured))
    print(makers[first](measured))


def document(args, torch, triton, notes, rows, again):
    """Make the document: `rows` of ours and of peers, and some of ours measured `again` at the end."""
    return {"machine": measuring.machine(torch, triton), "quick": args.quick, "notes": notes, "rows": rows,
            "again": again}


def row(source, group, shape, dtype, name, us, moved, error=None, failed=None):
    """Make a row as of a run, for self-tests."""
    return {"group": group, "source": source, "shape": shape, "dtype": dtype, "name": name, "us": us, "bytes": moved,
            "gb_s": us and round(moved / us / 1e3, 1), "error": error, "failed": failed}


def synthetic(rows, again):
    """Write and read a document of given rows, for self-tests."""
    made = {"machine": SYNTHETIC_MACHINE, "quick": False, "notes": ["a note"], "rows": rows, "again": again}
    return json.loads(json.dumps(made))


def expect(parts, text):
    """Fail if `text` lacks one of the parts."""
    for part in parts:
        assert part in text, f"{part!r} is missing in\n{text}"


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    print("wrote", folder / name, flush=True)
