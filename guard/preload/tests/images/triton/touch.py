"""The kernel of the other files here, which `python3 touch.py` writes with Triton 3.6 and without a GPU."""

import json
import os
import pathlib

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def touch(out, items, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + columns, row + columns, mask=columns < items)


if __name__ == "__main__":
    source = ASTSource(
        fn=touch,
        signature={"out": "*i32", "items": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": 32},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    folder = pathlib.Path(__file__).parent
    (folder / "touch.cubin").write_bytes(compiled.asm["cubin"])
    (folder / "touch.ptx").write_text(compiled.asm["ptx"])
    options = {name: getattr(compiled.metadata, name) for name in ("name", "enable_fp_fusion", "ptx_options")}
    (folder / "touch.json").write_text(json.dumps(options) + "\n")
