"""Compares attention and its gradients with PyTorch's over the shapes of models that train, on one GPU in one run."""

# python3 training.py --bench EXECUTABLE --output FOLDER [--quick]
# python3 training.py --self-test
#
# Runs our bench, then for each of its shapes PyTorch's attention and its backward pass, in slices where the batch is too
# large for its kernels. Writes training.json with all rows, and training.md.

import comparison
import measuring
from measuring import DTYPES, best, divided, percent, ratio, us

FORWARD, BACKWARD = "attention", "attention backward"
QUICK = "15360x5x16x64/"
# The most items of a slice, for PyTorch's kernels.
SLICE = 65_535
# Items at both ends that are compared with float64.
CHECKED = 8


def main():
    comparison.main(__doc__, measure, {"training.md": markdown}, self_test, quick="measures one shape with few samples")


def measure(args):
    notes = []
    rows = measuring.run_bench(args.bench, QUICK if args.quick else "", notes)
    torch, triton = measuring.imported("torch", notes), measuring.imported("triton", notes)
    if torch:
        cases = measuring.cases_of(row for row in rows if row["name"] == "ours")
        rows = rows + measuring.Peers(torch, args.quick).measure_cases(cases, measure_shape)
    return comparison.document(args, torch, triton, notes, rows, [])


def measure_shape(peers, group, shape, dtype):
    torch = peers.torch
    sizes, _, option = shape.partition("-")
    items, heads, length, head_dim = map(int, sizes.split("x"))
    options = {"device": "cuda", "dtype": getattr(torch, DTYPES[dtype])}
    q, k, v, grad = (torch.randn(items, heads, length, head_dim, **options) for _ in range(4))
    mask = torch.randn(items, 1, length, length, **options) if option == "masked" else None
    attend = torch.nn.functional.scaled_dot_product_attention

    def forward(q, k, v, mask):
        return attend(q, k, v, attn_mask=mask, is_causal=option == "causal")

    def backward(q, k, v, mask, grad):
        leaves = [one.detach().requires_grad_() for one in (q, k, v)]
        return torch.autograd.grad(forward(*leaves, mask), leaves, grad)

    inputs = [q, k, v, mask] + ([grad] if group == BACKWARD else [])
    run = backward if group == BACKWARD else forward
    slices = [tuple(None if one is None else one[at:at + SLICE] for one in inputs) for at in range(0, items, SLICE)]
    some = [None if one is None else torch.cat([one[:CHECKED], one[-CHECKED:]]).double() for one in inputs]
    exact = run(*some)

    def error(results):
        first, last = results[0], results[-1]
        if group == FORWARD:
            first, last, true = [first], [last], [exact]
        else:
            true = exact
        found = [torch.cat([a[:CHECKED], b[-CHECKED:]]).double() for a, b in zip(first, last)]
        off = sum((a - b).square().sum() for a, b in zip(found, true)) / sum(b.square().sum() for b in true)
        return float(f"{off.sqrt().item():.2e}")

    # A backward pass of PyTorch computes its forward pass first, as a training step does.
    moved = (7 if group == BACKWARD else 4) * q.numel() * q.element_size()
    name = "PyTorch" + (" in slices" if len(slices) > 1 else "") + (", forward and backward" if group == BACKWARD else "")
    peers.measure(group, shape, dtype, name, lambda: [run(*one) for one in slices], moved, error)


def summaries(document):
    """Report for each shape and type the figures of the forward pass, the backward pass, and of both."""
    rows = [row for row in document["rows"] if row["group"] in (FORWARD, BACKWARD)]
    for shape, dtype in dict.fromkeys((row["shape"], row["dtype"]) for row in rows):
        def time(group, chosen):
            row = best(row for row in rows if (row["group"], row["shape"], row["dtype"]) == (group, shape, dtype) and chosen(row))
            return row["us"] if row else None

        def ours(group):
            return time(group, lambda row: row["name"] == "ours")

        def limit(group):
            return time(group, lambda row: row["name"] == "limit")

        def pytorch(group):
            return time(group, lambda row: row["source"] == "peer")

        def both(figure):
            parts = [figure(FORWARD), figure(BACKWARD)]
            return None if None in parts else sum(parts)

        yield {
            "shape": shape, "dtype": dtype,
            "forward": (ours(FORWARD), divided(limit(FORWARD), ours(FORWARD)), divided(pytorch(FORWARD), ours(FORWARD))),
            "backward": (ours(BACKWARD), divided(limit(BACKWARD), ours(BACKWARD))),
            "training": (divided(both(limit), both(ours)), divided(pytorch(BACKWARD), both(ours))),
        }


def markdown(document):
    head = ["<shape", "<type", ">forward, us", ">of the limit", ">PyTorch / ours", ">backward, us", ">of the limit",
            ">training, of the limit", ">PyTorch / ours"]
    lines = [
        [one["shape"], one["dtype"], us(one["forward"][0]), percent(one["forward"][1]), ratio(one["forward"][2]),
         us(one["backward"][0]), percent(one["backward"][1]), percent(one["training"][0]), ratio(one["training"][1])]
        for one in summaries(document)
    ]
    text = ["# Attention and its gradients compared with PyTorch\n", measuring.described(document["machine"]) + ".\n",
            f"Shapes are items x heads x rows x head dimension. The limit is {measuring.LIMIT}. A backward pass reads q, k, "
            "v and the gradient of the output, and writes three gradients. Training is both passes.\n",
            measuring.table(head, lines), *measuring.appendix(document)]
    return "\n".join(text)


def self_test():
    def row(source, group, name, time, shape=QUICK[:-1]):
        return comparison.row(source, group, shape, "f16", name, time, 1, 2e-4)

    rows = [row("ours", FORWARD, "ours", 150), row("ours", FORWARD, "limit", 147), row("ours", BACKWARD, "ours", 270),
            row("ours", BACKWARD, "limit", 264), row("peer", FORWARD, "PyTorch", 1300),
            row("peer", BACKWARD, "PyTorch, forward and backward", 3700),
            row("ours", FORWARD, "ours", 340, "4096x6x144x32")]
    text = markdown(comparison.synthetic(rows, []))
    comparison.expect((f"| {QUICK[:-1]} | f16 | 150 | 98.0 % | 8.67 | 270 | 97.8 % | 97.9 % | 8.81 |",
                       "| 4096x6x144x32 | f16 | 340 | - | - | - | - | - | - |", "- a note"), text)
    markdown(dict(comparison.synthetic(rows, []), rows=[]))
    print("training.py: the table is correct")


if __name__ == "__main__":
    main()
