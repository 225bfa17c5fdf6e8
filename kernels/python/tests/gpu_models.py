"""Checks models of other packages on a GPU, and times them. Models whose package is missing are named and left out."""

from __future__ import annotations

import copy
import gc
import importlib.util
import statistics
import sys
from collections.abc import Callable
from typing import Any

import models
import torch
from gpu import options_of, run_checks
from torch import Tensor, nn

import gridguard.torch as ours
from gridguard._pytorch import unserved

figures: dict[str, Any] = {}
ROUNDS = 7


def main() -> int:
    options = options_of(__doc__)
    figures["software"] = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"
    packages = ("diffusers", "torchvision", "timm", "tabpfn", "tabicl", "xformers", "mslk", "kernels")
    figures["missing"] = [one for one in packages if importlib.util.find_spec(one) is None]
    print(figures)
    return run_checks((small_models, efficient, swin, tabpfn, mochi), (), options, figures)


def small_models() -> None:
    """Compare each small model in single precision with itself on the CPU, and under autocast with PyTorch's."""
    for name in models.installed():
        with torch.no_grad():
            model, call = models.make(name)
            want = call(model)
            model, call = models.make(name, device="cuda")
            with torch.autocast("cuda", torch.float16):
                half = call(model).float().cpu()
            # Swin V2 of torchvision may divide by zero in f16.
            half = want if half.isnan().any() else half
            replaced = ours.replace_attention(model)
            row: dict[str, Any] = {"replaced": replaced}
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
    """Time Swin-T of torchvision, and timm's, at 224 x 224: inference and a training step in bf16."""
    makers: dict[str, Callable[[], nn.Module]] = {}
    if "torchvision" not in figures["missing"]:
        import torchvision

        makers["torchvision swin_t"] = torchvision.models.swin_t
        makers["torchvision swin_v2_t"] = torchvision.models.swin_v2_t
    if "timm" not in figures["missing"]:
        import timm

        makers["timm swin_tiny"] = lambda: timm.create_model("swin_tiny_patch4_window7_224")
    for name, maker in makers.items():
        torch.manual_seed(0)
        model = maker().cuda()
        images = torch.randn(512, 3, 224, 224, device="cuda")
        if "v2" in name:
            images = images[:256]
        for compiled in (False, True):
            for training in (False, True):
                case = f"{name}, {'compiled' if compiled else 'eager'}, {'training' if training else 'inference'}"
                figures[case] = row = {}
                for who in ("PyTorch", "replaced"):
                    other = copy.deepcopy(model).train(training)
                    if who == "replaced":
                        ours.replace_attention(other)
                    torch.compiler.reset()
                    step = step_of(other, images, training, compiled)
                    before = ours.stats()
                    row[who] = milliseconds(step)
                    after = ours.stats()
                    row[f"{who}, served"] = (after.served - before.served, after.backward - before.backward)
                    row[f"{who}, GiB"] = peak(step)
                    row[f"{who}, left to PyTorch"] = after.pytorch
                    del other, step
                    gc.collect()
                row["speed"] = round(row["PyTorch"] / row["replaced"], 3)
                print(f"  {case}: {row}", flush=True)


def step_of(model: nn.Module, images: Tensor, training: bool, compiled: bool) -> Callable[[], Any]:
    function = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.set_grad_enabled(training), torch.autocast("cuda", torch.bfloat16):
            out = function(images)
        if training:
            out.float().square().mean().backward()
            model.zero_grad()

    return step


def tabpfn() -> None:
    """Time TabPFN's architecture with 200,000 rows: as it is, with `install`, and with the backend."""
    if "tabpfn" in figures["missing"]:
        return
    from tabpfn.architectures import tabpfn_v2_6
    from tabpfn.architectures.shared import attention_backends, scaled_dot_product_attention

    rows = [torch.randn(200_000, keys, 6, 32, device="cuda", dtype=torch.float16) for keys in (11, 11, 11)]
    attend = lambda: scaled_dot_product_attention.scaled_dot_product_attention(*rows)  # noqa: E731
    config, _ = tabpfn_v2_6.parse_config({"max_num_classes": 10, "num_buckets": 20, "nlayers": 4})
    model = tabpfn_v2_6.get_architecture(config).cuda().eval()
    x, y = torch.randn(20_000, 1, 30, device="cuda"), torch.randint(0, 3, (10_000, 1), device="cuda").float()

    def infer() -> Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            return models.flat(model(x, y))

    for name, call in (("attention of 200,000 rows of 11 features", attend), ("model of 20,000 rows", infer)):
        row = figures[f"TabPFN, {name}"] = {"PyTorch": milliseconds(call)}
        want = call().float()
        with ours.installed():
            row["install"] = milliseconds(call)
        ours.register_backend("tabpfn")
        try:
            row["backend"] = milliseconds(call)
            row["error"] = (call().float() - want).abs().max().item()
        finally:
            attention_backends.unregister_attention_backend("gridguard")
        print(f"  TabPFN, {name}: {row}", flush=True)


def mochi() -> None:
    """Time the VAE encoder of Mochi: as it is, with `install`, and with its attention written in place."""
    if "diffusers" in figures["missing"]:
        return
    from diffusers import AutoencoderKLMochi

    torch.manual_seed(0)
    model = AutoencoderKLMochi().to("cuda", torch.bfloat16).eval()
    for frames, height, width in ((31, 480, 848), (163, 480, 848)):
        video = torch.randn(1, 3, frames, height, width, device="cuda", dtype=torch.bfloat16)

        @torch.no_grad()
        def encode(video: Tensor = video) -> Tensor:
            return model.encode(video).latent_dist.mean

        figures[f"Mochi, {frames} x {height} x {width}"] = row = {}
        try:
            want = encode().float()
            row["PyTorch"], row["PyTorch, GiB"] = milliseconds(encode, 3), peak(encode)
            with ours.installed():
                row["install"], row["install, GiB"] = milliseconds(encode, 3), peak(encode)
                row["replaced modules"] = ours.replace_attention(model)
                row["replaced"], row["replaced, GiB"] = milliseconds(encode, 3), peak(encode)
                row["error"] = (encode().float() - want).abs().max().item()
            row["reasons"] = ours.stats().pytorch
        finally:
            ours.restore_attention(model)
            print(f"  Mochi, {frames} frames: {row}", flush=True)


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


def peak(call: Callable[[], Any]) -> float:
    """Return the peak memory of a call beside what is allocated before, in GiB."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


if __name__ == "__main__":
    sys.exit(main())
