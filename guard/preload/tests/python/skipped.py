"""Launches grids by the launcher of Triton or PyTorch, the module NAME in FILE: NAME FILE [HOW] X,Y,Z... or NAME FILE draw.

HOW is `threads` (each grid by a thread of its own), `forked` (by a child), `silent` (with standard error closed) or `before`
(the tuple with the sizes is missing, as before Triton 3.0).
"""

import ctypes
import importlib.util
import os
import random
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
ptx = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry count() { ret; }\n"
cuda.cuModuleLoadData(ctypes.byref(module), ptx)
cuda.cuModuleGetFunction(ctypes.byref(function), module, b"count")
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)
launcher = getattr(launcher, "_StaticCudaLauncher", launcher)
call = getattr(launcher, "_launch_kernel", None) or launcher.launch


def launch(x, y, z, ctas=1):
    if sys.argv[1] == "_C":
        return call(function.value, x, y, z, 4, 4096, "", (), 0)
    packed = (4, ctas, 4096)
    later = (packed, None, None, None, None, None)
    earlier = (None, None, packed, None, None, None)
    arguments = later if sys.argv[1] == "cuda_utils" else earlier
    call(x, y, z, 0, function.value, False, False, *arguments)


def product(*grid):
    result = 1
    for blocks in grid:
        result = (result * blocks + 2**31) % 2**32 - 2**31
    return result


if sys.argv[3] == "draw":
    draw, skipped, others = random.Random(7), 0, 0
    while skipped < 1000 or others < 100_000:
        grid = [draw.randrange(1, 2 ** draw.randrange(1, bits)) for bits in (31, 16, 16)]
        is_skipped = product(*grid) <= 0
        if is_skipped and skipped < 1000 or not is_skipped and others < 100_000:
            launch(*grid)
            skipped, others = skipped + is_skipped, others + (not is_skipped)
else:
    how, grids = sys.argv[3], [tuple(map(int, grid.split(","))) for grid in sys.argv[3:] if "," in grid]
    if how == "silent":
        os.close(2)
    if how == "forked" and (child := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if how == "before":
        launch = lambda x, y, z: call(x, y, z, *range(4, 14))
    in_thread = lambda *grid: (cuda.cuCtxSetCurrent(context), launch(*grid))
    threads = [threading.Thread(target=in_thread, args=grid) for grid in grids if how == "threads"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for grid in [] if threads else grids:
        try:
            launch(*grid)
        except (SystemError, TypeError) as error:
            print(type(error).__name__)
for wrong in [(), (1, 2, 3), ("x",) * 13, (0,) * 13]:
    try:
        call(*wrong)
    except (SystemError, TypeError) as error:
        print(type(error).__name__)
