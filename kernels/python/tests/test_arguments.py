"""Tests of numeric arguments. Needs neither PyTorch nor a GPU."""

from __future__ import annotations

import math

import pytest

import gridguard
from gridguard import Batch, GridguardError, _arguments, _native


class Index:
    """Like an integer of NumPy, which is no `int`."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Float(float):
    """Like a float of NumPy, which is a `float` or only looks like one."""


def numbers(value):
    """Return a whole number in each accepted type."""
    yield from (value, Index(value), float(value), Float(value))
    try:
        import numpy
    except ImportError:
        return
    yield from (numpy.int64(value), numpy.uint64(value), numpy.float32(value), numpy.float64(value), numpy.array(value))


def test_whole_numbers_of_every_type_are_accepted():
    for number in numbers(4096):
        found = _arguments.whole("it", number)
        assert (found, type(found)) == (4096, int)
        assert _arguments.size_in_bytes("it", number) == 4096
    for text, size in (("4096", 4096), ("2GiB", 2 << 30), ("2Gi", 2 << 30), ("48 KiB", 48 << 10), ("1K", 1000)):
        assert _arguments.size_in_bytes("it", text) == size


def test_each_number_of_a_check_may_have_any_type():
    whole = gridguard.check((1, 76_800), 128, gpu="h200", batch=Batch("y", 15_360, 5), dynamic_shared_bytes=65_536)
    assert whole.legality == "chunked"
    for rows, items, size, per, shared in zip(*map(numbers, (76_800, 15_360, 128, 5, 65_536))):
        for grid in ((1, rows), [1.0, rows]):
            options = {"batch": Batch("y", items, per), "dynamic_shared_bytes": shared}
            assert gridguard.check(grid, size, gpu="h200", **options) == whole
    for text in ("64KiB", "64 Ki", "65536"):
        options = {"batch": Batch("y", 15_360, 5), "dynamic_shared_bytes": text}
        assert gridguard.check((1, 76_800), 128, gpu="h200", **options) == whole
    for most in numbers(256):
        assert not gridguard.check(1, 512, gpu="h200", kernel={"max_threads_per_block": most})
    for size in (*numbers(2), [Index(2), 1]):
        assert not gridguard.check(1, 32, gpu="t4", cluster=size)
    assert not gridguard.check(1, 32, gpu="h200", parameter_bytes="40KiB")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.5, ValueError, "it is 1.5: pass a whole number of bytes or a text such as \"2GiB\""),
        (math.nan, ValueError, "it is nan: pass a whole number of bytes or a text such as \"2GiB\""),
        (0, ValueError, f'it is 0: pass a whole number of bytes or a text such as "2GiB" from 1 to {2**64 - 1}'),
        (-1.0, ValueError, f'it is -1: pass a whole number of bytes or a text such as "2GiB" from 1 to {2**64 - 1}'),
        ("0", ValueError, f'it is 0: pass a whole number of bytes or a text such as "2GiB" from 1 to {2**64 - 1}'),
        (True, TypeError, 'it is True: pass a whole number of bytes or a text such as "2GiB"'),
        ([1], TypeError, 'it is [1], a list: pass a whole number of bytes or a text such as "2GiB"'),
        (None, TypeError, 'it is None, a NoneType: pass a whole number of bytes or a text such as "2GiB"'),
        (b"1", TypeError, "it is b'1', a bytes: pass a whole number of bytes or a text such as \"2GiB\""),
    ],
)
def test_an_invalid_size_is_an_error_that_names_the_accepted_values(value, error, text):
    with pytest.raises(error) as found:
        _arguments.size_in_bytes("it", value, 1)
    assert str(found.value) == text


def test_an_invalid_text_is_an_error_with_its_reason():
    for text in ("", "many", "2 giblets", "-1"):
        with pytest.raises(ValueError, match='^it is .*: pass a whole number of bytes or a text such as "2GiB"$'):
            _arguments.size_in_bytes("it", text)
        with pytest.raises(ValueError):
            _native.parse_bytes(text)


NO_GPU = ' is 0: pass a name such as "h200", or a device of this machine by device=0$'


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: gridguard.check(-1, 32), "grid is -1: pass a whole number from 0"),
        (lambda: gridguard.check(2**65, 32), "grid is 36893488147419103232: pass a whole number from 0"),
        (lambda: gridguard.check("x", 32), "grid is 'x', a str: pass a whole number$"),
        (lambda: gridguard.check(1, 32.5), "block is 32.5: pass a whole number$"),
        (lambda: gridguard.check(1, [32, None]), "block is None, a NoneType: pass a whole number$"),
        (lambda: gridguard.check((), 32), "grid has 0 numbers: pass one to three, along x, y and z$"),
        (lambda: gridguard.check(1, 1, cluster=(1, 1, 1, 1)), "cluster has 4 numbers: pass one to three, along x, y and z$"),
        (lambda: gridguard.check(1, 1, kernel={"registers": 1}), "unknown field `registers`, expected one of .*`index`$"),
        (lambda: gridguard.check(1, 1, kernel={"max_threads_per_block": 0.5}),
         r"kernel\['max_threads_per_block'\] is 0.5: pass a whole number$"),
        (lambda: gridguard.check(1, 1, batch=Batch("w", 1)), "batch.axis is 'w': pass 'x', 'y' or 'z'$"),
        (lambda: gridguard.check(1, 1, batch=Batch("x", -1)), "batch.items is -1: pass a whole number from 0"),
        (lambda: gridguard.plan(1, 1, Batch("x", 0.5)), "batch.items is 0.5: pass a whole number$"),
        (lambda: gridguard.check(1, 1, gpu=0), f"gpu{NO_GPU}"),
        (lambda: gridguard.limits(0), f"gpu{NO_GPU}"),
        (lambda: gridguard.limits("rtx-2080-mobile"), 'no GPU "rtx-2080-mobile" in the catalogue: use 7.5, its compute'),
        (lambda: gridguard.check(1, 1, gpu="h999"), 'no GPU "h999" in the catalogue: use its compute'),
        (lambda: gridguard.limits("h200", device=0), "gpu and device exclude each other: pass one, not both$"),
        (lambda: gridguard.limits(device="cuda:0"), "device is 'cuda:0', a str: pass a whole number$"),
        (lambda: gridguard.explain(700), "text is 700, of type int: pass a str"),
        (lambda: gridguard.explain("700", device=-1), f"device is -1: pass a whole number from 0 to {2**64 - 1}$"),
        (lambda: gridguard.doctor("true", timeout="2 s"), "timeout is '2 s', a str: pass a positive number of seconds$"),
        (lambda: gridguard.doctor("true", timeout=-1), "timeout is -1: pass a positive number of seconds$"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(function, text):
    with pytest.raises((TypeError, ValueError), match=f"^{text}"):
        function()


def test_a_device_ordinal_may_have_any_type():
    for ordinal in numbers(4000):
        # No such device exists; without a driver the error says so.
        with pytest.raises(GridguardError):
            gridguard.limits(device=ordinal)


def test_tuning_checks_its_numbers():
    from gridguard import _tuning

    for options in ({"device": 0.5}, {"device": "0"}, {"time_limit": "90s"}, {"time_limit": 0}, {"time_limit": math.nan}):
        with pytest.raises((TypeError, ValueError), match=f"^{next(iter(options))} is .*: pass a "):
            _tuning.tune("no-such-command", **options)
    for device, limit in zip(numbers(1), numbers(90)):
        assert _tuning.tune("no-such-command", device=device, time_limit=limit).tuned == 0
