"""Step 10: tunes a function of Python in ten lines, here with NumPy on the host.

The same decorator serves functions that launch kernels with CuPy, Triton, cuda.core, Numba or PyTorch.
Run it with `python examples/10_tune.py`; it needs `gridguard` and `numpy`.
"""

import numpy as np

import gridguard


@gridguard.tune(chunk="auto", TILE=[512, 8, 32], outputs=["y"])
def transpose(x, y, *, chunk, TILE):
    """Write the transpose of x to y, tile by tile, in chunks of rows."""
    for start in range(0, len(x), chunk):
        for row in range(start, min(start + chunk, len(x)), TILE):
            end = min(row + TILE, start + chunk)
            for column in range(0, x.shape[1], TILE):
                y[column : column + TILE, row:end] = x[row:end, column : column + TILE].T


if __name__ == "__main__":
    x = np.random.default_rng(1).random((512, 512), dtype=np.float32)
    tuned = transpose.tune(x, np.empty_like(x), time_limit=60)
    print(f"{tuned.values}: {tuned.speedup:.2f} times as fast as {transpose.defaults(512)}")
