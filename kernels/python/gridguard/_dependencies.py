"""Names everything that a function's result depends on, except for the elements of its arguments.

A function is read as Python runs it: its code, defaults and closure, the globals and attributes of modules that the code
names, and what these name. Installed packages count by the record of their files, compiled modules by their bytes, and
an object that cannot be read by the source of the module that names it.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gridguard import _native


class UnreadableError(Exception):
    """A function depends on something that cannot be read, so that a change would not be seen."""


class Dependencies:
    """What some values depend on, as it was at the first use of `digest`."""

    def __init__(self, *values: Any):
        self._values = values
        self._read: _Reader | None = None

    def digest(self) -> str:
        """Return the digest, read again once a function, class, module or global was replaced."""
        if self._read is None or not self._read.is_current():
            try:
                self._read = _Reader(self._values, _Reader(self._values, frozenset()).stored)
            except RecursionError:
                raise UnreadableError("it depends on objects that are nested too deeply to be read") from None
        return self._read.digest


class _Reader:
    """Reads values into a hash, the same in each process that imports the same code."""

    def __init__(self, values: Iterable[Any], stored: Iterable[tuple[str, str]]):
        self._hash = hashlib.sha256(repr(sys.version_info[:2]).encode())
        self._stored = frozenset(stored)
        self.stored: set[tuple[str, str]] = set()
        """Globals that the code itself assigns, for example a kernel that it compiles at its first call."""
        self._bindings: list[tuple[Any, Any, Any]] = []
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []
        # By their addresses, and kept alive.
        self._known: dict[int, tuple[int, Any]] = {}
        self._spaces: dict[int, tuple[int, dict[str, Any]]] = {}
        self._names: set[str] = set()
        self._file: str | None = None
        self._read_all("values", values)
        self._read_spaces()
        self.digest = self._hash.hexdigest()[:32]

    def is_current(self) -> bool:
        """Tell whether no function, class, module or global was replaced since."""
        # Each call of a tuned function asks: loops take half of the time of `all`.
        for holder, name, value in self._bindings:
            if holder.get(name, _NONE) is not value:
                return False
        for function, code in self._codes:
            if function.__code__ is not code:
                return False
        return True

    def _add(self, *texts: Any) -> None:
        self._hash.update(repr(texts).encode(errors="surrogatepass"))

    def _read(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            return self._add(kind.__name__, value)
        if kind in (set, frozenset):
            # Their order depends on the process.
            return self._add("set", sorted(_Reader([one], self._stored).digest for one in value))
        # Equal tuples may be one object or not.
        if kind is not tuple:
            if id(value) in self._known:
                return self._add("again", self._known[id(value)][0])
            self._known[id(value)] = (len(self._known), value)
        if isinstance(value, types.ModuleType):
            self._add_space(value.__name__, vars(value))
        elif isinstance(value, types.FunctionType):
            self._read_function(value)
        elif isinstance(value, type):
            self._read_class(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self._add("builtin", value.__qualname__, _package(value.__module__ or "builtins"))
            if not isinstance(value.__self__, (types.ModuleType, type(None))):
                self._read(value.__self__)
        elif kind in (tuple, list):
            self._read_all("sequence", value)
        elif kind is dict:
            self._bindings += [(value, name, one) for name, one in value.items()]
            self._read_all("mapping", (part for pair in value.items() for part in pair))
        else:
            self._read_object(value)

    def _read_all(self, kind: str, values: Iterable[Any]) -> None:
        self._add(kind)
        for value in values:
            self._read(value)
        self._add("end")

    def _add_space(self, name: str, space: dict[str, Any]) -> bool:
        """Note the globals of a module, to read those that any code names. Installed packages count as a whole."""
        package = _package(name)
        if package is None:
            self._spaces.setdefault(id(space), (len(self._spaces), space))
        self._add("module", package)
        return package is None

    def _read_spaces(self) -> None:
        """Read the globals that any code names. They may name more."""
        done: set[tuple[int, str]] = set()
        before = -1
        while before < len(done):
            before = len(done)
            for place, space in [*self._spaces.values()]:
                self._file = space.get("__file__")
                named = [*space] if self._names & _DYNAMIC else self._names & space.keys()
                for name in sorted(named):
                    is_state = (space.get("__name__", ""), name) in self._stored
                    if name.startswith("__") or is_state or (place, name) in done:
                        continue
                    done.add((place, name))
                    self._bindings.append((space, name, space[name]))
                    self._add("global", place, name)
                    self._read(space[name])

    def _read_function(self, function: types.FunctionType) -> None:
        self._codes.append((function, function.__code__))
        space, before = function.__globals__, self._file
        self._file = space.get("__file__")
        cells = [cell for cell in function.__closure__ or () if cell != types.CellType()]
        parts = (function.__defaults__, function.__kwdefaults__, function.__dict__)
        self._read_all("function", (*parts, *(cell.cell_contents for cell in cells)))
        is_source = self._add_space(space.get("__name__", ""), space)
        for code in _codes(function.__code__) if is_source else ():
            constants = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
            self._read_all("code", (code.co_code, code.co_names, code.co_varnames, code.co_freevars, *constants))
            # A text may be a name for `getattr`.
            self._names |= {*code.co_names, *(one for one in constants if isinstance(one, str) and one.isidentifier())}
            steps = [*dis.get_instructions(code)]
            stored = {(space.get("__name__", ""), one.argval) for one in steps if one.opname == "STORE_GLOBAL"}
            self.stored |= stored
            for module in _imported(steps, space):
                self._read(module)
        self._file = before

    def _read_class(self, value: type) -> None:
        package = _package(value.__module__)
        self._add("class", value.__qualname__, package)
        if package is None:
            self._read_all("bases", (*value.__bases__, type(value)))
            for name, member in vars(value).items():
                if name not in _NO_MEMBERS and not isinstance(member, _DESCRIPTORS):
                    self._bindings.append((vars(value), name, member))
                    self._add("member", name)
                    self._read(member)

    def _read_object(self, value: Any) -> None:
        self._read(type(value))
        is_source = _package(type(value).__module__) is None
        if is_array(value):
            is_host = type(value).__module__ == "numpy" and not value.dtype.hasobject
            return self._add("array", tuple(value.shape), str(value.dtype), value.tobytes() if is_host else None)
        if isinstance(value, ctypes.CDLL):
            return self._add("library", _bytes_of(Path(value._name)) or value._name)
        if not is_source and any(hasattr(value, name) for name in _CODE):
            found = {name: getattr(value, name) for name in (*_CODE, *_BESIDE_CODE) if hasattr(value, name)}
            return self._read(found)
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            reduced = None
        if reduced is None:
            self._add("opaque", self._source(type(value)))
        elif isinstance(reduced, str):
            self._add("name", reduced)
            self._read(getattr(value, "__dict__", None) if is_source else None)
        else:
            self._read_all("object", (list(part) if isinstance(part, Iterator) else part for part in reduced))

    def _source(self, kind: type) -> bytes:
        """Return the source of the module that names an object of this type, which cannot be read."""
        source = self._file and _bytes_of(Path(self._file))
        if not source:
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise UnreadableError(f"it depends on an object of type {name}, which cannot be read")
        return source


def is_array(value: Any) -> bool:
    """Tell whether a value is an array of NumPy, CuPy, Numba or PyTorch."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__setitem__")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _imported(steps: list[dis.Instruction], space: dict[str, Any]) -> Iterator[types.ModuleType]:
    """Yield the modules that code imports when it runs."""
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = next(one.argval for one in reversed(steps[:place]) if type(one.argval) is int)
            try:
                name = importlib.util.resolve_name("." * level + step.argval, space.get("__package__"))
                yield importlib.import_module(name)
            except ImportError:
                continue  # the code raises or handles it


@functools.cache
def _package(name: str) -> str | None:
    """Return the version of the installed package of a module, or of compiled code; None for source code."""
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if top == __name__.partition(".")[0]:
        return _native.__version__
    if top in sys.stdlib_module_names and (file is None or file.startswith(sysconfig.get_path("stdlib"))):
        return "Python"
    if file is None:
        return None
    path = Path(file)
    depth = name.count(".") + (path.stem == "__init__")
    if depth < len(path.parents):
        root = path.parents[depth]
        line = f"\n{path.relative_to(root).as_posix()},".encode()
        for record in root.glob("*.dist-info/RECORD"):
            text = b"\n" + (_bytes_of(record) or b"")
            if line in text:
                return hashlib.sha256(text).hexdigest()
    return None if path.suffix == ".py" else hashlib.sha256(_bytes_of(path) or b"").hexdigest()


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


_NONE = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
# Code that uses them may reach any name.
_DYNAMIC = frozenset({"globals", "vars", "eval", "exec", "__dict__", "__import__", "import_module"})
# What objects of installed packages stand for: kernels of Triton, Numba and CuPy, tuned and cached functions, methods.
_CODE = ("fn", "py_func", "code", "function", "__wrapped__", "func", "fget", "__func__")
_BESIDE_CODE = ("options", "name", "configs", "args", "keywords", "fset", "__self__")
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_NO_MEMBERS = frozenset({"__doc__", "__module__", "__annotations__", "__annotate__", "__firstlineno__",
                         "__static_attributes__", "_abc_impl", "__orig_bases__", "__parameters__"})  # fmt: skip
