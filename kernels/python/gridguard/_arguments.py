"""Converts numeric arguments for the native module. Errors name the argument, its value and the accepted values."""

from __future__ import annotations

import math
import operator
from typing import Any, SupportsIndex

from gridguard import _native

Number = SupportsIndex | float
"""An integer, also of NumPy, or a float without a fraction."""
Bytes = Number | str
"""A number of bytes, or a text, for example "2GiB"."""

_MAX = 2**64 - 1


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return an integer of at least `least`. Raise ValueError for other numbers, TypeError for other objects."""
    return _whole(name, value, least, "a whole number")


def size_in_bytes(name: str, value: Any, least: int = 0) -> int:
    """Return a number of bytes from a number or a text: `100`, `100KiB` or `2Gi`. `K` without an `i` is 1000."""
    taken = 'a whole number of bytes or a text such as "2GiB"'
    if not isinstance(value, str):
        return _whole(name, value, least, taken)
    try:
        number = _native.parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name} is {value!r} ({error}): pass {taken}") from error
    return _whole(name, number, least, taken)


def seconds(name: str, value: Any) -> float:
    """Return a positive number of seconds."""
    if isinstance(value, (bool, str)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: pass a positive number of seconds")
    number = float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}: pass a positive number of seconds")
    return number


def _whole(name: str, value: Any, least: int, taken: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}: pass {taken}")
    try:
        number = operator.index(value)
    except TypeError:
        # Not `isinstance(value, float)`: most floats of NumPy are no subclass.
        if not callable(getattr(value, "is_integer", None)):
            raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: pass {taken}") from None
        if not value.is_integer():
            raise ValueError(f"{name} is {value!r}: pass {taken}") from None
        number = int(value)
    if not least <= number <= _MAX:
        raise ValueError(f"{name} is {number}: pass {taken} from {least} to {_MAX}")
    return number
