"""Makes oversized launches in many places, and prints the frames that Python itself sees there, as lines of JSON."""

import asyncio
import ctypes
import json
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
NAMES = ["method", "thread", "generator", "closure", "callback", "comprehension", "coroutine", "recursion", "long",
         "latin", "wide", "widest", "jump", "once"]
PTX = ".version 8.0\n.target sm_90\n" + "".join(f".entry {name}() {{ }}\n" for name in NAMES)
functions = {}


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


def set_up():
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX.encode())
    for name in NAMES:
        functions[name] = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(functions[name]), module, name.encode())
    return context


def seen(name):
    """Prints the frames of the caller, and returns the arguments of its launch."""
    frame, frames = sys._getframe(1), []
    while frame and len(frames) < 32:
        code = frame.f_code
        function = getattr(code, "co_qualname", code.co_name)
        frames.append({"file": code.co_filename, "line": frame.f_lineno, "function": function})
        frame = frame.f_back
    print(json.dumps({"kernel": name, "frames": frames}), flush=True)
    return functions[name], 1, 70000, 1, 32, 1, 1, 0, None, None, None


class Model:
    def forward(self):
        text = "a comment"

        # Empty lines and
        # comments.
        return text, cuda.cuLaunchKernel(*seen("method"))


def in_thread(context):
    call("cuCtxSetCurrent", context)
    for _ in range(2):
        pass
    cuda.cuLaunchKernel(*seen("thread"))


def generator():
    yield 1
    cuda.cuLaunchKernel(*seen("generator"))
    yield 2


def closure():
    inner = lambda: cuda.cuLaunchKernel(*seen("closure"))  # noqa: E731
    return inner()


def callback():
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def ordered(_one, _other):
        cuda.cuLaunchKernel(*seen("callback"))
        return 0

    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, 4, compare(ordered))


async def coroutine():
    await asyncio.sleep(0)
    cuda.cuLaunchKernel(*seen("coroutine"))


def recursion(depth):
    if depth:
        return recursion(depth - 1)
    return cuda.cuLaunchKernel(*seen("recursion"))


def compiled(name, file, lines, function):
    """Runs a function of a file of that name, after some lines."""
    body = "".join(f"    value{line % 7} = {line}\n" for line in range(lines))
    text = f"def {function}():\n{body}    cuda.cuLaunchKernel(*seen({name!r}))\n"
    space = {"cuda": cuda, "seen": seen}
    exec(compile(text, file, "exec"), space)
    space[function]()


def jump():
    for number in range(3):
        if number == 0:
            continue
        try:
            raise ValueError(number)
        except ValueError:
            if number == 2:
                cuda.cuLaunchKernel(*seen("jump"))
        finally:
            number = 0


def main():
    context = set_up()
    Model().forward()
    thread = threading.Thread(target=in_thread, args=(context,))
    thread.start()
    thread.join()
    list(generator())
    closure()
    callback()
    [cuda.cuLaunchKernel(*seen("comprehension")) for _ in range(1)]
    asyncio.run(coroutine())
    recursion(100)
    compiled("long", "long.py", 3000, "after_many_lines")
    compiled("latin", "gr\u00f6\u00dfe.py", 1, "gr\u00f6\u00dfe")
    compiled("wide", "\u5927.py", 130, "\u5927\u304d\u3055")
    compiled("widest", "\U0001f600.py", 260, "f")
    jump()


if __name__ == "__main__":
    main()
