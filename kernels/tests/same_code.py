#!/usr/bin/env python3
# Compares the machine code of the kernels with an earlier revision.
#
#     KERNEL_CONFIGURATIONS=FILE cargo test --package gridguard-kernels --test compile -- --ignored
#     kernels/tests/same_code.py REVISION FILE [PROFILE...]
#
# Profiles name a kernel by a hash of its source. If only comments and names changed, the tuned choices stay valid: this
# script then replaces the hashes of REVISION in each PROFILE by the hashes of the working tree. It changes no profile
# if any code differs. Needs libnvrtc.so on LD_LIBRARY_PATH. Exit status: 0 for equal code, 1 for different code.
import ctypes
import ctypes.util
import hashlib
import pathlib
import re
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read(revision, path):
    if revision is None:
        return (ROOT / path).read_text()
    return subprocess.run(
        ["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def joined(revision, parts):
    """The whole source of a kernel, as the macro `source!` joins it."""
    return "\n".join(f'#line 1 "{part}"\n' + read(revision, f"kernels/cu/{part}") for part in parts.split(","))


def source_hash(source):
    return hashlib.sha256(source.encode()).hexdigest()[:16]


class Compiler:
    def __init__(self):
        names = ["libnvrtc.so.13", "libnvrtc.so.12", ctypes.util.find_library("nvrtc")]
        for name in filter(None, names):
            try:
                self.library = ctypes.CDLL(name)
                return
            except OSError:
                continue
        sys.exit("libnvrtc.so was not found: set LD_LIBRARY_PATH")

    def compile(self, source, target, defines, kind):
        """`kind` is PTX or CUBIN."""
        target = target if kind == "CUBIN" else target.replace("sm_", "compute_")
        options = [f"--gpu-architecture={target}", "--std=c++17", *(f"-D{name}={value}" for name, value in defines)]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        if self.library.nvrtcCompileProgram(program, len(options), array) != 0:
            sys.exit(f"a kernel does not compile for {target} with {defines}: run the test `compile`")
        getattr(self.library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{kind}")(program, text)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return text.raw


def instructions(ptx):
    """PTX without comments, line numbers and unused constants, whose names may change."""
    lines = [line for line in ptx.decode().rstrip("\0").splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith(("//", ".loc", ".file"))]
    constant = re.compile(r"\.global \.align \d+ \.\w+ (\w+)(\[\d+\])?( = [^;]+)?;")
    code = "\n".join(line for line in lines if not constant.fullmatch(line))
    unused = lambda match: not re.search(rf"\b{match[1]}\b", code)
    return "\n".join(line for line in lines if not ((match := constant.fullmatch(line)) and unused(match)))


def code_sections(cubin):
    """The code of a kernel with its register count, its constants, and the size of its shared memory."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + 64 * index) for index in range(count)]
    strings = cubin[headers[names][4] :]
    found = {}
    for name, kind, _, _, start, size, _, info, _, _ in headers:
        name = strings[name : strings.index(b"\0", name)].decode()
        if name.startswith((".text.", ".nv.constant0.", ".nv.shared.")):
            has_bytes = kind != 8
            found[name] = (size, info >> 24, cubin[start : start + size] if has_bytes else b"")
    return found


def main():
    revision, configurations, *profiles = sys.argv[1:]
    compiler, sources, different = Compiler(), {}, []
    lines = sorted(set(open(configurations).read().splitlines()))
    for line in lines:
        parts, target, rest = line.split(" ", 2)
        defines = re.findall(r'\("(\w+)", "(\d+)"\)', rest)
        if parts not in sources:
            sources[parts] = [joined(one, parts) for one in (revision, None)]
        pair = sources[parts]
        # Equal PTX gives equal machine code, and takes a tenth of the time.
        ptx = [instructions(compiler.compile(source, target, defines, "PTX")) for source in pair]
        if ptx[0] != ptx[1]:
            cubins = [code_sections(compiler.compile(source, target, defines, "CUBIN")) for source in pair]
            if cubins[0] != cubins[1]:
                different.append(line)
    print(f"{len(lines)} configurations, {len(different)} with different code")
    print("".join(f"    {line}\n" for line in different), end="")
    if different:
        return 1
    for profile in map(pathlib.Path, profiles):
        text = profile.read_text()
        for old, new in sources.values():
            text = text.replace(source_hash(old), source_hash(new))
        profile.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
