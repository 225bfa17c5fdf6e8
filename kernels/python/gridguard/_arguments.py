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


def whole(name: str, value: Any, least: int = 0, accepted: str = "a whole number") -> int:
    """Return an integer of at least `least`. Raise ValueError for other numbers, TypeError for other objects."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}: pass {accepted}")
    try:
        number = operator.index(value)
    except TypeError:
        # Not `isinstance(value, float)`: most floats of NumPy are no subclass.
        if not callable(getattr(value, "is_integer", None)):
            raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: pass {accepted}") from None
        if not value.is_integer():
            raise ValueError(f"{name} is {value!r}: pass {accepted}") from None
        number = int(value)
    if not least <= number <= _MAX:
        raise ValueError(f"{name} is {number}: pass {accepted} from {least} to {_MAX}")
    return number


def size_in_bytes(name: str, value: Any, least: int = 0) -> int:
    """Return a number of bytes from a number or a text: `100`, `100KiB` or `2Gi`. `K` without an `i` is 1000."""
    accepted = 'a whole number of bytes or a text such as "2GiB"'
    if isinstance(value, str):
        try:
            value = _native.parse_bytes(value)
        except ValueError as error:
            raise ValueError(f"{name} is {value!r} ({error}): pass {accepted}") from error
    return whole(name, value, least, accepted)


def seconds(name: str, value: Any) -> float:
    """Return a positive number of seconds."""
    if isinstance(value, (bool, str)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: pass a positive number of seconds")
    number = float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}: pass a positive number of seconds")
    return number
