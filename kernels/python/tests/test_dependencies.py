"""Tests of what a tuned choice depends on. Needs NumPy, but no GPU and no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from gridguard._dependencies import Dependencies, UnreadableError

# How a function reaches a kernel: its module, the call, and the module `kern`, with a place for what is edited.
WAYS = {
    "module": ("import kern", "kern.inner(x)", "def inner(x): return {}"),
    "alias of a module": ("import kern\nK = {'k': kern}", "K['k'].inner(x)", "def inner(x): return {}"),
    "helper": ("from kern import outer", "outer(x)", "def inner(x): return {}\ndef outer(x): return inner(x)"),
    "method": ("from kern import Kernel", "Kernel().run(x)", "class Kernel:\n def run(self, x): return {}"),
    "base class": ("from kern import B", "B().run(x)", "class A:\n def run(self, x): return {}\nclass B(A): pass"),
    "property": ("from kern import A", "A().run", "class A:\n @property\n def run(self): return {}"),
    "static method": ("from kern import A", "A.run(x)", "class A:\n @staticmethod\n def run(x): return {}"),
    "object": ("from kern import call", "call(x)", "class K:\n def __call__(self, x): return {}\ncall = K()"),
    "state": ("from kern import k", "k.f", "class K:\n __slots__ = 'f',\nk = K()\nk.f = {}"),
    "bound method": ("from kern import bound", "bound(x)", "class K:\n def f(self): return {}\nbound = K().f"),
    "table": ("from kern import TABLE", "TABLE['a'](x)", "TABLE = dict(a=lambda x: {})"),
    "list": ("from kern import TABLE", "TABLE[0][1](x)", "TABLE = [(1, lambda x: {})]"),
    "set": ("from kern import TABLE", "x in TABLE", "TABLE = {{'one', 'two', 'six', ({},)}}"),
    "number": ("import kern", "kern.FACTOR * x", "FACTOR = {}"),
    "array": ("from kern import STEPS", "STEPS * x", "import numpy\nSTEPS = numpy.array([1, {}])"),
    "partial": ("from kern import p", "p(x)", "import functools\ndef f(a, x): return x\np = functools.partial(f, {})"),
    "cached": ("from kern import f", "f(x)", "import functools\n@functools.lru_cache\ndef f(x): return {}"),
    "closure": ("from kern import f", "f(x)", "def make(a):\n def f(x): return a\n return f\nf = make({})"),
    "default": ("from kern import f", "f(x)", "def f(x, a={}): return a"),
    "nested code": ("from kern import f", "f(x)", "def f(x): return [(lambda: {})() for _ in x]"),
    "import when it runs": ("", "__import_kern__", "def inner(x): return {}"),
    "name in a text": ("import kern", "getattr(kern, 'inner')(x)", "def inner(x): return {}"),
    "any name": ("import kern", "vars(kern)['in' + 'ner'](x)", "def inner(x): return {}"),
    "opaque object": ("import kern", "kern.lock", "import threading\nlock = threading.Lock()\n# {}"),
}


def written(folder, way, part):
    head, call, kern = WAYS[way]
    body = f"return {call}" if call != "__import_kern__" else "from kern import inner\n    return inner(x)"
    folder.mkdir(exist_ok=True)
    (folder / "kern.py").write_text(kern.format(part))
    (folder / "tuned.py").write_text(f"{head}\n\ndef run(x):\n    {body}\n")


def digests(folders):
    """Return the digest in each folder, of a new process."""
    program = (
        "import sys, json; from gridguard._dependencies import Dependencies; found = []\n"
        "for folder in sys.argv[1:]:\n"
        "    sys.path.insert(0, folder); import tuned; found.append(Dependencies(tuned.run).digest())\n"
        "    del sys.modules['tuned'], sys.path[0]; sys.modules.pop('kern', None)\n"
        "    from gridguard import _dependencies; _dependencies._package.cache_clear()\n"
        "print(json.dumps(found))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-B", "-c", program, *map(str, folders)], env=environment,
                         capture_output=True, text=True, check=True)  # fmt: skip
    return json.loads(ran.stdout)


def test_each_way_to_reach_what_was_edited_counts_and_nothing_else_does(tmp_path):
    for way in WAYS:
        written(tmp_path / way, way, "1")
        written(tmp_path / f"{way} edited", way, "2")
    found = dict(zip(WAYS, digests(tmp_path / way for way in WAYS)))
    assert dict(zip(WAYS, digests(tmp_path / way for way in WAYS))) == found, "the order of sets differs"
    edited = dict(zip(WAYS, digests(tmp_path / f"{way} edited" for way in WAYS)))
    assert [way for way in WAYS if edited[way] == found[way]] == []
    for way in WAYS:
        path = tmp_path / way / "tuned.py"
        path.write_text(f"# A comment.\n{path.read_text()}\ndef other(x): return 3\n")
    after = dict(zip(WAYS, digests(tmp_path / way for way in WAYS)))
    assert [way for way in WAYS if after[way] != found[way]] == ["any name"]


FACTOR, LOCK, _kernel = 2, threading.Lock(), None


def helper(x):
    return FACTOR * x


def compiled(x):
    global _kernel
    if _kernel is None:
        _kernel = object()
    return helper(x)


def test_what_is_replaced_in_the_process_counts(monkeypatch):
    dependencies = Dependencies(compiled)
    first = dependencies.digest()
    compiled(1)
    assert dependencies.digest() == first == Dependencies(compiled).digest(), "it compiles at its first call"
    for name, value in (("FACTOR", 3), ("helper", lambda x: x)):
        monkeypatch.setitem(globals(), name, value)
        assert dependencies.digest() != first
        monkeypatch.undo()
        assert dependencies.digest() == first
    monkeypatch.setattr(helper, "__code__", (lambda x: 3 * x).__code__)
    assert dependencies.digest() != first


def test_what_cannot_be_read_is_an_error():
    space = {"LOCK": LOCK}
    exec("def run(x): return LOCK", space)
    deep = []
    for _ in range(10_000):
        deep = [deep]
    for value in (space["run"], deep):
        with pytest.raises(UnreadableError):
            Dependencies(value).digest()
