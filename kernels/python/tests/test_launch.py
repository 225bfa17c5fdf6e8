"""Tests of the native module on the guard's fake CUDA driver, with stand-ins for PyTorch. Needs gcc, but no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[3] / "guard/tests/fake-driver"
# The sizes of q, k, v, out, items, heads and scale.
PARAMETERS = "8,8,8,8,8,4,4"
# The same with the gradients of out, q, k and v.
BACKWARD = {"GRIDGUARD_FAKE_NVRTC_CUBIN": "8,8,8,8,8,8,8,8,4,4"}

# A PyTorch without the C functions of DLPack, with one device.
PYTORCH = '''
import ctypes, types
from gridguard import UnavailableError, _native

SHAPE = (2, 3, 16, 64)
BYTES = 2 * 3 * 16 * 64 * 2
capturing = False
dtypes = {name: object() for name in ("float16", "bfloat16", "float32")}

class Tensor:
    is_cuda, is_cpu, dtype, shape, requires_grad = True, False, dtypes["float16"], SHAPE, False
    def __init__(self):
        self.memory = ctypes.create_string_buffer(BYTES + 16)
    def data_ptr(self):
        return (ctypes.addressof(self.memory) + 15) // 16 * 16
    stride = lambda self: (3072, 1024, 64, 1)
    get_device = lambda self: 0
    is_neg = lambda self: False

torch = types.SimpleNamespace(
    __version__="2.11.0",
    Tensor=Tensor,
    nn=types.SimpleNamespace(Parameter=Tensor),
    empty_like=lambda tensor: Tensor(),
    log=None,
    bool=object(),
    is_grad_enabled=lambda: False,
    is_autocast_enabled=lambda device_type: False,
    autograd=types.SimpleNamespace(
        forward_ad=types.SimpleNamespace(_current_level=-1),
        profiler=types.SimpleNamespace(_is_profiler_enabled=False),
    ),
    overrides=types.SimpleNamespace(_get_current_function_mode_stack=list),
    _C=types.SimpleNamespace(
        _functorch=types.SimpleNamespace(peek_interpreter_stack=lambda: None),
        _is_tracing=lambda: False,
        _len_torch_dispatch_stack=lambda: 0,
        _len_torch_function_stack=lambda: 0,
        _cuda_getDevice=lambda: 0,
        _cuda_getCurrentRawStream=lambda device: 0,
        _cuda_isCurrentStreamCapturing=lambda: capturing,
    ),
    **dtypes,
)
kernels = _native.Attention(torch)
query, key, value, out = tensors = [Tensor() for _ in range(4)]
options = (None, False, 0.125, False)
gradients = (*tensors, Tensor(), Tensor(), Tensor())

def serve():
    return kernels.serve(query, key, value, None, 0.0, False, None, False)

def sized(items, heads, length, width):
    Tensor.shape = (items, heads, length, width)
    Tensor.stride = lambda self: (heads * length * width, length * width, width, 1)

def addresses(*tensors):
    print(*(f"{tensor.data_ptr():x}" for tensor in tensors))
'''


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Build the fake driver and the fake NVRTC, and return their folder."""
    folder = tmp_path_factory.mktemp("fake-driver")
    for source, library in (("libcuda.c", "libcuda.so.1"), ("libnvrtc.c", "libnvrtc.so")):
        command = ["gcc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", folder / library, DRIVER / source, "-lpthread"]
        subprocess.run(command, check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


@pytest.fixture
def run(fake, tmp_path):
    """Run a program after `PYTORCH`, and return its lines and the lines of the launches."""

    def run(program, **settings):
        log = tmp_path / "log"
        settings = {
            **os.environ,
            "LD_LIBRARY_PATH": str(fake),
            "GRIDGUARD_FAKE_LOG": str(log),
            "GRIDGUARD_FAKE_NVRTC_CUBIN": PARAMETERS,
            "GRIDGUARD_CUBIN_CACHE": str(tmp_path / "cache"),
            **settings,
        }
        command = [sys.executable, "-c", PYTORCH + program]
        ran = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        return ran.stdout.splitlines(), [line for line in lines if line.startswith("launch ")]

    return run


def pointers(launch):
    """Return the first arguments of a launch in the log as text."""
    return [argument.removeprefix("0x").lstrip("0") for argument in launch.split("args=")[1].split()[0].split(",")]


def test_kernels_are_launched_on_the_tensors_memory(run):
    written, launches = run("""
print(serve(), kernels.submit(tensors, *options))
addresses(*tensors)
addresses(query, key, value, serve())
print(*kernels.counts, kernels.reader)
""")
    assert written[0] == "None None", "`serve` needs a loaded kernel, `submit` loads it"
    assert written[3] == "1 0 0 0 attributes"
    assert [pointers(launch)[:4] for launch in launches] == [line.split() for line in written[1:3]]


# A bias for all items and heads, and its gradient.
BIAS = """
bias, of_bias = Tensor(), Tensor()
bias.shape, bias.stride = (16, 16), lambda: (16, 1)
of_bias.shape, of_bias.stride = (2, 3, 16, 16), lambda: (768, 256, 16, 1)
"""
BIASED = {"GRIDGUARD_FAKE_NVRTC_CUBIN": "8,8,8,8,8,8,8,8,8,8,4,4"}


@pytest.mark.parametrize(
    ("arguments", "settings"), [("None, *options[:3]", BACKWARD), ("bias, of_bias, False, 1.0", BIASED)]
)
def test_gradients_are_launched_on_the_tensors_memory(run, arguments, settings):
    program = f"""{BIAS}
for capturing in (True, False):
    print(kernels.submit_backward(gradients, {arguments}))
addresses(*gradients, of_bias, bias)
"""
    (first, second, addresses), [launch] = run(program, **settings)
    assert (first, second) == ("first call during capture", "None")
    # The gradient of the bias is before the bias.
    count = 9 if "bias" in arguments else 7
    assert pointers(launch)[:count] == addresses.split()[:count]


@pytest.mark.parametrize(
    ("change", "call"),
    [
        ("out.stride = lambda: (0, 1024, 64, 1)", "submit(tensors, *options)"),
        ("gradients[5].stride = lambda: (3072, 0, 64, 1)", "submit_backward(gradients, None, *options[:3])"),
    ],
)
def test_outputs_that_overlap_are_an_error(run, change, call):
    program = f"""{change}
try:
    kernels.{call}
except _native.GridguardError as error:
    print(error)
"""
    strided = {True: STRIDED, False: "8,8,8,8,8,8,8,8,4,168,4"}[call.startswith("submit(")]
    [text], launches = run(program, GRIDGUARD_FAKE_NVRTC_CUBIN=strided)
    assert text.endswith("some elements overlap") and not launches


GENERAL, STRIDED = "8,8,8,8,8,4,4,4,4,4", "8,8,8,8,8,4,96,4"


@pytest.mark.parametrize(
    ("change", "parameters"),
    [
        *((f"sized({sizes})", PARAMETERS) for sizes in ("2, 3, 1, 64", "2, 3, 128, 64", "2**20, 3, 16, 64", "70_000, 1, 7, 64")),
        *((f"sized(2, 3, 16, {width})", GENERAL) for width in (1, 3)),
        ("key.stride = value.stride = lambda: (0, 1024, 64, 1)", STRIDED),
    ],
)
def test_small_sizes_large_batches_and_repeated_items_are_launched(run, change, parameters):
    written, launches = run(f"{change}\nprint(kernels.submit(tensors, *options))", GRIDGUARD_FAKE_NVRTC_CUBIN=parameters)
    assert (written, len(launches)) == (["None"], 1)
    if parameters == PARAMETERS:
        assert run(f"{change}\nprint(kernels.submit_backward(gradients, None, *options[:3]))", **BACKWARD)[0] == ["None"]


def test_a_capture_uses_only_loaded_kernels(run):
    written, launches = run("""
capturing = True
print(kernels.submit(tensors, *options), serve())
capturing = False
print(kernels.submit(tensors, *options))
capturing = True
print(kernels.submit(tensors, *options), serve() is not None)
""")
    assert written == ["first call during capture None", "None", "None True"]
    assert len(launches) == 3


def test_a_kernel_that_cannot_be_compiled_is_unavailable(run):
    program = """
try:
    kernels.submit(tensors, *options)
except UnavailableError as error:
    print(type(error).__name__, serve())
"""
    assert run(program, GRIDGUARD_FAKE_NVRTC_CUBIN="") == (["UnavailableError None"], [])


def test_a_missing_compiler_is_looked_for_again(run, fake, tmp_path):
    for library in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / library).symlink_to(fake / library)
    program = f"""
try:
    kernels.submit(tensors, *options)
except UnavailableError as error:
    print(error)
import os
os.symlink("{fake / 'libnvrtc.so'}", "{tmp_path / 'libnvrtc.so'}")
print(kernels.submit(tensors, *options), serve() is not None)
"""
    written, launches = run(program, LD_LIBRARY_PATH=str(tmp_path))
    assert "NVRTC" in written[0] and written[-1] == "None True" and len(launches) == 2


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver")
def test_without_a_driver_the_kernels_are_not_available(run):
    program = """
try:
    kernels.submit(tensors, *options)
except UnavailableError as error:
    print(isinstance(error, _native.GridguardError), isinstance(error, RuntimeError), error)
print(serve())
"""
    (first, *_, last), launches = run(program, LD_LIBRARY_PATH="")
    assert first.startswith("True True no CUDA driver library found") and last == "None" and not launches


def test_a_launch_that_fails_is_an_error(run):
    program = """
kernels.submit(tensors, *options)
for call in (lambda: kernels.submit(tensors, *options), serve):
    try:
        print(call())
    except _native.GridguardError as error:
        print(type(error).__name__, "CUDA_ERROR_LAUNCH_FAILED" in str(error))
"""
    settings = {"GRIDGUARD_FAKE_FAIL_LAUNCH": "1", "GRIDGUARD_FAKE_STICKY": "1"}
    written, launches = run(program, **settings)
    assert written == ["GridguardError True"] * 2
    assert len(launches) == 1


UNSUPPORTED = {
    "submit(tensors, *options)": [
        ("dtype", "key.dtype = dtypes['float32']"),
        ("dtype", "query.dtype = key.dtype = value.dtype = out.dtype = object()"),
        ("device", "value.get_device = lambda: 1"),
        ("device", "out.is_cuda = False"),
        ("tensor type", "query.is_neg = lambda: True"),
        ("tensor type", "value.data_ptr = lambda: 0"),
        ("strides", "key.stride = lambda: (3072, 1024, 1, 16)"),
        ("alignment", "key.stride = lambda: (3072, 1024, 67, 1)"),
        ("alignment", "key.data_ptr = lambda: 0x1002"),
        ("shape", "value.shape = (2, 3, 16, 32)"),
        ("length", "sized(2, 5, _native.MAX_LENGTH + 1, 64)"),
        ("shape", "sized(2, 3, 16, _native.MAX_HEAD_DIM + 1)"),
        ("shape", "Tensor.shape, Tensor.stride = (64,), lambda self: (1,)"),
        ("shape", "key.shape = value.shape = (2, 1, 16, 64)"),
        ("empty", "Tensor.shape = (0, 3, 16, 64)"),
        ("tensor type", "Tensor.shape = (-1, 3, 16, 64)"),
        ("length", "key.shape = value.shape = (2, 3, _native.MAX_LENGTH + 1, 64)"),
        ("shape", "key.shape = (2, 3, 8, 64)"),
        ("scale", "options = (None, False, float('nan'), False)"),
        ("shape", "options = (query, False, 1.0, False)"),
    ],
    "submit_backward(gradients, None, *options[:3])": [
        ("tensor type", "out.is_neg = lambda: True"),
        ("dtype", "out.dtype = dtypes['float32']"),
        ("shape", "Tensor.shape, Tensor.stride = (2, 3, 16, 60), lambda self: (2880, 960, 60, 1)"),
        ("shape", "gradients[5].shape = (2, 3, 8, 64)"),
        ("strides", "gradients[6].stride = lambda: (3072, 1024, 1, 16)"),
        ("alignment", "gradients[4].data_ptr = lambda: 0x1002"),
        ("shape", "sized(2, 3, 16, 1)"),
        ("shape", "sized(2, 3, 16, 3)"),
        ("shape", "sized(2, 3, 16, _native.MAX_HEAD_DIM - 1)"),
        ("shape", "sized(2, 3, 16, _native.MAX_HEAD_DIM + 1)"),
        ("length", "sized(2, 3, _native.MAX_LENGTH + 1, 64)"),
        ("empty", "sized(0, 3, 16, 64)"),
    ],
    "submit_backward(gradients, bias, of_bias, False, 1.0)": [
        ("shape", "of_bias.shape = (2, 3, 16, 8)"),
        ("shape", "of_bias.stride = lambda: (0, 256, 16, 1)"),
        ("shape", "bias = None"),
        ("shape", "bias.shape = (16, 8)"),
        ("dtype", "of_bias.dtype = dtypes['float32']"),
        ("device", "of_bias.get_device = lambda: 1"),
        ("tensor type", "of_bias.data_ptr = lambda: 0"),
    ],
}


@pytest.mark.parametrize(
    ("call", "reason", "change"), [(call, *case) for call, cases in UNSUPPORTED.items() for case in cases]
)
def test_unsupported_calls_are_not_launched(run, call, reason, change):
    # The parameters of a kernel with strides, for errors that the launch finds.
    strided = {"GRIDGUARD_FAKE_NVRTC_CUBIN": STRIDED} if "67" in change else {}
    settings = strided if "backward" not in call else BIASED if "bias" in call else BACKWARD
    assert run(f"{BIAS}\n{change}\nprint(kernels.{call})", **settings) == ([reason], [])
