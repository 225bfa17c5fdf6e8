"""Compares the other kernels with PyTorch's operators, on one GPU in one run."""

# python3 kernels.py --bench EXECUTABLE --output FOLDER [--quick]
# python3 kernels.py --self-test
#
# Runs our bench, then PyTorch's operator for each of its cases, then our bench again, to show drift. Each figure is the
# median over samples of launches back to back between two CUDA events. Inputs are larger than the caches. Writes
# kernels.json with all rows and kernels.md.

import comparison
import measuring
from measuring import DTYPES, best, divided, percent, ratio, us

EPSILON = 1e-6
LAYER_NORM_EPSILON = 1e-5
LIMIT = "limit"


def operators(torch):
    """Return the inputs of each operation, by the names of sizes in our bench, and PyTorch's operators on them."""
    # `new` makes a tensor of random elements of the case's type.
    functional = torch.nn.functional

    return {
        "rms_norm": (
            lambda new, rows, columns: (new(rows, columns), new(columns)),
            {"rms_norm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, EPSILON)},
        ),
        "layer_norm": (
            lambda new, rows, columns: (new(rows, columns), new(columns), new(columns)),
            {"layer_norm": lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias,
                                                                         LAYER_NORM_EPSILON)},
        ),
        "geglu": (
            lambda new, rows, columns: new(rows, 2 * columns).chunk(2, dim=-1),
            {"gelu, product": lambda x, gate: x * functional.gelu(gate)},
        ),
        "softmax": (
            lambda new, rows, columns: (new(rows, columns),),
            {"softmax": lambda x: torch.softmax(x, dim=-1)},
        ),
        "argsort": (
            lambda new, rows, columns: (new(rows, columns),),
            {"argsort, stable": lambda x: torch.argsort(x, dim=-1, stable=True)},
        ),
    }


def main():
    comparison.main(__doc__, measure, {"kernels.md": markdown}, self_test, quick="takes few samples, and runs our bench only once")


def measure(args):
    notes = []
    ours = measuring.run_bench(args.bench, "", notes)
    torch, triton = measuring.imported("torch", notes), measuring.imported("triton", notes)
    peers = measure_peers(torch, ours, args.quick) if torch else []
    again = [] if args.quick or not ours else measuring.run_bench(args.bench, "/ours", notes)
    return comparison.document(args, torch, triton, notes, ours + peers, again)


def measure_peers(torch, ours, quick):
    known = operators(torch)
    moved = {(row["group"], row["shape"], row["dtype"]): row["bytes"] for row in ours}

    def measure_one(peers, group, shape, dtype):
        if group not in known:
            return peers.skip(group, shape, dtype, "PyTorch", "no operator is listed for it")

        def new(*dims):
            return torch.randn(*dims, device="cuda", dtype=getattr(torch, DTYPES[dtype]))

        inputs_of, run_by = known[group]
        inputs = inputs_of(new, *map(int, shape.split("x")))
        for name, operator in run_by.items():
            run = lambda: operator(*inputs)
            peers.measure(group, shape, dtype, f"PyTorch {name}", run, moved[group, shape, dtype])

    return measuring.Peers(torch, quick).measure_cases(moved, measure_one)


def markdown(document):
    head = ["<operation", "<shape", "<type", ">limit, us (GB/s)", ">ours, us", ">GB/s", ">of the limit", "<PyTorch",
            ">us", ">PyTorch / ours"]
    rows = [row for row in document["rows"] if row["group"] != "copy"]
    lines, shares = [], []
    for case in measuring.cases_of(rows):
        here = [row for row in rows if (row["group"], row["shape"], row["dtype"]) == case]
        limit, ours = (best(row for row in here if (row["source"], row["name"]) == ("ours", name))
                       for name in (LIMIT, "ours"))
        pytorch = best(row for row in here if row["source"] == "peer")
        times = [row["us"] if row else None for row in (limit, ours, pytorch)]
        shares.append(divided(times[0], times[1]))
        lines.append([
            *case,
            f"{us(times[0])} ({limit['gb_s']:,.0f})" if limit else "-",
            us(times[1]), f"{ours['gb_s']:,.0f}" if ours else "-", percent(shares[-1]),
            pytorch["name"].removeprefix("PyTorch ") if pytorch else "-", us(times[2]),
            ratio(divided(times[2], times[1])),
        ])
    text = ["# Kernels compared with PyTorch's operators\n", measuring.described(document["machine"]) + ".\n",
            f"The limit is {measuring.LIMIT}. {measuring.beyond(shares)}Ratios above 1 say that ours is faster.\n",
            measuring.table(head, lines)]
    text += measuring.appendix(document)
    return "\n".join(text)


def recorded():
    """Return rows as in a run, with synthetic figures."""
    def row(source, group, shape, dtype, name, us, failed=None):
        return comparison.row(source, group, shape, dtype, name, us, 536_870_912, failed=failed)

    rows = [
        row("ours", "rms_norm", "32768x4096", "f16", "ours", 130.0),
        row("ours", "rms_norm", "32768x4096", "f16", "limit", 126.0),
        row("ours", "rms_norm", "131072x1024", "f16", "ours", 131.0),
        row("ours", "softmax", "65536x1024", "f16", "limit", 126.0),
        row("peer", "rms_norm", "32768x4096", "f16", "PyTorch rms_norm", 210.0),
        row("peer", "rms_norm", "131072x1024", "f16", "PyTorch rms_norm", None, "out of memory | of it"),
    ]
    return comparison.synthetic(rows, again=[row("ours", "rms_norm", "32768x4096", "f16", "ours", 131.3)])


def self_test():
    document = recorded()
    text = markdown(document)
    comparison.expect(("| rms_norm | 32768x4096 | f16 | 126 (4,261) | 130 | 4,130 | 96.9 % | rms_norm | 210 | 1.62 |",
                       "| rms_norm | 131072x1024 | f16 | - | 131 | 4,098 | - | - | - | - |",
                       "| rms_norm | 131072x1024 | f16 | PyTorch rms_norm | out of memory / of it |",
                       "| softmax | 65536x1024 | f16 | 126 (4,261) | - | - | - | - | - | - |",
                       "| rms_norm | 32768x4096 | f16 | 130 | 131 | +1.0 % |", "- a note"), text)
    assert "faster than the limit" not in text
    faster = markdown(dict(document, rows=[dict(row, us=125.0) if row["us"] == 130.0 else row for row in document["rows"]]))
    comparison.expect(("1 case is faster than the limit",), faster)
    markdown(dict(document, rows=[], again=[]))
    print("kernels.py: the table is correct")


if __name__ == "__main__":
    main()
