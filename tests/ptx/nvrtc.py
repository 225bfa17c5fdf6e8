#!/usr/bin/env python3
"""Compiles CUDA sources to PTX with NVRTC: nvrtc.py LIBRARY ARCHITECTURE SOURCES PTX."""
import concurrent.futures
import ctypes
import os
import pathlib
import sys

library, architecture, sources, folder = sys.argv[1:]
nvrtc = ctypes.CDLL(library)
folder = pathlib.Path(folder)


def check(result, program=None):
    if result:
        log = ctypes.create_string_buffer(1 << 16)
        if program:
            nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"NVRTC: error {result}: {log.value.decode()}")


def compile_source(source):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None))
    given = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--device-as-default-execution-space"]
    check(nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)), program)
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, text))
    (folder / source.with_suffix(".ptx").name).write_bytes(text.value)


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for _ in pool.map(compile_source, sorted(pathlib.Path(sources).glob("*.cu"))):
        pass
