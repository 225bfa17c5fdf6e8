"""Tests of the registries and functions of other packages, for those that are installed."""

from __future__ import annotations

import enum
import importlib.util
import json
import platform
import sys
import types
from pathlib import Path

import models
import pytest
import torch
from stand_in import qkv
from torch._subclasses.fake_tensor import FakeTensorMode

import gridguard
import gridguard.torch as ours
from gridguard import _backends, _efficient, _pytorch
from gridguard._pytorch import unserved as reference

pytestmark = pytest.mark.filterwarnings("ignore")


def has(package, file="__init__.py"):
    """Tell whether a package is installed and has a file. Nothing is imported while tests are collected."""
    spec = importlib.util.find_spec(package)
    return spec is not None and any((Path(folder) / file).exists() for folder in spec.submodule_search_locations)


def test_other_packages_are_refused_in_words():
    for package in ("torch", "", None, []):
        with pytest.raises(ValueError, match=r"pass one of 'diffusers', 'tabpfn'"):
            ours.register_backend(package)


_MODULES = ("diffusers.models.attention_dispatch", "tabpfn.architectures.shared.attention_backends")


@pytest.mark.parametrize("package", ["diffusers", "tabpfn"])
def test_a_package_that_is_not_installed_is_named(monkeypatch, package):
    for name in (package, *_MODULES):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"register_backend needs {package}: pip install {package}"):
        ours.register_backend(package)


class Names(str, enum.Enum):
    NATIVE = "native"


@pytest.mark.parametrize("registry", ["missing", "without names", "with other names", "with other arguments"])
def test_another_version_of_diffusers_is_refused_in_words(monkeypatch, registry):
    modules = {"diffusers": types.ModuleType("diffusers"), "diffusers.models": types.ModuleType("models")}
    modules["diffusers"].__version__ = "99.0"
    modules["diffusers.models"].__path__ = []
    if registry != "missing":
        dispatch = modules["diffusers.models.attention_dispatch"] = types.ModuleType("dispatch")
        dispatch._AttentionBackendRegistry = object
        if registry == "with other names":
            dispatch.AttentionBackendName = types.SimpleNamespace(_value2member_map_={})
        elif registry == "with other arguments":
            dispatch.AttentionBackendName = Names
            dispatch._check_device = dispatch._check_shape = None
            dispatch._AttentionBackendRegistry = types.SimpleNamespace(register=lambda name: name)
    monkeypatch.delitem(sys.modules, "diffusers.models.attention_dispatch", raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ImportError, match=r"diffusers 99.0 has no registry .* call gridguard.torch.install\(\) inst"):
        ours.register_backend("diffusers")
    assert list(Names) == [Names.NATIVE]


if has("diffusers", "models/attention_dispatch.py"):

    @torch.no_grad()
    def test_diffusers_finds_the_backend_by_name(on_cpu):
        from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend

        ours.register_backend("diffusers")
        ours.register_backend("diffusers")
        assert AttentionBackendName("gridguard") is list(AttentionBackendName)[-1]
        assert len({*AttentionBackendName}) == len(AttentionBackendName)
        model, call = flux()
        want = call(model)
        model.set_attention_backend("gridguard")
        torch.testing.assert_close(call(model), want)
        assert on_cpu().served == 2
        model.set_attention_backend("native")
        call(model)
        assert on_cpu().served == 2
        model.reset_attention_backend()
        with attention_backend("gridguard"):
            torch.testing.assert_close(call(model), want)
        assert on_cpu().served == 4

    def flux():
        """Make a model that asks the registry. UNets call PyTorch's function."""
        from diffusers import FluxTransformer2DModel

        torch.manual_seed(0)
        model = FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=[4, 4, 8],
        )
        inputs = {
            "hidden_states": torch.randn(2, 16, 4),
            "encoder_hidden_states": torch.randn(2, 8, 32),
            "pooled_projections": torch.randn(2, 32),
            "timestep": torch.ones(2),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(8, 3),
        }
        return model.eval(), lambda one: one(**inputs).sample


def test_the_backend_of_diffusers_takes_its_masks_and_refuses_its_other_options(on_cpu):
    tensors = qkv(3, 16, 5, 64)
    heads_first = [one.transpose(1, 2) for one in tensors]
    keys = torch.arange(16) < torch.tensor([[16], [3], [9]])
    for mask, full in ((keys, keys[:, None, None]), (torch.randn(3, 5, 16, 16),) * 2, (None, None)):
        out = _backends._diffusers_attention(*tensors, mask, scale=0.3)
        torch.testing.assert_close(out, reference(*heads_first, full, scale=0.3).transpose(1, 2))
    assert on_cpu().served == 3
    with pytest.raises(ValueError, match='"gridguard" does not support return_lse: choose "native"'):
        _backends._diffusers_attention(*tensors, return_lse=True)
    with pytest.raises(ValueError, match="does not support context parallelism"):
        _backends._diffusers_attention(*tensors, _parallel_config=object())


def test_the_backend_of_diffusers_takes_tensors_without_memory_and_leaves_errors_to_pytorch(on_cpu):
    query, key, value = qkv(3, 16, 5, 64)
    found = _backends._diffusers_attention(*(one.to("meta") for one in (query, key, value)))
    assert found.is_meta and found.shape == query.shape
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in (query, key, value)]
        assert _backends._diffusers_attention(*fakes).shape == query.shape
    # As a tensor in the memory of the host among those of a device.
    with pytest.raises(RuntimeError, match="device"):
        _backends._diffusers_attention(query, key.to("meta"), value)
    assert on_cpu().served == 0


if has("tabpfn", "architectures/shared/attention_backends.py"):

    def test_training_of_tabpfn_asks_the_backend(on_cpu):
        models.without_init(*models.TABPFN)
        from tabpfn.architectures.shared import attention_backends as registry

        model, call = models.make("tabpfn: v2.6")
        want = models.gradients(model, call)
        ours.register_backend("tabpfn")
        try:
            torch.testing.assert_close(models.gradients(model, call), want, atol=1e-6, rtol=1e-4)
            assert on_cpu().served == on_cpu().backward > 3 and on_cpu().pytorch == {}
            meta = qkv(2, 16, 3, 16)
            assert registry.find_attention_backend(*meta).name == "gridguard"
            assert registry.find_attention_backend(*(one.to("meta") for one in meta)) is None
        finally:
            registry.unregister_attention_backend("gridguard")

    @torch.no_grad()
    def test_tabpfn_asks_the_backend(on_cpu):
        models.without_init(*models.TABPFN)
        from tabpfn.architectures.shared import attention_backends as registry

        model, call = models.make("tabpfn: v2.6")
        want = call(model)
        ours.register_backend("tabpfn")
        ours.register_backend("tabpfn")
        try:
            with registry.recorded_attention_backends() as taken:
                torch.testing.assert_close(call(model), want)
            assert [one.name for one in taken] == ["gridguard"] * len(taken) and on_cpu().served == len(taken) > 3
            long, wide, double = qkv(2, 600, 3, 16), qkv(2, 16, 3, 1024), qkv(2, 16, 3, 16, dtype=torch.float64)
            for tensors in (long, wide, double):
                assert registry.find_attention_backend(*tensors) is None
            query, shared, _ = (*qkv(2, 16, 6, 32)[:1], *qkv(2, 16, 1, 32)[:2])
            found = registry.find_attention_backend(query, shared, shared).run(query, shared, shared)
            every = shared.expand(query.shape).transpose(1, 2)
            torch.testing.assert_close(found, reference(query.transpose(1, 2), every, every).transpose(1, 2))
        finally:
            registry.unregister_attention_backend("gridguard")


EFFICIENT = [name for name in ("xformers.ops", "mslk.attention.fmha") if has(name.split(".")[0])]


@pytest.fixture(params=["stand-in", *EFFICIENT])
def efficient(request, monkeypatch):
    """Return a module with `memory_efficient_attention` while `install` is in force."""
    monkeypatch.setattr(_efficient, "_originals", {})
    if request.param == "stand-in":
        module = types.ModuleType("xformers.ops")

        class LowerTriangularMask:
            pass

        def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
            raise NotImplementedError("the original")

        module.LowerTriangularMask = LowerTriangularMask
        module.memory_efficient_attention = memory_efficient_attention
        monkeypatch.setitem(sys.modules, "xformers.ops", module)
    else:
        module = importlib.import_module(request.param)
    original = module.memory_efficient_attention
    with ours.installed():
        assert module.memory_efficient_attention is not original
        assert module.memory_efficient_attention.__name__ == original.__name__
        yield module
    assert module.memory_efficient_attention is original


def heads_first(tensor):
    return tensor if tensor.dim() == 3 else tensor.movedim(1, -2)


@pytest.mark.parametrize("sizes", [(2, 16, 5, 64), (10, 16, 64), (2, 16, 3, 4, 8)])
def test_memory_efficient_attention_is_served(on_cpu, efficient, sizes):
    tensors = qkv(*sizes)
    scores = (*heads_first(tensors[0]).shape[:-1], 16)
    for number, bias in enumerate((None, torch.randn(scores), efficient.LowerTriangularMask()), 1):
        found = efficient.memory_efficient_attention(*tensors, attn_bias=bias, scale=0.2)
        is_tensor = isinstance(bias, torch.Tensor)
        options = {"attn_mask": bias} if is_tensor else {"is_causal": bias is not None}
        want = reference(*map(heads_first, tensors), **options, scale=0.2)
        torch.testing.assert_close(found, want if len(sizes) == 3 else want.movedim(-2, 1))
        assert found.is_contiguous() and on_cpu().served == number


def test_other_calls_stay_in_the_package(on_cpu, efficient):
    tensors = qkv(2, 16, 5, 64)
    for options in ({"p": 0.1}, {"attn_bias": object()}):
        with pytest.raises((NotImplementedError, ValueError, AssertionError)):
            efficient.memory_efficient_attention(*tensors, **options)
    query, key, value = tensors
    for others in ((query.to("meta"), key.to("meta"), value.to("meta")), (query, key.to("meta"), value)):
        with pytest.raises((NotImplementedError, ValueError, AssertionError)):
            efficient.memory_efficient_attention(*others)
    assert on_cpu().served == 0


def test_a_batch_that_overflows_their_grid_runs_in_slices(on_cpu, efficient, monkeypatch):
    monkeypatch.setattr(_pytorch, "MAX_SLICE", 3)
    tensors = qkv(8, 700, 2, 4)
    found = efficient.memory_efficient_attention(*tensors)
    want = reference(*map(heads_first, tensors)).movedim(-2, 1)
    torch.testing.assert_close(found, want)
    assert on_cpu().pytorch == {"length": 1}


def test_a_package_without_the_function_changes_nothing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "xformers.ops", types.ModuleType("xformers.ops"))
    with caplog.at_level("INFO", "gridguard"), ours.installed():
        pass
    assert "xformers.ops has no memory_efficient_attention, so none is replaced" in caplog.text


@pytest.fixture(scope="module")
def hub():
    path = Path(__file__).parents[1] / "hub.py"
    spec = importlib.util.spec_from_file_location("hub", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernel(hub, tmp_path_factory):
    """Lay out the package that these tests use as a kernel of the hub."""
    folder = tmp_path_factory.mktemp("kernel")
    hub.lay_out(Path(gridguard.__file__).parent, platform.machine(), folder)
    return folder


def test_a_kernel_names_itself_and_its_files(kernel):
    variants = sorted(path.name for path in (kernel / "build").iterdir())
    machine = platform.machine()
    assert variants == [f"torch-stable-abi24-cu{version}-{machine}-linux" for version in ("120", "130")]
    folder = kernel / "build" / variants[0]
    metadata = json.loads((folder / "metadata.json").read_text())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"metadata.json", *metadata["digest"]["files"]}
    assert metadata["id"].isidentifier() and "gridguard/_native.abi3.so" in files


def test_a_kernel_with_an_absolute_import_is_refused(hub):
    with pytest.raises(ValueError, match=r"x.py has `import gridguard`, which a kernel must not import"):
        hub.relative(Path("x.py"), "def f():\n    import gridguard.torch\n", "_id")


if has("kernels"):

    def test_the_loader_of_kernels_takes_it_beside_the_package(kernel):
        import kernels
        from kernels._rust import Digest, DigestAlgorithm, Metadata

        for variant in (kernel / "build").iterdir():
            written = Metadata.read_from_file(variant / "metadata.json").digest
            written.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
        loaded = kernels.get_local_kernel(kernel)
        assert loaded.__all__ == ours.__all__
        assert loaded.scaled_dot_product_attention is not ours.scaled_dot_product_attention
        tensors = qkv(2, 5, 16, 64)
        torch.testing.assert_close(loaded.scaled_dot_product_attention(*tensors), reference(*tensors))
        assert f"{loaded.__name__}::attention" in torch._C._dispatch_get_all_op_names()
