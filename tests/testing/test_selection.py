"""Which tests run, in which order, and what markers and options may say."""

import pytest

MIXED = """
import os
import pytest

RANKS = os.environ.get("WORLD_SIZE")

def test_single():
    assert RANKS is None

@pytest.mark.multigpu_static
def test_static(world):
    assert RANKS == str(world.size) == "2"

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    assert RANKS == str(world.size) == "2"

class TestMore:
    def test_single(self):
        assert RANKS is None

    @pytest.mark.multigpu_static
    def test_static(self, world):
        assert RANKS == str(world.size) == "2"
"""
SINGLE = ["test_single", "TestMore::test_single"]
STATIC = ["test_static", "TestMore::test_static"]
DYNAMIC = ["test_dynamic"]


@pytest.fixture
def run_here(pytester, traces):
    """Runs pytest in this process, for what ends before ranks are started."""

    def run(source, *args):
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)

    return run


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ([], SINGLE),
        (["-n", "2"], SINGLE),
        (["--multigpu-static"], STATIC),
        (["--multigpu-dynamic"], DYNAMIC),
        (["--multigpu-static", "--multigpu-dynamic"], DYNAMIC + STATIC),
        (["--multigpu-all"], SINGLE + DYNAMIC + STATIC),
    ],
    ids=["plain", "plain -n 2", "static", "dynamic", "static dynamic", "all"],
)
def test_kinds_and_their_order(run_tests, options, ran):
    done = run_tests(MIXED, *options)
    outcomes = dict(sorted(done.outcomes.items())) if "-n" in options else done.outcomes
    expected = sorted(ran) if "-n" in options else ran
    assert list(outcomes.items()) == [(name, "passed") for name in expected], done.out
    assert done.status == 0
    said = [line for line in done.lines if "left out" in line]
    plain = "3 distributed tests left out (1 dynamic, 2 static); run with: pytest --multigpu-all"
    assert said == ([plain] if ran == SINGLE else [])


@pytest.mark.parametrize(
    ("markers", "said"),
    [
        ([], None),
        (["multigpu_static"], "1 distributed test left out (1 static); --multigpu-static"),
        (["multigpu_dynamic"] * 2, "2 distributed tests left out (2 dynamic); --multigpu-dynamic"),
        (
            ["multigpu_static", "multigpu_dynamic(world_size=[1, 2, 3])"],
            "4 distributed tests left out (3 dynamic, 1 static); --multigpu-all",
        ),
    ],
    ids=["none", "static", "dynamic", "both"],
)
def test_what_a_plain_run_leaves_out(run_here, markers, said):
    source = "import pytest\ndef test_single(): pass\n" + "".join(
        f"@pytest.mark.{marker}\ndef test_{number}(world): pass\n"
        for number, marker in enumerate(markers)
    )
    ended = run_here(source, "-q")
    ended.assert_outcomes(passed=1, deselected=0 if said is None else int(said[0]))
    found = [line for line in ended.outlines if "left out" in line]
    assert found == ([] if said is None else [said.replace("; ", "; run with: pytest ")])


@pytest.mark.parametrize(
    ("source", "options", "status"),
    [
        ("@static\ndef test_a(): pass", [], 5),
        ("def test_a(): pass", ["--multigpu-static"], 5),
        ("@static\ndef test_a(): assert 0\n@static\ndef test_b(): pass", ["--multigpu-static"], 1),
        ("@static\ndef test_a(): pass\nraise KeyError", ["--multigpu-static"], 2),
    ],
    ids=[
        "static, plain run",
        "single, static run",
        "failed",
        "error in collection",
    ],
)
def test_exit_status(run_tests, source, options, status):
    done = run_tests("import pytest\nstatic = pytest.mark.multigpu_static\n" + source, *options)
    assert done.status == status, done.out


OPTIONS = """
import time
import pytest

@pytest.mark.multigpu_static(min_ranks={most})
def test_min(world): pass

@pytest.mark.multigpu_static(min_ranks={more})
def test_too_few(world): pass

@pytest.mark.multigpu_static(ranks={most})
def test_exactly(world): pass

@pytest.mark.multigpu_static(ranks=[5, {most}], min_ranks=None)
def test_among(world): pass

@pytest.mark.multigpu_static(ranks=[5, 7])
def test_not_among(world): pass

@pytest.mark.multigpu_static(ranks=(5,))
class TestClass:
    def test_inherits(self, world): pass

    @pytest.mark.multigpu_static
    def test_overrides(self, world): pass
"""


@pytest.mark.parametrize(("ranks", "are"), [(1, "is 1"), (2, "are 2")], ids=["1 rank", "2 ranks"])
def test_options_of_the_static_marker(run_tests, ranks, are):
    done = run_tests(
        OPTIONS.format(most=ranks, more=ranks + 1), "--multigpu-static", "--nproc-per-node", ranks
    )
    skipped = {
        "test_too_few": f"needs at least {ranks + 1} ranks; there {are}",
        "test_not_among": f"needs 5 or 7 ranks; there {are}",
        "TestClass::test_inherits": f"needs 5 ranks; there {are}",
    }
    assert len(done.outcomes) == 7
    for name, outcome in done.outcomes.items():
        assert outcome == ("skipped" if name in skipped else "passed"), (name, done.out)
        assert skipped.get(name, "") in done.texts.get(name, "")
    assert done.status == 0


SLOW = """
import time
import pytest

@pytest.mark.multigpu_static(timeout=1)
def test_static(world): time.sleep(30)

@pytest.mark.multigpu_dynamic(timeout=0.5, world_size=1)
def test_dynamic(world): time.sleep(30)

@pytest.mark.multigpu_static
@pytest.mark.timeout(1.25)
def test_like_others(world): time.sleep(30)

@pytest.mark.multigpu_static(timeout=8)
def test_longer_than_the_default(world): time.sleep(3)
"""


def test_time_limit_of_a_marker(run_tests):
    done = run_tests(SLOW, "--multigpu-all", "--multigpu-timeout", 2)
    limits = {"test_static": 1, "test_dynamic[ranks=1]": 0.5, "test_like_others": 1.25}
    assert done.failed == set(limits), done.out
    for name, limit in limits.items():
        assert f"timed out after {limit} s" in done.texts[name]
    assert done.seconds < 20


SIZES = """
import os
import pytest

@pytest.mark.multigpu_dynamic(world_size=[1, 2, 3])
def test_sizes(world, request):
    assert request.node.name == f"test_sizes[ranks={world.size}]"
    assert os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"] == str(world.size)

@pytest.mark.multigpu_dynamic(world_size=1)
@pytest.mark.parametrize("letter", "ab")
def test_both(world, letter):
    assert world.size == 1

@pytest.mark.multigpu_dynamic
def test_default(world):
    assert world.size == 2
"""


def test_sizes_of_dynamic_tests(run_tests):
    done = run_tests(SIZES, "--multigpu-dynamic", "--nproc-per-node", 2)
    names = [f"test_sizes[ranks={size}]" for size in (1, 2, 3)]
    names += ["test_both[ranks=1-a]", "test_both[ranks=1-b]", "test_default"]
    assert list(done.outcomes.items()) == [(name, "passed") for name in names], done.out
    one = run_tests(None, "--multigpu-dynamic", "test_it.py::test_sizes[ranks=3]")
    assert one.outcomes == {"test_sizes[ranks=3]": "passed"}


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("static(2)", "takes no value without a name: 2"),
        ("static(minranks=2)", "has no option 'minranks'"),
        ("static(world_size=2)", "has no option 'world_size'"),
        ("static(min_ranks=0)", "min_ranks cannot be 0"),
        ("static(min_ranks=[2])", "min_ranks cannot be [2]"),
        ("static(min_ranks=True)", "min_ranks cannot be True"),
        ("static(ranks=[])", "ranks cannot be []"),
        ("static(ranks='2')", "ranks cannot be '2'"),
        ("static(ranks=[2, -1])", "ranks cannot be [2, -1]"),
        ("static(timeout=-1)", "timeout cannot be -1"),
        ("static(timeout=[5])", "timeout cannot be [5]"),
        ("dynamic([1, 2])", "takes no value without a name: [1, 2]"),
        ("dynamic(ranks=2)", "has no option 'ranks'"),
        ("dynamic(world_size=0)", "world_size cannot be 0"),
        ("dynamic(world_size=[])", "world_size cannot be []"),
        ("dynamic(world_size=[1, 2.5])", "world_size cannot be [1, 2.5]"),
        ("dynamic(timeout='5')", "timeout cannot be '5'"),
        ("dynamic(process_group=1)", "process_group cannot be 1"),
    ],
)
def test_wrong_options_of_a_marker(run_here, marker, said):
    name, _, _ = marker.partition("(")
    options = {"static": "min_ranks, ranks, timeout", "dynamic": "world_size, timeout, process_g"}
    ended = run_here(f"import pytest\n@pytest.mark.multigpu_{marker}\ndef test_a(world): pass")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in ended.errlines if line.strip()]
    begin = f"ERROR: test_it.py::test_a: marker multigpu_{name} {said}; its options are "
    assert line.startswith(begin + options[name])


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (["--multigpu-dynamic"], LAUNCHED, "run `pytest --multigpu-dynamic` (or --multigpu-all)"),
        (["--multigpu-all"], LAUNCHED, "run `pytest --multigpu-dynamic` (or --multigpu-all)"),
        (
            ["--multigpu-static", "--nproc-per-node=3"],
            LAUNCHED,
            "3, but the launcher has started 2",
        ),
        (["--multigpu-static", "--pdb"], {}, "add --nproc-per-node 1"),
        (["--multigpu-all", "--trace", "--nproc-per-node=2"], {}, "add --nproc-per-node 1"),
        (["--nproc-per-node=0"], {}, "--nproc-per-node: 0 must be positive"),
        (["--multigpu-timeout=-2"], {}, "--multigpu-timeout: -2 must be positive"),
        (["--multigpu-grace=0"], {}, "--multigpu-grace: 0 must be positive"),
    ],
    ids=lambda value: " ".join(value) or None if isinstance(value, list) else None,
)
def test_usage_errors(run_here, monkeypatch, options, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = run_here(MIXED, *options)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in ended.errlines if line.strip()]
    assert said in line


def test_a_plain_run_under_a_launcher(run_here, monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    run_here("def test_single(): pass").assert_outcomes(passed=1)


def test_the_help_lists_options_and_markers(run_here):
    text = run_here("", "--help").stdout.str() + run_here("", "--markers").stdout.str()
    for said in (
        *("--multigpu-static", "--multigpu-dynamic", "--multigpu-all", "--nproc-per-node"),
        *("--multigpu-timeout", "--multigpu-grace", "--multigpu-output"),
        *("@pytest.mark.multigpu_static(min_ranks", "@pytest.mark.multigpu_dynamic(world_size"),
    ):
        assert said in text


def test_a_module_whose_last_tests_are_skipped_is_torn_down(run_static, pytester):
    second = """
        import pytest

        @pytest.mark.multigpu_static
        def test_next(world):
            assert world.size == 2
        """
    pytester.makepyfile(test_second=second)
    done = run_static(
        """
        @pytest.fixture(scope="module")
        def held():
            yield
            print("let go")

        def test_held(held): pass

        @pytest.mark.multigpu_static(min_ranks=9)
        def test_skipped(held): pass
        """,
        "test_it.py",
        "test_second.py",
    )
    assert done.status == 0, done.out
    assert set(done.outcomes.values()) == {"passed", "skipped"}
    assert len(done.outcomes) == 3
