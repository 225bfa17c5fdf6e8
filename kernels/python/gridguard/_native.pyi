"""The native module of the package, written in Rust. Private: use `gridguard` and `gridguard.torch`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

from torch import Tensor

__version__: str

MAX_LENGTH: int
"""The largest number of queries or keys that the kernels serve."""
MAX_HEAD_DIM: int
"""The largest head dimension that they serve."""
MAX_GRID_Y: int
"""The most blocks on the y and z axes of a grid, on every device."""

class GridguardError(RuntimeError):
    """A launch is illegal or failed, or this machine cannot be queried. The message is the complete report."""

class UnavailableError(GridguardError):
    """The kernels cannot run on this machine. Nothing was launched."""

def parse_bytes(text: str) -> int:
    """Parse a number of bytes as the command does. Raise ValueError if it is none."""

def limits(gpu: str | None, device: int | None) -> str: ...
def gpus() -> str: ...
def check(request: str, gpu: str | None, device: int | None, opt_in: bool) -> str: ...
def explain(text: str, gpu: str | None, device: int | None) -> tuple[str, str, str | None]: ...

def ignore_calls() -> None:
    """Count no further calls of this thread."""

def ignores_calls() -> bool: ...

class Attention:
    """Attention on tensors of the module `torch`.

    `dlpack=False` reads tensors by their attributes. `compares=False` also serves the calls that take PyTorch less time.
    """

    def __init__(self, torch: ModuleType, *, dlpack: bool = True, compares: bool = True) -> None: ...
    @property
    def reader(self) -> Literal["dlpack", "attributes"]:
        """How tensors are read."""
    @property
    def counts(self) -> list[int]:
        """The numbers of calls that `serve` and `serve_backward` computed, and of those that `Dispatched` left
        to PyTorch because it is faster, or has dropout."""
    measures: bool
    """Whether problems that no entry of a profile decides are timed at their first call."""
    @property
    def notes(self) -> list[str]:
        """Where the borders come from, and why entries of profiles are not used."""
    def borders(self, device: int, dtype: str) -> list[tuple[int, list[int]]]:
        """For rising head dimensions, return the most queries or keys that the kernels serve on a device: forwards,
        forwards causal and with a mask, and the same with gradients. Nothing if they serve all that they can."""
    def is_slower(
        self, query: Tensor, key: Tensor, value: Tensor, is_masked: bool, is_causal: bool, needs_grad: bool, /
    ) -> bool:
        """Tell whether PyTorch's kernels take less time for a call, or were not compared."""
    def serve(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        /,
    ) -> Tensor | None:
        """Compute a common call: plain tensors on the current device, no autocast, no mode, transform or profiler, a
        loaded kernel, no faster one of PyTorch. Record its node, if it is differentiated. Return None for any other
        call."""
    def serve_backward(
        self,
        grad: Tensor,
        saved: Sequence[Tensor | None],
        needed: Sequence[bool],
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
        /,
    ) -> list[Tensor | None] | None:
        """Return the gradients of (query, key, value), where needed, or None if the call or its gradients are not
        common, as in `serve`, a bias needs a gradient, or the gradients are differentiated."""
    def is_recorded(self) -> bool:
        """Tell whether PyTorch's dispatcher must see operators of this thread: also of a profiler."""
    def is_transformed(self) -> bool:
        """Tell whether this thread records or transforms functions or operators, and would not see a launch."""
    def has_function_mode(self) -> bool:
        """Tell whether a mode may change a call of a function."""
    def submit(
        self,
        tensors: tuple[Tensor, ...],
        bias: Tensor | None,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
        /,
    ) -> str | None:
        """Launch attention of (query, key, value, out) on the current stream of the current device. Return why the
        kernels do not serve it, if so."""
    def submit_backward(
        self,
        tensors: tuple[Tensor, ...],
        bias: Tensor | None,
        bias_gradient: Tensor | None,
        is_causal: bool,
        scale: float,
        /,
    ) -> str | None:
        """As `submit`, the gradients of attention: (query, key, value, grad, dq, dk, dv). `bias_gradient` is contiguous:
        [batch ..., queries, keys]."""

class Dispatched:
    """A kernel of PyTorch's operator: common calls by `kernels`, if any, and the others by a function.

    Calls of a thread whose `is_unserved` is true go to the function, too.
    """

    kernels: Attention | None
    def __init__(self, others: Callable[..., Tensor], thread: object, /) -> None: ...
    def __call__(self, *arguments: object, **options: object) -> Tensor: ...

BLOCK_TENSORS: list[tuple[list[str], int, int]]
"""For each weight of a transformer block: the names of its parts, joined along the rows, and its rows and columns in
channels. A vector has 0 columns."""

_BlockProblem = tuple[int, int, int, int, int | None, str, int, int | None]
"""Items, frames, channels, heads, positions with an embedding, type, device ordinal, limit of scratch bytes."""
_BlockAddresses = tuple[int, int, Sequence[int], int]
"""The addresses of input, output, weights in the order of `BLOCK_TENSORS`, and position embeddings."""

def block_scratch(problem: _BlockProblem, capturing: bool) -> int:
    """Prepare a block, and return its bytes of scratch. Raise ValueError with the reason if it is not served."""

def block(
    problem: _BlockProblem,
    addresses: _BlockAddresses,
    scratch: tuple[int, int],
    stream: int,
    capturing: bool,
) -> None: ...
def block_on_host(problem: _BlockProblem, addresses: _BlockAddresses) -> None: ...

def residual_norm(
    problem: tuple[int, int, str, bool, int],
    addresses: Sequence[int],
    epsilon: float,
    stream: int,
    capturing: bool,
) -> str | None:
    """Launch out = norm(x + added) * weight and its cast. Return why the kernel does not serve it, if so.

    The problem has rows, columns, the type of the cast, whether it is the layer norm, and the device; the addresses are
    those of x, added, out, cast and weight.
    """

def choices() -> list[tuple[int, list[int], str, str, str, str | None]]: ...
def profiles() -> list[tuple[int, Path | None, int, list[str]]]: ...
def misses() -> int: ...
def write_misses(path: Path) -> None: ...
def reload_profiles() -> None: ...

def look_up_function(function: object) -> tuple[list[tuple[str, int]], int | None, str]:
    """Return the tuned parameters and chunk of a function, and how the profile matched."""

def tune_function(command: Sequence[str], problem: str, function: object, search: object) -> str:
    """Tune a function that `command` runs. Return the result as JSON.

    Raise BlockingIOError while another search has its journal.
    """

def profile_digest(device: int | None) -> str:
    """Return the digest of the choices for a device, or for the host."""

def compare_digests(digests: Sequence[str]) -> None:
    """Raise GridguardError with the ranks whose digest differs."""
