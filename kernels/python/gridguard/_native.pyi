"""The native half of the package, written in Rust. Private: use `gridguard` and `gridguard.torch`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

from torch import Tensor

__version__: str

MAX_LENGTH: int
"""The longest sequence that the kernels of `gridguard.torch` serve."""
MAX_HEAD_DIM: int
"""The largest head dimension that they serve."""
MAX_GRID_Y: int
"""The most blocks on the second and third axis of a grid, on every device."""

class GridguardError(RuntimeError):
    """A launch that is not legal or that failed, or a machine that cannot be queried, with the whole report."""

class UnavailableError(GridguardError):
    """The kernels cannot run on this machine: nothing was launched."""

def parse_bytes(text: str) -> int:
    """A number of bytes as the command reads it. Raises ValueError."""

def limits(gpu: str | None, device: int | None) -> str: ...
def gpus() -> str: ...
def check(request: str, gpu: str | None, device: int | None, opt_in: bool) -> str: ...
def explain(text: str, gpu: str | None, device: int | None) -> tuple[str, str, str | None]: ...

class Attention:
    """The kernels, for tensors of the module `torch`. `dlpack` is false to read tensors by their attributes
    also where PyTorch has C functions. `stand_in` is for tests: it is called in place of the kernels, for
    tensors of the CPU."""

    def __init__(
        self, torch: ModuleType, *, dlpack: bool = True, stand_in: Callable[..., object] | None = None
    ) -> None: ...
    @property
    def reader(self) -> Literal["dlpack", "attributes"]:
        """How tensors are read."""
    @property
    def served(self) -> int:
        """The calls that `serve` computed."""
    def serve(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        /,
    ) -> Tensor | None:
        """The output of a call without mask and autocast, where everything is as usual: plain tensors without
        gradients on the current device, whose kernel is loaded. None leaves the call to `submit`."""
    def submit(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        bias: Tensor | None,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
        /,
    ) -> str | None:
        """Submits attention to the current stream of the tensors' device, which is the current device. Returns
        why not, if the kernels do not compute it: then nothing was launched."""

BLOCK_TENSORS: list[tuple[list[str], int, int]]
"""Of each weight of a transformer block: the names of its parts, whose rows follow each other, and its rows and columns
in channels. A vector has 0 columns."""

_BlockProblem = tuple[int, int, int, int, int | None, str, int, int | None]
"""Items, frames, channels, heads, positions with an embedding, type, device, and the most bytes of scratch."""
_BlockAddresses = tuple[int, int, Sequence[int], int]
"""Those of input, output, weights in the order of `BLOCK_TENSORS`, and embeddings of positions."""

def block_scratch(problem: _BlockProblem, capturing: bool) -> int | str: ...
def block(
    problem: _BlockProblem,
    addresses: _BlockAddresses,
    scratch: tuple[int, int],
    stream: int,
    capturing: bool,
) -> None: ...
def block_on_host(problem: _BlockProblem, addresses: _BlockAddresses) -> str | None: ...

def choices() -> list[tuple[int, list[int], str, str, str, str | None]]: ...
def profiles() -> list[tuple[int, Path | None, int, list[str]]]: ...
def misses() -> int: ...
def write_misses(path: Path) -> None: ...
def reload_profiles() -> None: ...
