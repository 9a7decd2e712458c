"""What is tried again, how often, and what is said of it."""

import errno
import os

import pytest
from obstore.exceptions import GenericError

from neural_prep.data import retry
from neural_prep.data.retry import FetchError, is_transient, reason_of, without_secrets


@pytest.fixture
def no_pauses(monkeypatch):
    """Pauses of no time, and each of them told."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(retry, "_JITTER", 0.0)
    monkeypatch.setattr(retry, "_QUIET", 0.0)
    monkeypatch.setattr(retry, "_notices", retry._Notices())


def failing(times, error):
    """A call that fails so many times, and the calls so far."""
    calls = []

    def call(value):
        calls.append(value)
        if len(calls) <= times:
            raise error
        return value

    return call, calls


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError(errno.EIO, ""), True),
        (OSError(errno.ESTALE, ""), True),
        (OSError(errno.ETIMEDOUT, ""), True),
        (ConnectionResetError(errno.ECONNRESET, ""), True),
        (TimeoutError("timed out"), True),
        (FileNotFoundError(errno.ENOENT, ""), False),
        (PermissionError(errno.EACCES, ""), False),
        (IsADirectoryError(errno.EISDIR, ""), False),
        (OSError(errno.EMFILE, ""), False),
        (OSError("Not a gzipped file"), False),
        (ValueError("cannot reshape"), False),
        (MemoryError(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_is_tried_again(error, transient):
    assert is_transient(error) is transient
    assert FetchError("key", error, 1).lasting is not transient


@pytest.mark.parametrize(
    ("status", "transient"),
    [(status, True) for status in (408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 524, 529)]
    + [(status, False) for status in (400, 404, 410, 416, 501, 505)],
)
def test_which_answers_of_a_server_are_asked_for_again(status, transient):
    error = GenericError(f"Error performing GET http://a/b - Server returned status: {status} No")
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("failures", "retries", "calls"), [(0, 5, 1), (2, 5, 3), (5, 5, 6), (3, 2, 3), (1, 0, 1)]
)
def test_how_often(no_pauses, caplog, failures, retries, calls):
    error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    call, made = failing(failures, error)
    if failures > retries:
        with pytest.raises(OSError, match="Stale"):
            retry.retry("a/b", retries, call, 7)
    else:
        assert retry.retry("a/b", retries, call, 7) == 7
    assert len(made) == calls
    assert caplog.messages == [
        f"warning: a/b failed (Stale file handle): attempt {attempt} of {retries + 1} in 0.0 s"
        for attempt in range(2, calls + 1)
    ]


def test_what_lasts_is_tried_once(no_pauses, caplog):
    call, made = failing(9, FileNotFoundError(errno.ENOENT, ""))
    with pytest.raises(FileNotFoundError):
        retry.retry("a/b", 5, call, 7)
    assert (len(made), caplog.messages) == (1, [])


def test_many_failures_are_one_line(no_pauses, monkeypatch, caplog):
    monkeypatch.setattr(retry, "_QUIET", 60.0)
    for _ in range(3):
        call, _ = failing(2, OSError(errno.EIO, "Input/output error"))
        retry.retry("a/b", 5, call, 7)
    assert len(caplog.messages) == 1
    monkeypatch.setattr(retry, "_QUIET", 0.0)
    call, _ = failing(1, OSError(errno.EIO, "Input/output error"))
    retry.retry("c", 5, call, 7)
    assert caplog.messages[1] == (
        "warning: c failed (Input/output error): attempt 2 of 6 in 0.0 s; 5 more such failures "
        "before"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a?b=c", "s3://bucket/a"),
        ("https://me:pw@host/a", "https://host/a"),
        ("https://host/a?sig=x: status 403", "https://host/a status 403"),
        ("/scratch/a?b", "/scratch/a?b"),
        ("user@host: a@b", "user@host: a@b"),
    ],
)
def test_secrets(text, shown):
    assert without_secrets(text) == shown
    assert reason_of(ValueError(text)) == shown


def test_a_reason_is_short():
    assert len(reason_of(ValueError("word " * 999))) <= 240
    assert reason_of(ValueError()) == "ValueError"
