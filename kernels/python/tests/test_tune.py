"""Tests of `gridguard.tune` on the host. Needs NumPy, but no GPU and no PyTorch."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

import gridguard

EXAMPLE = Path(__file__).parents[3] / "examples" / "10_tune.py"


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Import the functions anew, with a profile folder of their own; the argument is the list of blocks."""
    monkeypatch.setenv("GRIDGUARD_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("TUNED_LOG", str(tmp_path / "log"))

    def load(blocks="16,4,64"):
        monkeypatch.setenv("TUNED_BLOCKS", blocks)
        sys.modules.pop("tuned_functions", None)
        import tuned_functions

        return tuned_functions

    yield load
    sys.modules.pop("tuned_functions", None)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write modules, and import the first one anew."""
    monkeypatch.setenv("GRIDGUARD_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = set()

    def write(**modules):
        written.update(modules)
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(modules)))

    yield write
    for name in written:
        sys.modules.pop(name, None)


def blocks_that_ran(tmp_path):
    log = tmp_path / "log"
    text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    return {int(line) for line in text.split()}


def arrays(items=1000):
    return numpy.arange(items, dtype=numpy.float32), numpy.zeros(items, dtype=numpy.float32)


def test_a_function_is_tuned_and_later_calls_pass_the_choice(functions, tmp_path):
    double = functions().double
    x, y = arrays()
    assert double.values(x, y) == {"chunk": 1000, "BLOCK": 16}
    tuned = double.tune(x, y)
    assert tuned.complete and tuned.failures == () and tuned.candidates == 3 * 11
    assert tuned.profile.parent == tmp_path / "profiles" and 'tolerance: "0"' in tuned.profile.read_text()
    assert not y.any(), "the child has copies of the arguments"
    assert double.values(x, y) == tuned.values
    assert double.values(*arrays(1001)) == {"chunk": 1001, "BLOCK": 16}
    double(x, y)
    assert (y == 2 * x).all()
    assert double.values(x.astype("f8"), y) == {"chunk": 1000, "BLOCK": 16}, "other types"


def test_a_wrong_candidate_never_wins(functions):
    tuned = functions("8,7").double.tune(*arrays(2))
    assert tuned.values["BLOCK"] == 8
    assert len(tuned.failures) == 2 and all("the tolerance is 0" in failure for failure in tuned.failures)


def test_a_changed_list_measures_only_what_is_new(functions, tmp_path):
    x, y = arrays(1)
    first = functions("16,8,7").double.tune(x, y)
    assert (first.values["BLOCK"], first.known) == (16, 0)
    assert blocks_that_ran(tmp_path) == {16, 8, 7}
    same = functions("16,8,7").double.tune(x, y)
    assert same.values == first.values and blocks_that_ran(tmp_path) == set()
    more = functions("16,8,7,4").double.tune(x, y)
    # 8 is known to be slow, and 7 to be wrong.
    assert more.known == 2 and blocks_that_ran(tmp_path) == {16, 4}


def test_a_list_in_the_source_may_change(write):
    def tuned(blocks):
        text = "import gridguard\n\n@gridguard.tune(BLOCK=[{})\ndef same(x, *, BLOCK):\n    return BLOCK // 8 * x\n"
        return write(listed=text.format(blocks)).same.tune(numpy.ones(4)).known

    # Block 16 gives another output, and is not run again, unless that may change.
    assert [tuned(blocks) for blocks in ("8, 16]", "8, 16, 9]")] == [0, 1]
    # Block 9 does the same work as block 8, and may be slower on a busy machine: it is known too then.
    assert tuned("8, 9, 16]") >= 1
    for more in ("timeout=30", "reference=lambda x: 1 * x", "reference=lambda x: 2 * x / 2"):
        assert [tuned(f"{blocks}], {more}") for blocks in ("8, 16", "8, 16, 9")] == [0, 1]


KERNEL = """
import time

def copy(x, y, block):
    whole = len(x) // block * block
    y[:whole] = {} * x[:whole]
    if block == 1:
        time.sleep(0.003)
"""
COPY = """
import gridguard, kern

@gridguard.tune(BLOCK=[1, 8], outputs=["y"]{})
def copy(x, y, *, BLOCK=0):
    kern.copy(x, y, BLOCK)
"""


def test_a_choice_serves_other_sizes_only_if_where_allows_them(write, caplog):
    exact, multiples = {16: 8}, {16: 8, 24: 8, 32: 8}
    for where, expected in {
        "": exact,
        ", where=lambda BLOCK, most=8: BLOCK <= most": exact,
        ", where=lambda BLOCK, x_0: x_0 % BLOCK == 0": multiples,
        ", where=lambda **all: all['y_0'] % all['BLOCK'] == 0": multiples,
    }.items():
        copy = write(tuned=COPY.format(where), kern=KERNEL.format(1)).copy
        copy.tune(*arrays(16))
        caplog.clear()
        for items in (16, 17, 24, 31, 32, 40, 16, 17):
            x, y = arrays(items)
            assert copy.values(x, y)["BLOCK"] == expected.get(items, 1)
            copy(x, y)
            assert (x == y).all()
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1 and "at other sizes than the tuned ones" in said[0]


def test_after_an_edit_the_default_runs_and_a_search_measures_anew(write, caplog):
    modules = {"tuned": COPY.format(""), "kern": KERNEL.format(1)}
    copy = write(**modules).copy
    assert copy.tune(*arrays(16)).values == copy.values(*arrays(16)) == {"BLOCK": 8}
    assert write(**modules).copy.values(*arrays(16)) == {"BLOCK": 8}
    # Block 8 is wrong now.
    copy = write(tuned=COPY.format(""), kern=KERNEL.format("(3 - block // 4)")).copy
    x, y = arrays(16)
    copy(x, y)
    assert (y == 3 * x).all() and "was edited since it was tuned" in caplog.text
    again = copy.tune(x, y)
    assert again.values == {"BLOCK": 1} and "the output differs" in again.failures[0]
    # What the program replaces is not what the child imports.
    sys.modules["kern"].copy = lambda x, y, block: None
    assert copy.values(x, y) == {"BLOCK": 1}
    with pytest.raises(gridguard.TuneError, match="are not what a new process imports"):
        copy.tune(x, y)


PROGRAM = """
import pickle, sys, threading
import gridguard, numpy
from . import kern

class Scaler:
    def __init__(self, factor):
        self.factor = factor

    @gridguard.tune(BLOCK=[1, 2], outputs=["y"])
    def run(self, x, y, *, BLOCK=0):
        "Scale."
        y[:] = kern.scale(self.factor, x) / len(sys.argv[1])

if __name__ == "__main__":
    scaler, x, y = Scaler(3), numpy.array([0, numpy.nan, numpy.inf]), numpy.zeros(3)
    found = [None, None]
    def tune(place):
        found[place] = scaler.run.tune(x, y)
    threads = [threading.Thread(target=tune, args=(place,)) for place in range(2)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    print(found[0].values == found[1].values == scaler.run.values(x, y), [one.failures for one in found])
    scaler.run(x, y)
    copy = pickle.loads(pickle.dumps(scaler)).run
    print(y, copy.values(x, y) == found[0].values, Scaler(4).run.values(x, y), Scaler.run.__doc__)
    print(pickle.loads(pickle.dumps(Scaler.run)) is Scaler.run, pickle.loads(pickle.dumps(copy)).values(x, y).keys())
    try:
        scaler.run.tune(numpy.zeros(2), numpy.zeros(2), time_limit=0.001)
    except gridguard.TuneError as error:
        print(error)
"""


def test_a_method_of_a_module_that_runs_as_a_program_is_tuned(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text(PROGRAM)
    (tmp_path / "pkg" / "kern.py").write_text("def scale(factor, x):\n    return factor * x\n")
    environment = {**os.environ, "GRIDGUARD_PROFILES": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-m", "pkg.mod", "argument"], env=environment,
                         cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.stdout.splitlines()[:3] == [
        "True [(), ()]",
        "[ 0. nan inf] True {'BLOCK': 1} Scale.",
        "True dict_keys(['BLOCK'])",
    ], ran.stderr


def test_unwritten_elements_are_found_beside_outputs_that_are_no_numbers(write):
    text = (
        "import gridguard, numpy\n@gridguard.tune(BLOCK=[{}], outputs=['y'])\n"
        "def f(x, y, *, BLOCK=0):\n    y[BLOCK:] = numpy.nan\n    y[:BLOCK // 2] = 1\n"
    )
    tuned = write(unwritten=text.format("0, 1, 2, 3")).f.tune(*arrays(4))
    assert [failure.split(": ")[1] for failure in tuned.failures] == ["the output differs from the default's"] * 3
    with pytest.raises(gridguard.TuneError, match="the default's second run gave another output"):
        write(unwritten=text.format("1, 0")).f.tune(*arrays(4))


def test_only_the_function_is_timed(write):
    text = "import gridguard\n@gridguard.tune(BLOCK=[1, 2])\ndef f(x, *, BLOCK=0):\n    return x\n"
    # Some hundred nanoseconds; a look-up of a library that is missing takes 30 us.
    assert write(timed=text).f.tune(numpy.ones(4)).seconds < 10e-6


def test_where_drops_candidates_before_they_run(functions, tmp_path):
    functions("16,128").double.tune(*arrays(1))
    assert blocks_that_ran(tmp_path) == {16}


def test_an_entry_for_other_lists_is_not_used(functions):
    x, y = arrays(1)
    assert functions("8,4").double.tune(x, y).values["BLOCK"] == 4
    assert functions("16,2").double.values(x, y) == {"chunk": 1, "BLOCK": 16}


def test_updates_are_restored_and_tolerances_allow(functions):
    x = numpy.ones(4)
    assert functions().add_one.tune(x).failures == () and (x == 1).all()
    tuned = functions().close.tune(x)
    assert tuned.failures == () and 'tolerance: "1e-1"' in tuned.profile.read_text()


def test_traffic_and_operations_are_those_of_a_call(write):
    text = """
import gridguard

@gridguard.tune(BLOCK=[1, 2], bytes=lambda x_0: 8 * x_0, flops=1000)
def double(x, *, BLOCK):
    return 2 * x

@gridguard.tune(BLOCK=[1, 2], bytes=0)
def nothing(x, *, BLOCK):
    return 2 * x
"""
    module = write(traffic=text)
    x, _ = arrays()
    tuned = module.double.tune(x)
    assert tuned.attained_percent is not None
    assert tuned.flops_per_second == pytest.approx(1000 / tuned.seconds)
    with pytest.raises(ValueError, match="bytes is 0"):
        module.nothing.tune(x)


def test_a_reference_also_judges_the_default(functions):
    with pytest.raises(gridguard.TuneError, match="output differs from the reference: in array 0") as error:
        functions().wrong.tune(numpy.ones(4))
    assert error.value.kind == "mismatch"


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raises", "launch", "it raised ValueError: no such block"),
        ("raises much", "launch", "it raised ValueError: a long text a long"),
        ("raises bytes", "launch", "it raised ValueError: no file ?"),
        ("exits", "launch", "it raised SystemExit: 7"),
        ("exits at once", "crash", "the measuring process died (exit status: 0)"),
        ("tunes", "launch", "the program tunes when it is imported, or in a tuned function"),
        ("hangs", "timeout", "did not respond within 5s"),
        ("crashes", "crash", "the measuring process died"),
        ("forks", "launch", "it forked"),
        ("changes", "mismatch", "it changed its input x: name it in `outputs`"),
        ("returns nothing", "launch", "it returned no output"),
        ("returns less", "mismatch", "float64 [3] is not float64 [4]"),
        ("returns text", "launch", "str is no array"),
    ],
)
def test_a_hostile_candidate_fails_and_a_hostile_default_is_an_error(functions, how, kind, text):
    x, name = numpy.ones(4), "hanging" if how == "hangs" else "hostile"
    tuned = getattr(functions(), name).tune(x, how)
    assert tuned.values == {"BLOCK": 0} and len(tuned.failures) == 1
    if how == "returns less":
        return
    assert text in tuned.failures[0]
    with pytest.raises(gridguard.TuneError) as error:
        getattr(functions(), name).tune(x, f"{how}!")
    assert error.value.kind == kind and text in str(error.value)
    assert (x == 1).all()


def wait_until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_search_that_is_stopped_ends_its_process_and_the_next_one_resumes(functions, tmp_path, how):
    functions()
    halted = tmp_path / "halted"
    # Shells start background jobs with an ignored SIGINT, which Python then leaves ignored.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import numpy, tuned_functions; tuned_functions.halting.tune(numpy.ones(4))"
    )
    environment = {**os.environ, "TUNED_HALT": str(halted), "PYTHONPATH": os.pathsep.join(sys.path)}
    # The killed tuner leaves its copy of the arguments.
    environment["TMPDIR"] = str(tmp_path)
    tuner = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: halted.exists() and halted.read_text().endswith("\n"))
    state = Path("/proc", halted.read_text().strip(), "stat")
    tuner.send_signal(how)
    # Long before the time limit of the request, which sleeps.
    _, printed = tuner.communicate(timeout=30)
    assert tuner.returncode == -how
    assert how == signal.SIGKILL or printed.rstrip().endswith("KeyboardInterrupt")
    # A zombie of a container without an init process stays.
    wait_until(lambda: not state.exists() or ") Z " in state.read_text())
    blocks_that_ran(tmp_path)
    tuned = functions().halting.tune(numpy.ones(4))
    # Block 2 is known to fail.
    assert tuned.complete and len(tuned.failures) == 1 and blocks_that_ran(tmp_path) == {1, 3}


def test_calls_of_any_size_and_number_get_values(functions):
    double = functions().double
    x, y = arrays(4)
    double(x[:0], y[:0])
    with pytest.raises(ValueError, match="there are no items"):
        double.tune(x[:0], y[:0])
    add = gridguard.tune(BLOCK=[1, 2])(lambda x, n=0, *, BLOCK: BLOCK)
    assert [add(x, n) for n in (2**64 - 1, 2**64, 2**70, -(2**70))] == [1] * 4
    for scale in range(5000):
        add(x, float(scale))
    assert len(add._found) <= 4096


def test_a_function_may_print(functions):
    tuned = functions().hostile.tune(numpy.ones(4), "prints")
    assert tuned.failures == ()


def test_what_no_child_can_run_is_an_error(functions):
    x = numpy.ones(4)
    local = gridguard.tune(BLOCK=[1])(lambda x, *, BLOCK: x)
    with pytest.raises(gridguard.TuneError, match="define it at the top of a file"):
        local.tune(x)
    with pytest.raises(gridguard.TuneError, match="cannot be pickled"):
        functions().hostile.tune(x, lambda: None)


class Callable:
    def __call__(self, x, *, BLOCK):
        """Return x."""
        return x

    async def asynchronous(self, x, *, BLOCK):
        """Return x."""
        return x

    def generator(self, x, *, BLOCK):
        """Yield x."""
        yield x

    async def generator_of_both(self, x, *, BLOCK):
        """Yield x."""
        yield x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        *((one, "is no function that `def` defines") for one in (len, max, int, numpy.add, numpy.zeros(3).sum, 3)),
        *((one, "is no function that `def` defines") for one in (Callable, Callable(), Callable().generator)),
        (functools.partial(lambda x, *, BLOCK: x, 1), "is no function that `def` defines"),
        (staticmethod(lambda x, *, BLOCK: x), "is no function that `def` defines"),
        *((one, "runs after its call returns") for one in vars(Callable).values() if inspect.isfunction(one)),
    ],
)
def test_what_is_no_ordinary_function_is_refused(function, text):
    if function is Callable.__call__:
        assert gridguard.tune(BLOCK=[1])(function).__name__ == "__call__"
        return
    with pytest.raises(TypeError, match=text):
        gridguard.tune(BLOCK=[1])(function)


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (ValueError, "nothing varies", gridguard.tune),
        (ValueError, "BLOCK has no values", lambda: gridguard.tune(BLOCK=[])),
        (ValueError, "has no parameter BLOCK", lambda: gridguard.tune(BLOCK=[1])(lambda x: x)),
        (ValueError, "BLOCK has a value twice", lambda: gridguard.tune(BLOCK=[1, 2, 1])),
        (TypeError, "BLOCK is 'a'", lambda: gridguard.tune(BLOCK=["a"])),
        (TypeError, 'chunk is 4: pass "auto" or a list of numbers of items', lambda: gridguard.tune(chunk=4)),
        (TypeError, "chunk is 'half': pass \"auto\"", lambda: gridguard.tune(chunk="half")),
        (ValueError, "has 0 sizes", lambda: gridguard.tune(BLOCK=[1])(lambda x, *, BLOCK: x)(None)),
        (ValueError, "a size and a value named BLOCK",
         lambda: gridguard.tune(BLOCK=[1], sizes=lambda x: {"BLOCK": 3})(lambda x, *, BLOCK: x)(3)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(error, text, call):
    with pytest.raises(error, match=text):
        call()


def test_errors_are_pickled_with_their_attributes():
    for kind in (gridguard.TuneError, gridguard.GridguardError, gridguard.UnavailableError):
        error = kind("text", "timeout")
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args, vars(copy)) == (type(error), error.args, vars(error))


def test_the_example_tunes_itself(tmp_path):
    environment = {**os.environ, "GRIDGUARD_PROFILES": str(tmp_path)}
    ran = subprocess.run([sys.executable, EXAMPLE], env=environment, capture_output=True, text=True, check=True)
    assert "times as fast as" in ran.stdout and ran.stderr == ""


def test_a_program_that_tunes_when_it_is_imported_is_told(tmp_path):
    program = tmp_path / "program.py"
    text = EXAMPLE.read_text().replace('if __name__ == "__main__":', "if True:")
    program.write_text(text)
    environment = {**os.environ, "GRIDGUARD_PROFILES": str(tmp_path)}
    ran = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "the program tunes when it is imported" in ran.stderr
