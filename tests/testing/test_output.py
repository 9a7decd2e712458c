"""What tests write: rank 0's as in plain pytest, other ranks' with the failing test."""

import re

import pytest

# Rank 1 writes nothing here, so that what is shown is what a single process shows.
LIKE_PLAIN = """
import ctypes, logging, os, sys
import pytest

pytestmark = {mark}
log = logging.getLogger("mine")
speaks = os.environ.get("RANK", "0") == "0"

@pytest.fixture
def noisy():
    if speaks:
        print("setting up")
        log.warning("setting up")

def test_writes(noisy):
    if speaks:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        os.write(1, b"to file 1\\n")
        os.write(2, b"to file 2\\n")
        ctypes.CDLL(None).printf(b"from C\\n")
        ctypes.CDLL(None).fflush(None)
        log.warning("logged")
        log.debug("too little")

def test_capsys(capsys):
    print("caught")
    assert capsys.readouterr().out == "caught\\n"
    with capsys.disabled():
        if speaks:
            print("at once")

def test_capfd(capfd):
    os.write(1, b"caught\\n")
    os.write(2, b"caught too\\n")
    assert capfd.readouterr() == ("caught\\n", "caught too\\n")

def test_caplog(caplog):
    with caplog.at_level(logging.DEBUG):
        log.debug("caught %d", 1)
    assert caplog.record_tuples == [("mine", logging.DEBUG, "caught 1")]
    caplog.clear()

def test_fails(noisy):
    if speaks:
        print("about to fail")
        print("to stderr", file=sys.stderr)
        log.error("about to fail")
    assert not "this"
"""


@pytest.mark.parametrize(
    "options",
    [["-rP"], ["-s", "-v"], ["--log-cli-level=INFO"]],
    ids=" ".join,
)
def test_rank_0_is_shown_as_a_single_process(run_tests, options):
    plain = run_tests(LIKE_PLAIN.format(mark="[]"), *options)
    source = LIKE_PLAIN.format(mark="pytest.mark.multigpu_static")
    done = run_tests(source, *options, "--multigpu-static", "--nproc-per-node", 2)
    assert plain.failed == {"test_fails"}
    assert done.outcomes == plain.outcomes
    assert _comparable(done.out) == _comparable(plain.out)
    assert done.err == plain.err


def _comparable(text):
    """The text without times, the progress column and the names of ranks."""
    text = re.sub(r" in \d+\.\d+s|=+|\s+\[ *\d+%\]|on ranks 0-1:\s", "", text)
    return [line.rstrip() for line in text.splitlines()]


LABELLED = """
import ctypes, logging

def write(phase):
    print(f"{phase} {RANK} by print")
    print(f"{phase} {RANK} by print to stderr", file=sys.stderr)
    os.write(1, f"{phase} {RANK} to file 1\\n".encode())
    os.write(2, f"{phase} {RANK} to file 2\\n".encode())
    ctypes.CDLL(None).printf(f"{phase} {RANK} from C\\n".encode())
    ctypes.CDLL(None).fflush(None)
    logging.warning(f"{phase} {RANK} logged")

@pytest.fixture
def writing():
    write("setup")
    yield
    write("teardown")

def test_before():
    write("before")

@pytest.mark.parametrize("fails", [0, 1])
def test_fails(writing, fails):
    write("call")
    assert fails != RANK

def test_after():
    write("after")
"""


@pytest.mark.parametrize("options", [[], ["-s"]], ids=["", "-s"])
def test_a_failing_test_shows_every_rank(run_static, options):
    done = run_static(LABELLED, *options)
    assert done.failed == {"test_fails[0]", "test_fails[1]"}
    failures = done.out.split("= FAILURES =")[1].split("- generated xml")[0]
    parts = re.split(r"_+ test_fails\[(?:0|1)\] _+", failures)[1:]
    assert len(parts) == 2
    for text in parts:
        assert _sections(text) == {
            title: lines
            for phase in ("setup", "call", "teardown")
            for rank in (0, 1)
            for title, lines in _expected(phase, rank, shown=rank == 1 or not options).items()
        }
    if not options:  # nothing is shown of tests that pass
        assert "before" not in done.out
        assert "after" not in done.out


def _expected(phase, rank, *, shown):
    suffix = f"{phase}, rank {rank}" if rank else phase
    begin = f"{phase} {rank}"
    expected = {f"Captured log {suffix}": {f"{begin} logged"}}
    if shown:
        out = {f"{begin} by print", f"{begin} to file 1", f"{begin} from C"}
        err = {f"{begin} by print to stderr", f"{begin} to file 2"}
        expected |= {f"Captured stdout {suffix}": out, f"Captured stderr {suffix}": err}
    return expected


def _sections(text):
    """What is in each section of a failure; log lines without what precedes the message."""
    _, *found = re.split(r"^-+ (Captured .*) -+$", text, flags=re.MULTILINE)
    titles, bodies = found[::2], found[1::2]
    assert len(set(titles)) == len(titles), "a section is shown twice"
    return {
        title: {re.sub(r"^WARNING .*\.py:\d+ ", "", line) for line in body.split("\n") if line}
        for title, body in zip(titles, bodies, strict=True)
    }


ALL = """
import logging, os, sys
import pytest

def write(kind):
    rank = os.environ.get("RANK")
    print(f"{kind} {rank} by print")
    os.write(2, f"{kind} {rank} to file 2\\n".encode())
    logging.warning(f"{kind} {rank} logged")
    sys.stdout.write(f"{kind} {rank} without an end")
    sys.stdout.flush()

def test_single():
    write("single")

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    write("dynamic")

@pytest.mark.multigpu_static
def test_static(world):
    write("static")
    world.barrier()
    assert world.rank == 0
"""


def test_all_output_is_streamed_with_ranks(run_tests):
    done = run_tests(ALL, "--multigpu-all", "--multigpu-output", "all", "-o", "log_cli=1")
    assert done.failed == {"test_static"}, done.out
    for kind in ("dynamic", "static"):
        for rank in (0, 1):
            for ending in ("by print", "to file 2", "without an end"):
                written = [line for line in done.lines if f"{kind} {rank} {ending}" in line]
                assert [line[line.index("[rank") :] for line in written] == [
                    f"[rank {rank}] {kind} {rank} {ending}"
                ]
    assert "single None by print" not in done.out
