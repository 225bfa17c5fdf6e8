"""Checks models of other packages on a GPU, and times them. Models whose package is missing are named and left out."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import models
import torch
import torch.nn.functional as F
from gpu_support import parser_of, peak_of, run_checks
from torch import Tensor, nn

import gridguard.torch as ours
from gridguard import _launch
from gridguard._pytorch import unserved

figures: dict[str, Any] = {}
ROUNDS = 7


def main() -> int:
    options = parser_of(__doc__).parse_args()
    packages = ("diffusers", "torchvision", "timm", "tabpfn", "tabicl", "xformers", "mslk", "kernels")
    figures["missing"] = [one for one in packages if importlib.util.find_spec(one) is None]
    torch.backends.cudnn.allow_tf32 = False
    checks = (norm_sums, small_models, small_training, efficient, cosmos, tabpfn, mochi, animatediff, swin)
    return run_checks(checks, (), options, figures)


def norm_sums() -> None:
    """Compare the norm of a sum with f64, with more rows than a grid has blocks and with a NaN, and time it."""
    worst = 0.0
    torch.manual_seed(0)
    for rows, columns in ((1, 8), (3, 520), (1000, 2048), (1_100_000, 192)):
        for dtype, centered, apart in itertools.product((torch.float16, torch.bfloat16), (False, True), (False, True)):
            x, added = torch.randn(rows, columns, device="cuda"), torch.randn(rows, columns, device="cuda").to(dtype)
            weight = torch.randn(columns, device="cuda")
            x[rows // 2, columns // 2] = float("nan")
            parts = [slice(8), slice(-8, None)]
            sums = [x[part].double() + added[part].double() for part in parts]
            out, cast = torch.full_like(x, 7.0) if apart else x, torch.full_like(added, 7.0)
            reason = _launch.residual_norm(x, added, out, cast, weight, 1e-6, centered)
            assert reason is None, reason
            assert out.isnan().all(1).nonzero().flatten().tolist() == [rows // 2]
            for part, total in zip(parts, sums):
                total -= total.mean(-1, keepdim=True) if centered else 0.0
                want = F.rms_norm(total, (columns,), weight.double(), 1e-6)
                worst = max(worst, (out[part] - want).nan_to_num().abs().max().item())
            torch.testing.assert_close(cast, out.to(dtype), atol=0, rtol=0, equal_nan=True)
    assert worst < 2e-5, worst
    refused = {
        "alignment": (x.flatten()[1:193].view(1, -1), added[:1], x[:1], cast[:1], weight),
        "device": (x, added, out, cast, weight.cpu()),
        "dtype": (x, added, out, cast.half(), weight),
        "shape": (x, added, out, cast, weight[1:]),
    }
    for reason, tensors in refused.items():
        assert _launch.residual_norm(*tensors, 1e-6, False) == reason, reason
    assert _launch.residual_norm(x, x, out, x.clone(), weight, 1e-6, False) == "shape"
    time = milliseconds(lambda: _launch.residual_norm(x, added, out, cast, weight, 1e-6, False))
    figures["norm of sums"] = {"error": worst, "GB/s": 12 * x.numel() / time / 1e6}
    print(f"  norm of sums: {figures['norm of sums']}", flush=True)


def small_models() -> None:
    """Compare each small model with itself on PyTorch's kernels, in single precision and under autocast."""
    assert models.installed(), "no package of models.txt is installed"
    for name in models.installed():
        with torch.no_grad():
            model, call = models.make(name, device="cuda")
            want = call(model).cpu()
            with torch.autocast("cuda", torch.float16):
                half = call(model).float().cpu()
            # Swin V2 of torchvision may divide by zero in f16.
            half = want if half.isnan().any() else half
            row: dict[str, Any] = {"replaced": ours.replace_attention(model)}
            for autocast, tolerance in ((False, 1e-2), (True, 1e-1)):
                before = ours.stats().served
                with ours.installed(), torch.autocast("cuda", torch.float16, autocast):
                    found = call(model).float().cpu()
                row["served in f16" if autocast else "served in f32"] = ours.stats().served - before
                error = (found - (half if autocast else want)).abs().max().item() / want.std().item()
                row["error in f16" if autocast else "error in f32"] = error
                assert ours.stats().served > before and error < tolerance, f"{name}: {row}"
        figures[name] = row
        print(f"  {name}: {row}", flush=True)


def small_training() -> None:
    """Compare the gradients of each small model in single precision with PyTorch's."""
    for name in models.installed():
        model, call = models.make(name, device="cuda")
        want = models.gradients(model, call)
        ours.replace_attention(model)
        before = ours.stats()
        with ours.installed():
            found = models.gradients(model, call)
        scale = max(one.abs().max() for one in want.values())
        error = max((found[key] - one).abs().max() / scale for key, one in want.items()).item()
        row = {"error": error, "backward": ours.stats().backward - before.backward}
        figures[f"{name}, gradients"] = row
        print(f"  {name}: {row}", flush=True)
        assert found.keys() == want.keys() and error < 1e-2 and row["backward"] > 0, f"{name}: {row}"


def efficient() -> None:
    """Call xformers' and mslk's function with a batch that their kernels refuse."""
    for name in ("xformers.ops", "mslk.attention.fmha"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            figures[name] = str(error)
            continue
        for keys in (16, 600):
            tensors = [torch.randn(70_000, keys, 2, 32, device="cuda", dtype=torch.float16) for _ in range(3)]
            with ours.installed():
                out = module.memory_efficient_attention(*tensors)
            for part in (slice(8), slice(-8, None)):
                q, k, v = (one[part].transpose(1, 2).double() for one in tensors)
                assert (out[part].double() - unserved(q, k, v).transpose(1, 2)).abs().max() < 1e-2, f"{name}, {keys}"
            del tensors, out


def swin() -> None:
    """Time Swin-T of torchvision with 512 images of 224 x 224, and two others: inference and a training step in bf16."""
    makers: dict[str, tuple[int, Callable[[], nn.Module]]] = {}
    if "torchvision" not in figures["missing"]:
        import torchvision

        makers["Swin-T of torchvision"] = 512, torchvision.models.swin_t
        makers["Swin-V2-T of torchvision"] = 256, torchvision.models.swin_v2_t
    if "timm" not in figures["missing"]:
        import timm

        makers["Swin-T of timm"] = 512, lambda: timm.create_model("swin_tiny_patch4_window7_224")
    for name, (batch, maker) in makers.items():
        torch.manual_seed(0)
        model = maker().cuda()
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        # The first model is in the table of goals. The others take as long to compile.
        for compiled in (False, True) if batch == 512 and "torchvision" in name else (False,):
            for training in (False, True):
                model.train(training)
                case = f"{name}, batch {batch}, {'compiled' if compiled else 'eager'}, {KINDS[training]}"
                step = step_of(torch.compile(model) if compiled else model, model, (images,), training)
                compare(case, step, {"PyTorch": contextlib.nullcontext, "replaced": lambda: replaced(model)})


KINDS = {False: "inference", True: "training"}


def step_of(
    function: Callable[..., Any], model: nn.Module, inputs: tuple[Any, ...], training: bool, dtype: Any = torch.bfloat16
) -> Callable[[], Tensor]:
    """Return a function that calls a model under autocast, with a backward pass in training."""

    def step() -> Tensor:
        with torch.set_grad_enabled(training), torch.autocast("cuda", dtype):
            # Stochastic depth draws the same numbers each time.
            torch.manual_seed(1)
            out = models.flat(function(*inputs))
        if training:
            out.float().square().mean().backward()
            model.zero_grad()
        return out.detach()

    return step


def tabpfn() -> None:
    """Time TabPFN's architecture with 200,000 rows: its attention over features, and whole models with both steps."""
    if "tabpfn" in figures["missing"]:
        return
    models.make("tabpfn: v2.6")
    from tabpfn.architectures import tabpfn_v2_6
    from tabpfn.architectures.shared import scaled_dot_product_attention as shared

    ways = {"PyTorch": contextlib.nullcontext, "install": ours.installed, "backend": backend}
    rows = [torch.randn(200_000, 11, 6, 32, device="cuda", dtype=torch.float16) for _ in range(3)]
    attend = torch.no_grad()(lambda: shared.scaled_dot_product_attention(*rows))
    compare("TabPFN, attention of 200,000 rows over 11 features", attend, ways)
    for training, layers, known in ((False, 4, 1_000), (False, 4, 10_000), (True, 2, 1_000)):
        config, _ = tabpfn_v2_6.parse_config({"max_num_classes": 10, "num_buckets": 20, "nlayers": layers})
        model = tabpfn_v2_6.get_architecture(config)
        models.without_zeros(model)
        model = model.cuda().train(training)
        x, y = torch.randn(200_000, 1, 30, device="cuda"), torch.randint(0, 3, (known, 1), device="cuda").float()
        case = f"TabPFN, {layers} layers, 200,000 rows, {known} of them labelled, {KINDS[training]}"
        whole = {**ways, "replaced": lambda model=model: replaced(model)}
        compare(case, step_of(model, model, (x, y), training, torch.float16), whole, 3)


@contextlib.contextmanager
def backend() -> Iterator[None]:
    from tabpfn.architectures.shared import attention_backends

    ours.register_backend("tabpfn")
    try:
        yield
    finally:
        attention_backends.unregister_attention_backend("gridguard")


@contextlib.contextmanager
def replaced(model: nn.Module, replace: Any = None, restore: Any = None) -> Iterator[None]:
    """Replace the modules of a model, and install."""
    assert (replace or ours.replace_attention)(model) > 0
    try:
        with ours.installed():
            yield
    finally:
        (restore or ours.restore_attention)(model)


def mochi() -> None:
    """Time the VAE encoder of Mochi without us, with `install`, and replaced."""
    if "diffusers" in figures["missing"]:
        return
    from diffusers import AutoencoderKLMochi

    torch.manual_seed(0)
    model = AutoencoderKLMochi().to("cuda", torch.bfloat16).eval()
    ways = {"PyTorch": contextlib.nullcontext, "install": ours.installed, "replaced": lambda: replaced(model)}
    for frames in (31, 163):
        video = torch.randn(1, 3, frames, 480, 848, device="cuda", dtype=torch.bfloat16)
        encode = torch.no_grad()(lambda video=video: model.encode(video).latent_dist.mean)
        compare(f"Mochi, encoder, {frames} x 480 x 848", encode, ways, 3)


def cosmos() -> None:
    """Time the attention over frames of Cosmos' VAE, with 40,000 places and a head of 512."""
    if "diffusers" in figures["missing"]:
        return
    from diffusers.models.autoencoders import autoencoder_kl_cosmos as place

    torch.manual_seed(0)
    module = place.CosmosCausalAttention(1, 512, processor=place.CosmosTemporalAttentionProcessor2_0())
    module = module.to("cuda", torch.bfloat16).eval()
    x = torch.randn(1, 512, 16, 200, 200, device="cuda", dtype=torch.bfloat16)
    mask = torch.ones(16, 16, device="cuda").tril().bool()
    ways = {"PyTorch": contextlib.nullcontext, "install": ours.installed, "replaced": lambda: replaced(module)}
    compare("Cosmos, attention of 40,000 places over 16 frames", torch.no_grad()(lambda: module(x, mask)), ways)


def animatediff() -> None:
    """Time the UNet of AnimateDiff, as Stable Diffusion 1.5 has it."""
    if "diffusers" in figures["missing"]:
        return
    from diffusers import UNetMotionModel

    torch.manual_seed(0)
    heads = {"num_attention_heads": 8, "motion_num_attention_heads": 8}
    unet = UNetMotionModel(sample_size=64, motion_max_seq_length=32, cross_attention_dim=768, **heads)
    unet = unet.to("cuda", torch.float16).eval()
    ways = {
        "PyTorch": contextlib.nullcontext,
        "install": ours.installed,
        "replaced": lambda: replaced(unet, ours.replace_motion_modules, ours.restore_motion_modules),
    }
    for batch, compiled in ((2, False), (4, False), (2, True)):
        sample = torch.randn(batch, 4, 16, 64, 64, device="cuda", dtype=torch.float16)
        text = torch.randn(batch * 16, 77, 768, device="cuda", dtype=torch.float16)
        call = torch.compile(unet) if compiled else unet
        inputs = (sample, torch.tensor(10, device="cuda"), text)
        step = torch.no_grad()(lambda call=call, inputs=inputs: call(*inputs).sample)
        compare(f"AnimateDiff, UNet, {batch} x 16 frames, {'compiled' if compiled else 'eager'}", step, ways)


def compare(case: str, call: Callable[[], Tensor], ways: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> None:
    """Time a call in several ways, and compare each with PyTorch, the first way."""
    row: dict[str, Any] = {}
    figures[case] = row
    want = None
    for way, enter in ways.items():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        before = ours.stats()
        with enter():
            try:
                found = call().float()
                row[way] = milliseconds(call, rounds)
                gc.collect()
                row[f"{way}, GiB"] = round(peak_of(call)[1] / 2**30, 3)
            except RuntimeError as error:
                if way != "PyTorch":
                    raise
                row[way] = str(error).splitlines()[0]
                continue
        if want is None:
            want = found
        difference = row[f"{way}, difference"] = ((found - want).norm() / want.norm()).item()
        assert difference < 5e-2, f"{case}, {way}: the relative difference is {difference}"
        after = ours.stats()
        row[f"{way}, served"] = (after.served - before.served, after.backward - before.backward)
        row[f"{way}, left"] = {
            reason: calls - before.pytorch.get(reason, 0)
            for reason, calls in after.pytorch.items()
            if calls > before.pytorch.get(reason, 0)
        }
        if way != "PyTorch" and isinstance(row["PyTorch"], float):
            row[f"{way}, speed"] = round(row["PyTorch"] / row[way], 3)
            row[f"{way}, memory"] = round(row[f"{way}, GiB"] / row["PyTorch, GiB"], 3)
        del found
    print(f"  {case}: {row}", flush=True)


def milliseconds(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Return the median time of a call on the device."""
    for _ in range(2):
        call()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return round(statistics.median(times), 3)


if __name__ == "__main__":
    sys.exit(main())
