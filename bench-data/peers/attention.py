"""Compares temporal attention with its peers, on one GPU in one run."""

# python3 attention.py --bench EXECUTABLE --output FOLDER [--dtype float16 ...] [--quick]
# python3 attention.py --self-test
#
# Runs our bench, then for each of its shapes PyTorch's SDPA with every backend, chunk and concatenate, a plain Triton
# kernel and a kernel that only copies the bytes. Then runs our bench again for a few shapes, to show drift. Each figure
# is the median over samples of launches back to back between two CUDA events. Inputs are larger than the caches. Writes
# attention.json with all rows, attention.md and attention.svg.

import tempfile
import xml.etree.ElementTree
from pathlib import Path

import comparison
import measuring
import picture
from measuring import DTYPES, best, divided, percent, ratio, us

MOTIVATING = "15360x5x16x64"
# The shapes of a quick check.
QUICK = [MOTIVATING, "9216x10x24x80"]
# The shapes measured again at the end, to show drift.
DRIFT = [MOTIVATING, "15360x5x32x64", "15360x5x128x64"]
WARPS = (1, 2, 4, 8)
# Items at both ends that are compared with float64.
CHECKED = 32
# The share of free memory that PyTorch's math backend may use.
MATH_SHARE = 0.5

LIMITS = ("limit", "three reads, one write (Triton)")


def main():
    def more_options(cli):
        cli.add_argument("--dtype", nargs="+", choices=DTYPES.values(), default=list(DTYPES.values()))

    comparison.main(__doc__, measure, {"attention.md": markdown, "attention.svg": svg}, self_test,
                    quick="measures two shapes with few samples", more_options=more_options)


def measure(args):
    dtypes = [ours for ours, theirs in DTYPES.items() if theirs in args.dtype]
    notes = []

    def our_bench(shapes, name=""):
        if shapes:
            picks = [f"attention/{shape}/{dtype}/{name}" for shape in shapes for dtype in dtypes]
        else:
            picks = [""] if len(dtypes) == len(DTYPES) else [f"/{dtype}/" for dtype in dtypes]
        return [row for pick in picks for row in measuring.run_bench(args.bench, pick, notes)]

    ours = our_bench(QUICK if args.quick else None)
    torch, triton = measuring.imported("torch", notes), measuring.imported("triton", notes)
    rows = list(ours)
    if torch:
        triton_kernels = measuring.imported("triton_kernels", notes) if triton else None
        measure_one = lambda peers, group, shape, dtype: measure_shape(torch, triton_kernels, peers, shape, dtype)
        rows += measuring.Peers(torch, args.quick).measure_cases(measuring.cases_of(ours), measure_one)
    measured = {row["shape"] for row in ours}
    shapes = [shape for shape in DRIFT if shape in measured]
    again = our_bench(shapes, "ours") if shapes else []
    return comparison.document(args, torch, triton, notes, rows, again)


def measure_shape(torch, triton_kernels, peers, shape, dtype):
    functional = torch.nn.functional
    items, heads, frames, head_dim = map(int, shape.split("x"))
    q, k, v = (torch.randn(items, heads, frames, head_dim, device="cuda", dtype=getattr(torch, DTYPES[dtype]))
               for _ in range(3))
    out = torch.empty_like(q)
    moved = 4 * q.numel() * q.element_size()
    some = torch.cat([torch.arange(min(CHECKED, items)), torch.arange(max(0, items - CHECKED), items)]).cuda()
    exact = functional.scaled_dot_product_attention(q[some].double(), k[some].double(), v[some].double())

    def error(result):
        return float(f"{((result[some].double() - exact).norm() / exact.norm()).item():.2e}")

    def peer(name, run, check=error):
        peers.measure("attention", shape, dtype, name, run, moved, check)

    if triton_kernels:
        peer(LIMITS[1], lambda: triton_kernels.run_three_reads_one_write(q, k, v, out), None)
        for precision in ("tf32", "ieee") if dtype == "f32" else ("ieee",):
            for warps in WARPS:
                # An element that is not written stays NaN.
                out.fill_(float("nan"))
                name = f"Triton, {warps} warp{'s' * (warps > 1)}" + (f", {precision}" if dtype == "f32" else "")
                peer(name, lambda: triton_kernels.run_attention(q, k, v, out, warps, precision))
    for name, backend in backends(torch).items():
        needed = 4 * items * heads * frames * (4 * head_dim + 3 * frames)
        if name == "PyTorch math" and needed > MATH_SHARE * torch.cuda.mem_get_info()[0]:
            peers.skip("attention", shape, dtype, name, f"needs some {needed / 1e9:.0f} GB")
            continue
        peer(name, lambda: backend(q, k, v))
    chunk = max(1, 65_535 // heads)
    peer("PyTorch chunk and concatenate", lambda: torch.cat([
        functional.scaled_dot_product_attention(q[at:at + chunk], k[at:at + chunk], v[at:at + chunk])
        for at in range(0, items, chunk)]))


def backends(torch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend = torch.nn.functional.scaled_dot_product_attention

    def by(backend):
        def run(q, k, v):
            with sdpa_kernel(backend):
                return attend(q, k, v)
        return run

    return {
        "PyTorch default": attend,
        "PyTorch flash": by(SDPBackend.FLASH_ATTENTION),
        "PyTorch efficient": by(SDPBackend.EFFICIENT_ATTENTION),
        "PyTorch cuDNN": by(SDPBackend.CUDNN_ATTENTION),
        "PyTorch math": by(SDPBackend.MATH),
    }


def summaries(document):
    """Report for each shape and type the limit, ours, the best peer, the best of Triton and of PyTorch."""
    rows = [row for row in document["rows"] if row["group"] == "attention"]
    for _, shape, dtype in measuring.cases_of(rows):
        here = [row for row in rows if (row["shape"], row["dtype"]) == (shape, dtype)]
        peers = [row for row in here if row["source"] == "peer" and row["name"] not in LIMITS]
        # Chunk and concatenate is the usual workaround if a backend rejects the whole, so it counts as PyTorch.
        series = {
            "ours": [row for row in here if row["name"] == "ours"],
            "triton": [row for row in peers if row["name"].startswith("Triton")],
            "pytorch": [row for row in peers if row["name"].startswith("PyTorch")],
        }
        yield {
            "shape": shape,
            "dtype": dtype,
            "limit": best(row for row in here if row["name"] in LIMITS),
            "peer": best(peers),
            "absent": {which: "none within tolerance" if rows else "not measured" for which, rows in series.items()},
            **{which: best(rows) for which, rows in series.items()},
        }


def time_of(row):
    return row["us"] if row else None


def markdown(document):
    head = ["<shape", "<type", ">limit, us (GB/s)", ">ours, us", ">of the limit", "<best peer", ">us", ">peer / ours",
            "<PyTorch's best", ">us", ">PyTorch / ours"]
    lines, shares = [], []
    for one in summaries(document):
        limit, ours, peer, pytorch = (one[which] for which in ("limit", "ours", "peer", "pytorch"))
        shares.append(divided(time_of(limit), time_of(ours)))
        lines.append([
            one["shape"], one["dtype"],
            f"{us(limit['us'])} ({limit['gb_s']:,.0f})" if limit else "-",
            us(time_of(ours)), percent(shares[-1]),
            peer["name"] if peer else "-", us(time_of(peer)), ratio(divided(time_of(peer), time_of(ours))),
            pytorch["name"].removeprefix("PyTorch ") if pytorch else "-", us(time_of(pytorch)),
            ratio(divided(time_of(pytorch), time_of(ours))),
        ])
    copy = copy_of(document)
    beside = f"; a plain device copy moves {copy:,.0f} GB/s" if copy else ""
    tolerances = ", ".join(f"{dtype} {error:g}" for dtype, error in measuring.TOLERANCES.items())
    text = ["# Temporal attention compared with its peers\n", measuring.described(document["machine"]) + ".\n",
            f"Shapes are items x heads x frames x head dimension. The limit is {measuring.LIMIT}; or Triton's kernel "
            f"that reads three tensors and writes one, where that is faster{beside}. {measuring.beyond(shares)}"
            f"Peers whose relative error against float64 is above tolerance ({tolerances}) are left out here: Triton's tf32 is one. Ratios above "
            "1 say that ours is faster.\n",
            measuring.table(head, lines)]
    text += setups(document)
    text += measuring.appendix(document)
    return "\n".join(text)


def setups(document):
    """Report other layouts and options of one shape, relative to the flat launch."""
    rows = {row["name"]: row for row in document["rows"]
            if (row["source"], row["shape"], row["dtype"]) == ("ours", MOTIVATING, "f16")}
    flat = rows.get("flat", {}).get("us")
    names = [name for name in ("flat", "split", "strided", "causal", "biased") if name in rows]
    if not names:
        return []
    text = ["## Other layouts and options\n", f"{MOTIVATING}, f16.\n", measuring.table(["<setup", ">us", ">to flat"], [
        [name, us(rows[name]["us"]), ratio(divided(rows[name]["us"], flat), 3)] for name in names])]
    paired = [row for row in document["rows"] if row["name"] == "split to flat" and row.get("ratio")]
    if paired:
        text += ["Launches on y, as many as it takes, against one flat launch, alternating.\n",
                 measuring.table(["<shape", ">split to flat", ">rounds"],
                                 [[row["shape"], f"{row['ratio']:.4f}", str(row["samples"])] for row in paired])]
    return text


def copy_of(document):
    return next((row["gb_s"] for row in document["rows"] if row["group"] == "copy" and row["gb_s"]), None)


def svg(document):
    sections = {}
    for one in summaries(document):
        items, heads, frames, head_dim = one["shape"].split("x")
        rates = [one[which]["gb_s"] if one[which] else one["absent"][which] for which in ("ours", "triton", "pytorch")]
        limit, ours = one["limit"], one["ours"]
        share = divided(time_of(limit), time_of(ours))
        sections.setdefault(one["dtype"], []).append({
            "label": f"{items} x {heads}, {frames} x {head_dim}",
            "values": rates,
            "mark": limit["gb_s"] if limit else None,
            "remark": f"{share * 100:.0f} %" if share else "",
        })
    return picture.bars(
        title="Temporal attention: bytes that must move, over time",
        subtitle=measuring.described(document["machine"]),
        unit="GB/s",
        series=["ours", "Triton, best of 1 to 8 warps", "PyTorch, best backend"],
        mark="limit: three reads, one write",
        remark="ours, of the limit",
        line=("device copy", copy_of(document)),
        sections=[(f"{dtype}: items x heads, frames x head dimension", rows) for dtype, rows in sections.items()],
    )


def recorded():
    """Return rows of a run on an NVIDIA H200, with synthetic figures for ours."""
    def row(source, shape, dtype, name, us, error=None, failed=None):
        moved = 4 * (2 if dtype != "f32" else 4)
        for size in shape.split("x"):
            moved *= int(size)
        return comparison.row(source, "attention", shape, dtype, name, us, moved, error, failed)

    rows = [comparison.row("peer", "copy", "2GiB", "u8", "device copy", 1008.7, 2 << 31)]
    figures = [
        (MOTIVATING, "f16", 157, 158, "efficient", 836), ("65536x8x16x64", "f16", 978, 975, "efficient", 6073),
        (MOTIVATING, "f32", 299, 300, "math", 1370),
    ]
    for shape, dtype, limit, triton, backend, pytorch in figures:
        tf32 = dtype == "f32"
        rows += [
            row("ours", shape, dtype, "ours", limit * 1.02, 2.4e-4 if not tf32 else 3e-7),
            row("ours", shape, dtype, "limit", limit * 1.01),
            row("peer", shape, dtype, LIMITS[1], limit),
            row("peer", shape, dtype, "Triton, 4 warps", triton * 1.3, 2.5e-4),
            row("peer", shape, dtype, "Triton, 1 warp" + (", tf32" if tf32 else ""), triton,
                1.3e-3 if tf32 else 2.5e-4),
            row("peer", shape, dtype, f"PyTorch {backend}", pytorch, 2.4e-4 if not tf32 else 3e-7),
            row("peer", shape, dtype, "PyTorch chunk and concatenate", pytorch * 1.5, 2.4e-4 if not tf32 else 3e-7),
        ]
        if shape.startswith("65536"):
            rows.append(row("peer", shape, dtype, "PyTorch flash", None, failed="CUDA error: invalid argument"))
    for name, time in [("flat", 160), ("split", 163), ("strided", 164), ("causal", 160), ("biased", 161)]:
        rows.append(row("ours", MOTIVATING, "f16", name, time))
    rows.append({"group": "attention", "source": "ours", "shape": MOTIVATING, "dtype": "f16", "name": "split to flat",
                 "ratio": 1.0187, "samples": 101})
    again = [row("ours", MOTIVATING, "f16", "ours", 160.5)]
    return comparison.synthetic(rows, again)


def self_test():
    document = recorded()
    text = markdown(document)
    line = next(line for line in text.splitlines() if line.startswith(f"| {MOTIVATING} | f16 |"))
    assert line == (f"| {MOTIVATING} | f16 | 157 (4,007) | 160 | 98.0 % | Triton, 1 warp | 158 | 0.99 | efficient | "
                    "836 | 5.22 |"), line
    # tf32 exceeds f32's tolerance, so another peer is the best.
    line = next(line for line in text.splitlines() if line.startswith(f"| {MOTIVATING} | f32 |"))
    assert "| math | 1,370 |" in line and "Triton" not in line, line
    comparison.expect(("| attention | 65536x8x16x64 | f16 | PyTorch flash | CUDA error: invalid argument |",
                       "| split | 163 | 1.019 |", f"| {MOTIVATING} | 1.0187 | 101 |",
                       f"| attention | {MOTIVATING} | f16 | 160 | 160 | +0.2 % |", "- a note"), text)
    drawn = svg(document)
    words = [node.text for node in xml.etree.ElementTree.fromstring(drawn).iter() if node.text and node.text.strip()]
    # Of f32, Triton's tf32 was measured, but it is not within tolerance.
    for part in ("device copy", "15360 x 5, 16 x 64", "98 %", "PyTorch, best backend", "none within tolerance"):
        assert any(part in word for word in words), f"{part!r} is missing in the picture"
    # Without measurements there is no ratio.
    empty = dict(document, rows=[], again=[])
    markdown(empty), svg(empty)
    failing = dict(document, rows=[row for row in document["rows"] if row["name"] == "PyTorch flash"])
    markdown(failing)
    assert [svg(failing).count(f">{why}<") for why in ("not measured", "none within tolerance")] == [2, 1]
    with tempfile.TemporaryDirectory() as place:
        notes = []
        stub = measuring.stub_bench(place, [{"group": "attention", "shape": "1x1x1x8", "dtype": "f16", "case": "ours",
                                             "us": 2.0, "bytes": 64, "gb_s": 0.1, "samples": 3, "error": 1e-4}])
        rows = measuring.run_bench(stub, "pick", notes)
        assert [row["name"] for row in rows] == ["ours"] and rows[0]["source"] == "ours", rows
        assert notes == ["a/b/f16/ours was skipped: no reason"], notes
        assert measuring.run_bench(Path(place) / "absent", "pick", notes) == [] and len(notes) == 2, notes
    print("attention.py: tables and picture are correct")


if __name__ == "__main__":
    main()
