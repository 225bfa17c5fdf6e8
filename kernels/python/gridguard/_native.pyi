"""The native half of the package, written in Rust. Private: use `gridguard` and `gridguard.torch`."""

from collections.abc import Sequence

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

def limits(gpu: str | None, device: int | None) -> str: ...
def gpus() -> str: ...
def check(request: str, gpu: str | None, device: int | None, opt_in: bool) -> str: ...
def explain(text: str, gpu: str | None, device: int | None) -> tuple[str, str, str | None]: ...
def attention(
    q: tuple[int, Sequence[int], Sequence[int]],
    k: tuple[int, Sequence[int], Sequence[int]],
    v: tuple[int, Sequence[int], Sequence[int]],
    out: tuple[int, Sequence[int], Sequence[int]],
    bias: int | None,
    scale: float,
    causal: bool,
    grouped: bool,
    dtype: str,
    device: int,
    stream: int,
    capturing: bool,
) -> str | None: ...
