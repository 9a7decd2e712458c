"""A journal that is damaged, another's, in use, on a full or a read-only disk: told or mended."""

import ctypes
import errno
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import time
from functools import partial

import pytest

BLOCKS = 6
RECORD = 40 + 8 * 2 * 3 * 8  # a frame, and a record of two kinds and three variables
REMEDY = "; choose another output.dir, remove that folder, or drop it with --output.resume never"


@pytest.fixture
def journal(forks, write_samples, tmp_path):
    """The one file of a journal whose six blocks are all there, and how to run again."""
    write_samples(tmp_path / "store", BLOCKS)
    args = ("--data.path", tmp_path / "store", "--data.split", "train", "--data.block_bytes", "1")
    again = partial(forks.run, *args, "--output.dir", tmp_path / "out")
    ended = again("--output.keep_blocks", "true")
    assert ended.status == 0, ended.err
    (path,) = tmp_path.glob("out/journal/*.blocks")
    return path, again


def header_of(content):
    return content.find(b"\n") + 1


def cut(records, extra=0):
    return lambda content: content[: header_of(content) + records * RECORD + extra]


def insert(records, what, skip=0):
    def change(content):
        at = header_of(content) + records * RECORD
        return content[:at] + what + content[at + skip :]

    return change


@pytest.mark.parametrize(
    ("change", "done", "damaged"),
    [
        pytest.param(cut(6), 6, None, id="untouched"),
        pytest.param(cut(5), 5, None, id="cut between records"),
        pytest.param(cut(5, RECORD - 1), 5, None, id="cut in a record"),
        pytest.param(cut(5, 3), 5, None, id="cut in a frame"),
        pytest.param(cut(0, -1), 0, None, id="cut in the header"),
        pytest.param(lambda content: b"", 0, None, id="empty"),
        pytest.param(lambda content: b"\xff" + content[1:], 0, 0, id="a wrong byte in the header"),
        pytest.param(lambda content: b"[1]\n", 0, 0, id="another file"),
        pytest.param(lambda content: b"x" * 9000 + b"\n", 0, 0, id="a text"),
        pytest.param(insert(2, b"\0", skip=1), 2, 2, id="a wrong byte"),
        pytest.param(insert(2, os.urandom(99)), 2, 2, id="garbage in the middle"),
        pytest.param(insert(2, b"", skip=50), 2, 2, id="a hole"),
        pytest.param(insert(6, b"\0" * 4096), 6, 6, id="zeros at the end"),
        pytest.param(insert(6, b"garbage"), 6, None, id="garbage that is shorter than a frame"),
    ],
)
def test_a_damaged_journal(journal, said_of, read_result, tmp_path, change, done, damaged):
    path, again = journal
    before, content = read_result(tmp_path / "out"), path.read_bytes()
    path.write_bytes(change(content))
    ended = again(ranks=2)
    assert (ended.status, said_of(ended)) == (0, (done, BLOCKS, 0) if done else None), ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("warning: ")]
    at = header_of(content) + damaged * RECORD if damaged else 0
    said = f"warning: {path} is damaged at byte {at}; the blocks behind it are read again"
    assert lines == ([] if damaged is None else [said])
    assert read_result(tmp_path / "out") == before
    assert not path.parent.exists()


def test_a_block_that_is_there_twice(journal, said_of, tmp_path):
    path, again = journal
    path.with_name("start000002-rank0.blocks").write_bytes(path.read_bytes())
    ended = again("--output.keep_blocks", "true")
    assert (ended.status, said_of(ended)) == (0, (BLOCKS, BLOCKS, 0))
    (kept,) = path.parent.glob("*.blocks")
    assert kept.stat().st_size == header_of(kept.read_bytes()) + BLOCKS * RECORD


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"schema": "neural-prep/journal/1", "covered": {}}, "neural-prep/journal/1, not "),
        ({"schema": "neural-prep/journal/99"}, "neural-prep/journal/99, not "),
        ({"schema": "neural-prep/statistics/1"}, "neural-prep/statistics/1, not "),
    ],
    ids=["older", "newer", "another file"],
)
def test_a_journal_that_cannot_be_read(journal, said_of, header, said):
    path, again = journal
    content = path.read_bytes()
    path.write_bytes(json.dumps(header).encode() + b"\n" + content[header_of(content) :])
    ended = again()
    assert ended.status == 2
    (line,) = ended.err.splitlines()
    assert line.startswith(f"neural-prep: {path} is {said}")
    assert line.endswith(REMEDY)
    ended = again("--output.resume", "never")
    assert (ended.status, said_of(ended)) == (0, None)


@pytest.mark.parametrize("keep", ["true", "false"])
def test_what_is_not_the_journal_s_stays(journal, said_of, keep):
    path, again = journal
    foreign = [path.with_name(name) for name in ("diary.txt", "hosts.blocks", "start.blocks")]
    for other in foreign:
        other.write_text("mine")
    for resume in ("auto", "never"):
        ended = again("--output.resume", resume, "--output.keep_blocks", keep)
        assert ended.status == 0, ended.err
        assert [other.read_text() for other in foreign] == ["mine"] * 3
    left = {found.name for found in path.parent.iterdir()} - {other.name for other in foreign}
    assert bool(left) == (keep == "true")


def test_a_file_that_cannot_be_read(journal):
    path, again = journal
    path.unlink()
    for make, said in [(path.mkdir, "it is no file"), (partial(os.mkfifo, path), "it is no file")]:
        make()
        ended = again()
        assert (ended.status, ended.err) == (
            2,
            f"neural-prep: {path} cannot be read ({said}): make it readable, or remove it, and its "
            "blocks are read again\n",
        )
        path.rmdir() if path.is_dir() else path.unlink()


def test_another_run_of_which_nothing_is_known(journal):
    path, again = journal
    (path.parent / "run.json").unlink()
    ended = again("--model.lags", "[2]")
    assert (ended.status, ended.err) == (
        2,
        f"neural-prep: {path.parent} holds blocks of another run{REMEDY}\n",
    )


def test_nothing_to_resume(journal, tmp_path):
    path, again = journal
    path.unlink()
    ended = again("--output.resume", "require", ranks=2)
    assert ended.statuses[0] == 2
    assert ended.err == (
        f"neural-prep: output.resume: require, but {path.parent} holds no finished block; leave it "
        "out to begin anew\n"
    )


# Two runs at once


def test_a_second_run_on_the_same_output(
    forks, reading, long_samples, undisturbed, read_result, tmp_path
):
    job = reading()
    job.kill(signal.SIGSTOP)
    ended = forks.run(*long_samples, "--output.dir", tmp_path / "out")
    assert ended.status == 2
    assert re.fullmatch(
        rf"neural-prep: output\.dir: {tmp_path}/out is being written to by another run "
        rf"\(process {job.pids[0]} on \S+\); wait for its end, or choose another folder\n",
        ended.err,
    )
    job.kill(signal.SIGCONT)
    ended = job.wait()
    assert ended.statuses == (0, 0), ended.err
    assert read_result(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_rank_that_outlives_its_run(
    forks, reading, long_samples, undisturbed, read_result, said_of, tmp_path, resume
):
    earlier = reading()
    earlier.kill(signal.SIGSTOP, [1])
    earlier.kill(signal.SIGKILL, [0])
    args = (*long_samples, "--output.dir", tmp_path / "out", "--output.resume", resume)
    job = forks.start(*args, ranks=3)
    time.sleep(0.3)
    earlier.kill(signal.SIGCONT, [1])  # it finishes what it is at before it sees that it is alone
    ended = job.wait()
    assert ended.statuses == (0, 0, 0), ended.err
    assert (said_of(ended) is None) == (resume == "never")
    assert read_result(tmp_path / "out") == undisturbed
    assert earlier.wait().statuses[1] != 0


def without_locks():
    """Has the kernel answer this process as a file system without locks does."""
    number = {"x86_64": 73, "aarch64": 32}[platform.machine()]  # of the call flock
    load, equal, answer = 0x20, 0x15, 0x06  # instructions of a packet filter
    program = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, 0x50000 | errno.ENOLCK)]
    program.append((answer, 0, 0, 0x7FFF0000))
    instructions = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(instructions)
    head = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs a known machine")
def test_a_file_system_without_locks(example, tmp_path):
    command = [sys.executable, "-m", "neural_prep.cli", "stats", "--data.path", str(example)]
    command += ["--data.split", "train", "--output.dir", str(tmp_path)]
    done = subprocess.run(
        command, preexec_fn=without_locks, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert (
        f"warning: {tmp_path}/journal cannot be locked (No locks available); start one run there "
        "at a time"
    ) in done.stderr.splitlines()


# Disks


@pytest.fixture
def mount():
    """Mounts for this test; skips it for those who may not."""
    places = []

    def run(*args, place):
        done = subprocess.run(
            ["mount", *args, str(place)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"needs to mount: {done.stderr.strip()}")
        if place not in places:
            places.append(place)

    yield run
    for place in reversed(places):
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("free", [0, 10])
def test_a_full_disk(forks, mount, long_samples, said_of, undisturbed, read_result, tmp_path, free):
    out = tmp_path / "out"
    out.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", place=out)
    (out / "filling").write_bytes(bytes((14 - free) * 4096))  # what is left: pages for two files
    args = (*long_samples, "--output.dir", out)
    ended = forks.run(*args, ranks=2)
    assert ended.status == 1
    warning, error = [line for line in ended.err.splitlines() if "No space left" in line]
    assert warning == (
        f"warning: {out}/journal cannot be written to (No space left on device): blocks that "
        "finish while that lasts are read again if this run is stopped"
    )
    assert error == (
        f"neural-prep: output.dir: the result cannot be written to {out} (No space left on "
        "device); files that were there are unchanged; make room or choose another folder, and "
        "start again"
    )
    assert "Traceback" not in ended.err
    assert {path.name for path in out.iterdir()} == {"filling", "journal"}
    mount("-o", "remount,size=1m", place=out)
    ended = forks.run(*args, ranks=1)
    assert ended.status == 0, ended.err
    assert (said_of(ended) is not None) == bool(free)
    assert read_result(out) == undisturbed
    assert not (out / "journal").exists()


def test_a_read_only_journal(journal, mount):
    path, again = journal
    mount("--bind", str(path.parent), place=path.parent)
    mount("-o", "remount,bind,ro", place=path.parent)
    ended = again(ranks=2)
    assert ended.status == 2
    assert ended.err == (
        f"neural-prep: output.dir: finished blocks cannot be kept in {path.parent} (Read-only file "
        "system); make it a folder that can be written to, or choose another output.dir\n"
    )


def test_a_file_where_the_journal_should_be(journal):
    path, again = journal
    path.parent.rename(path.parent.with_name("other"))
    path.parent.write_text("")
    ended = again()
    assert ended.status == 2
    assert f"finished blocks cannot be kept in {path.parent} (File exists); " in ended.err


def test_a_journal_that_cannot_be_removed(journal, mount, said_of, read_result, tmp_path):
    path, again = journal
    before = read_result(tmp_path / "out")
    mount("--bind", str(path), place=path)
    ended = again()
    assert (ended.status, said_of(ended)) == (0, (BLOCKS, BLOCKS, 0)), ended.err
    assert ended.err.splitlines()[-2] == (
        f"warning: {path.parent} cannot be removed (Device or resource busy); remove it, or the "
        "next run goes on from it"
    )
    assert read_result(tmp_path / "out") == before
