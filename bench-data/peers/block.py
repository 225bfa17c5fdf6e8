"""Compares the temporal transformer block with PyTorch's, eager and compiled, on one GPU in one run."""

# python3 block.py --bench EXECUTABLE --output FOLDER [--quick]
# python3 block.py --self-test
#
# Runs our bench, which writes block.json, then PyTorch's block of the same shapes. Each time is a median of CUDA events
# around a run. Memory is the peak without weights, input and output. Writes block-peers.json and block-peers.md.

import json
import subprocess

import comparison
import measuring
from measuring import divided, ratio

BUDGETS = (512 << 20, 256 << 20)


def main():
    comparison.main(__doc__, measure, {"block-peers.md": markdown}, self_test, quick="does not compile PyTorch's block")


def measure(args):
    notes, results = [], args.output / "block.json"
    subprocess.run([args.bench, results], check=True)
    ours = json.loads(results.read_text())["blocks"]
    is_fused = any(row["is_gate_fused"] for row in ours)
    rows = [{"source": "ours", "shape": row["case"], "way": f"{row['chunks']} chunks, {row['in_flight']} in flight",
             "ms": row["graph_ms"], "bytes": row["scratch_bytes"]} for row in ours if row["is_gate_fused"] == is_fused]
    torch, triton = measuring.imported("torch", notes), measuring.imported("triton", notes)
    if torch:
        with torch.inference_mode():
            for shape in dict.fromkeys(row["shape"] for row in rows):
                rows += measure_peers(torch, shape, args.quick, notes)
    return comparison.document(args, torch, triton, notes, rows, [])


def sizes(shape):
    """Return items, frames, channels and heads from the name of a shape in our bench."""
    dims, heads = shape.split(", ")
    return [int(size) for size in [*dims.split("x"), heads.split(" ")[0]]]


def measure_peers(torch, shape, quick, notes):
    items, frames, channels, heads = sizes(shape)
    torch.manual_seed(0)
    block = module(torch, channels, heads).half().cuda().eval()
    x = torch.randn(items, frames, channels, device="cuda", dtype=torch.float16)
    rows = []
    for way, run in (("eager", block), ("compile", None if quick else torch.compile(block))):
        if run is None:
            continue
        try:
            run(x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() + x.nbytes
            ms = median_ms(torch, lambda: run(x))
        except Exception as error:  # for example, memory that runs out
            measuring.note(notes, f"{shape}, {way}: {measuring.in_a_line(error)}")
            continue
        peak = torch.cuda.max_memory_allocated() - before
        rows.append({"source": "peer", "shape": shape, "way": way, "ms": ms, "bytes": peak})
    del block, x
    torch.cuda.empty_cache()
    return rows


def module(torch, channels, heads):
    """The block made of PyTorch's modules."""
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels, bias=False)
            self.out = nn.Linear(channels, channels)

        def forward(self, x):
            split = self.qkv(self.norm(x)).unflatten(-1, (3, heads, channels // heads))
            attended = functional.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4))
            return x + self.out(attended.transpose(1, 2).flatten(2))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(channels), nn.Linear(channels, 8 * channels)
            self.down = nn.Linear(4 * channels, channels)

        def forward(self, x):
            value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
            return x + self.down(value * functional.gelu(gate))

    return nn.Sequential(Attention(), Attention(), FeedForward())


def median_ms(torch, run, rounds=15, warm_up=3):
    times = []
    for _ in range(warm_up + rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return measuring.median(times[warm_up:])


def markdown(document):
    head = ["<items x frames x channels", "<what", ">ms", ">scratch, MB", ">ms / ours whole"]
    lines = []
    for shape in dict.fromkeys(row["shape"] for row in document["rows"]):
        here = [row for row in document["rows"] if row["shape"] == shape]
        ours = [row for row in here if row["source"] == "ours"]
        # The first plan has one chunk.
        whole = ours[0] if ours else None
        chosen = [(f"PyTorch, {row['way']}", row) for row in here if row["source"] == "peer"]
        chosen += [("ours, whole", whole)] if whole else []
        for budget in BUDGETS:
            within = [row for row in ours if row["bytes"] <= budget]
            if within:
                best = min(within, key=lambda row: row["ms"])
                chosen.append((f"ours in {budget >> 20} MiB: {best['way']}", best))
        for name, row in chosen:
            of_whole = divided(row["ms"], whole["ms"] if whole else None)
            lines.append([shape, name, f"{row['ms']:.2f}", f"{row['bytes'] / 1e6:,.0f}", ratio(of_whole)])
    text = ["# The temporal transformer block compared with PyTorch's\n", measuring.described(document["machine"]) + ".\n",
            "f16; ours as one CUDA graph, each plan checked against f64. The table shows the fastest plan of each "
            "budget.\n", measuring.table(head, lines)]
    return "\n".join(text + measuring.appendix(document))


def self_test():
    def row(source, way, ms, megabytes):
        return {"source": source, "shape": "60x16x320, 5 heads", "way": way, "ms": ms, "bytes": megabytes * 1_000_000}

    rows = [row("ours", "1 chunks, 1 in flight", 2.5, 800), row("ours", "4 chunks, 2 in flight", 2.6, 400),
            row("ours", "9 chunks, 1 in flight", 2.75, 90), row("peer", "eager", 7.5, 2600)]
    text = markdown(comparison.synthetic(rows, []))
    comparison.expect(("| 60x16x320, 5 heads | PyTorch, eager | 7.50 | 2,600 | 3.00 |",
                       "| 60x16x320, 5 heads | ours, whole | 2.50 | 800 | 1.00 |",
                       "| 60x16x320, 5 heads | ours in 512 MiB: 4 chunks, 2 in flight | 2.60 | 400 | 1.04 |",
                       "| 60x16x320, 5 heads | ours in 256 MiB: 9 chunks, 1 in flight | 2.75 | 90 | 1.10 |", "- a note"), text)
    assert sizes("15360x16x320, 5 heads") == [15360, 16, 320, 5]
    markdown(comparison.synthetic([], []))
    print("block.py: the table is correct")


if __name__ == "__main__":
    main()
