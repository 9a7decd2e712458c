"""One report, as of a single process: lines, options, files, exit statuses, warnings."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

MIXED = """
import pytest

pytestmark = {mark}

def test_passes(record_property):
    record_property("answer", 42)

def test_fails():
    assert 1 == 2

@pytest.fixture
def broken():
    raise OSError("no set-up")

@pytest.fixture
def breaks():
    yield
    raise OSError("no tear-down")

def test_error(broken): pass

def test_late_error(breaks): pass

@pytest.mark.skip(reason="not now")
def test_skipped(): pass

def test_skips():
    pytest.skip("nor here")

@pytest.mark.xfail(reason="known")
def test_xfails():
    assert 1 == 2

@pytest.mark.xfail(reason="mended")
def test_xpasses(): pass

@pytest.mark.xfail(strict=True, reason="mended")
def test_xpasses_strictly(): pass

class TestClass:
    @pytest.mark.slow
    @pytest.mark.parametrize("value", [1, 2, 3])
    def test_value(self, value):
        assert value != 2
"""
PLAIN, STATIC = MIXED.format(mark="[]"), MIXED.format(mark="pytest.mark.multigpu_static")
INI = "[pytest]\nmarkers = slow\njunit_family = xunit1\n"


@pytest.fixture
def run_both(run_tests, pytester):
    """Runs a file as a single process does, and on two ranks, each from a fresh cache."""
    pytester.makeini(INI)

    def run(*options):
        plain = run_tests(PLAIN, *options, "--cache-clear")
        done = run_tests(STATIC, *options, "--cache-clear", "--multigpu-static")
        return plain, done

    return run


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["-v", "-rA", "--durations=3", "--durations-min=60"], 1),
        (["-q", "--maxfail=2", "--tb=line"], 1),
        (["-k", "value or test_passes", "-m", "not slow", "-ra"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_report_of_two_ranks_is_that_of_one(run_both, options, status):
    plain, done = run_both(*options)
    assert plain.status == done.status == status
    assert done.outcomes == plain.outcomes
    assert _comparable(done.out) == _comparable(plain.out)


def _comparable(text):
    """The text without times, the names of ranks and addresses of objects."""
    text = re.sub(r" in \d+\.\d+s|=+|0x[0-9a-f]+|on ranks 0-1: ?", "", text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_junit_file_is_that_of_one_process(pytester, traces):
    pytester.makeini(INI)
    trees = []
    for source, options in ((PLAIN, []), (STATIC, ["--multigpu-static"])):
        pytester.makepyfile(test_it=source)
        pytester.runpytest_subprocess("--junitxml=report.xml", *options, timeout=60)
        root = ElementTree.parse(pytester.path / "report.xml")
        trees.append([_described(element) for element in root.iter()])
    plain, static = trees
    assert ("property", {"name": "answer", "value": "42"}) in static
    assert static == plain


def _described(element):
    own = {key: value for key, value in element.items() if key not in ("time", "timestamp")}
    if "message" in own:
        own["message"] = own["message"].replace("on ranks 0-1: ", "")
    return element.tag, own


TWO = """
import pytest

pytestmark = pytest.mark.multigpu_static

def test_a(): pass
def test_b(world): assert {b}
def test_c(): pass
def test_d(): assert {d}
"""


def test_last_failed_and_failed_first(run_tests):
    options = ["--multigpu-static", "--nproc-per-node", 2]
    fails = TWO.format(b="world.rank == 0", d="False")
    assert run_tests(fails, *options).failed == {"test_b", "test_d"}
    first = run_tests(TWO.format(b="True", d="False"), *options, "--ff", "-x")
    assert first.outcomes == {"test_b": "passed", "test_d": "failed"}
    again = run_tests(TWO.format(b="True", d="True"), *options, "--lf")
    assert again.outcomes == {"test_d": "passed"}
    # Which ones failed is known to a plain run too, and it forgets nothing.
    assert run_tests(None, "--lf").status == 5


STOPS = """
import pytest

@pytest.mark.multigpu_static
def test_static(): assert 0

@pytest.mark.multigpu_dynamic
def test_dynamic(): assert 0

def test_single(): assert 0
"""


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (["-x"], ["test_single"]),
        (["--maxfail=2"], ["test_single", "test_dynamic"]),
        (["-x", "-k", "not single"], ["test_dynamic"]),
    ],
    ids=" ".join,
)
def test_stops_across_kinds(run_tests, options, ran):
    done = run_tests(STOPS, "--multigpu-all", *options)
    assert list(done.outcomes) == ran
    assert f"stopping after {len(ran)} failures" in done.out
    assert done.status == 1


WARNS = """
import warnings
import pytest

def test_single():
    warnings.warn("from one")

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    warnings.warn("from each")

@pytest.fixture
def noisy():
    warnings.warn("from set-up", DeprecationWarning)

@pytest.mark.multigpu_static
def test_static(world, noisy):
    warnings.warn("from all")
    warnings.warn(f"from rank {world.rank}")

@pytest.mark.multigpu_static
@pytest.mark.filterwarnings("ignore:unwanted")
def test_catches(world):
    warnings.warn("unwanted")
    with pytest.warns(UserWarning, match="wanted"):
        warnings.warn("wanted")

@pytest.mark.multigpu_static
@pytest.mark.filterwarnings("error")
def test_raises(world):
    warnings.warn("as an error")
"""


def test_warnings_are_told_once(run_tests):
    done = run_tests(WARNS, "--multigpu-all", "--nproc-per-node", 2)
    assert done.failed == {"test_raises"}
    summary = done.out.split("= warnings summary =")[1].split("-- Docs")[0]
    told = re.findall(r"Warning: (.*)", summary)
    ranks = ["from rank 0", "from rank 1"]
    assert sorted(told) == ["from all", "from each", "from one", *ranks, "from set-up"]
    assert "6 warnings" in done.lines[-1]
    assert "test_it.py::test_static\n" in summary


def test_the_plugin_warns_of_nothing(run_tests, pytester):
    pytester.makeini(
        "[pytest]\nfilterwarnings = error\naddopts = --strict-markers --strict-config\n"
    )
    source = """
    import warnings
    import pytest

    @pytest.mark.multigpu_static
    def test_static(world, distributed_mesh, shared_tmp_path, tmp_path): pass

    @pytest.mark.multigpu_static
    def test_warns():
        warnings.warn("as an error")

    @pytest.mark.multigpu_dynamic(world_size=[1, 2])
    def test_dynamic(world, distributed_mesh_2d): pass

    def test_single(world): pass
    """
    done = run_tests(source, "--multigpu-all", "--nproc-per-node", 2)
    assert done.outcomes.pop("test_dynamic[ranks=2]") == "skipped"  # no mesh of two axes
    assert done.failed == {"test_warns"}, done.out
    assert len(done.outcomes) == 4
    assert "warnings summary" not in done.out


def test_collecting_alone_starts_no_ranks(run_tests):
    done = run_tests(STOPS, "--multigpu-all", "--collect-only", "-q")
    assert done.lines[:3] == [
        f"test_it.py::test_{kind}" for kind in ("single", "dynamic", "static")
    ]
    assert done.status == 0


def test_a_test_takes_as_long_as_its_slowest_rank(run_static):
    done = run_static(
        """
        @pytest.fixture
        def slow():
            time.sleep(0.25 * RANK)

        def test_quick(): pass

        def test_slow(slow):
            time.sleep(0.5 * RANK)
        """,
        "--durations=0",
    )
    durations = done.out.split("slowest durations")[1]
    found = re.findall(r"^(\d+\.\d+)s (\w+) +test_it.py::(\w+)$", durations, re.MULTILINE)
    taken = {what: float(seconds) for seconds, what, name in found if name == "test_slow"}
    assert taken["call"] >= 0.5
    assert taken["setup"] >= 0.25
