"""What fails for the moment is tried again, a bounded number of times with growing pauses.

A busy server, a connection that breaks and a network file system that changes over come back; what
is not there, not allowed or damaged does not, and ends the run at once.
"""

from __future__ import annotations

import errno
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from textwrap import shorten
from typing import Any, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

_log = logging.getLogger(__name__)

RETRIES = 5
_FIRST_PAUSE, _LONGEST_PAUSE, _JITTER = 0.5, 30.0, 0.5  # seconds
_QUIET = 5.0  # seconds between two lines of one process: thousands of requests may fail at once

_ERRNOS = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EINTR}
    | {errno.EREMOTEIO, errno.ENOLINK, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET}
    | {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOBUFS, errno.ENOTCONN, errno.ESHUTDOWN}
)
_STATUSES = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})  # these two say "never"
_NO_CREDENTIALS = ("TokenRequest", "169.254.169.254")  # where a cloud's own machines find them
# What obstore says of mistakes that no repetition mends; the first of a bucket in another region.
_LASTING = ("BareRedirect", "Name or service not known", *_NO_CREDENTIALS)

T = TypeVar("T")


class FetchError(Exception):
    """Stored bytes cannot be had; the message says which and why.

    Attributes:
        lasting: Whether another try would be in vain.
        denied: Whether it is for want of permission.
    """

    def __init__(self, place: str, error: BaseException, attempts: int) -> None:
        self.lasting = not is_transient(error)
        self.denied = _is_denied(error)
        tries = "" if attempts == 1 else f", {attempts} attempts"
        super().__init__(f"{place}: {reason_of(error)}{tries}")


def retry(place: str, retries: int, call: Callable[..., T], *args: Any) -> T:
    """Calls, and calls again while it fails for the moment.

    Args:
        place: What is read, for messages.
        retries: How many more times than once.
        call: What is called.
        args: Its arguments.

    Raises:
        Exception: the last call's.
    """
    return Retrying(**_policy(place, retries))(call, *args)


async def retry_async(place: str, retries: int, call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """The same for what is awaited."""
    return await AsyncRetrying(**_policy(place, retries))(call, *args)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment.

    >>> is_transient(OSError(errno.EIO, "")), is_transient(FileNotFoundError(errno.ENOENT, ""))
    (True, False)
    """
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in _ERRNOS
    if not _is_generic(error):
        return False
    said = str(error)
    if any(lasting in said for lasting in _LASTING):
        return False
    status = re.search(r"\bstatus: (\d{3})\b", said)
    return status is None or int(status[1]) in _STATUSES


def reason_of(error: BaseException) -> str:
    """Why, on one line that holds no credentials.

    >>> reason_of(OSError(errno.EIO, "Input/output error"))
    'Input/output error'
    >>> reason_of(ValueError("GET https://me:secret@host/key?sig=secret failed"))
    'GET https://host/key failed'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said, _, details = str(error).partition("\n\nDebug source:")  # obstore's, of several lines
    if details:
        said = _reason_of_request(said, details)
    return shorten(without_secrets(said), 240) or type(error).__name__


def _reason_of_request(said: str, details: str) -> str:
    """Why a request failed, in fewer words than obstore's."""
    if any(each in details for each in _NO_CREDENTIALS):
        return "no credentials were found"
    said = re.sub(r"^Generic \w+ error: ", "", said)
    said = re.sub(r"^.*Error performing \w+ \S+ in \S+ - ", "", said)
    said = said.replace("Server returned non-2xx status code:", "status")
    if "error sending request" not in said:
        return said
    cause = re.search(r'(?:message|error): "([^"]+)"', details) or re.search(
        r"kind: (\w+)", details
    )
    return f"{said}: {cause[1]}" if cause else said


def without_secrets(text: str) -> str:
    """The text with its URLs less users, passwords and queries, in which signatures travel."""
    return re.sub(r"(\w+://)(?:[^/@\s]*@)?([^\s?]*)(?:\?\S*)?", r"\1\2", text)


def _is_generic(error: BaseException) -> bool:
    """Whether it is obstore's error for all but what is not there or not allowed."""
    kind = type(error)
    return kind.__module__ == "obstore.exceptions" and kind.__name__ == "GenericError"


def _is_denied(error: BaseException) -> bool:
    if isinstance(error, PermissionError):
        return True
    if _is_generic(error):
        return any(each in str(error) for each in _NO_CREDENTIALS)
    return type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")


def _policy(place: str, retries: int) -> dict[str, Any]:
    def say(state: RetryCallState) -> None:
        assert state.outcome is not None
        error = state.outcome.exception()
        assert error is not None
        _notices.say(place, error, state.attempt_number + 1, retries + 1, state.upcoming_sleep)

    return {
        "stop": stop_after_attempt(retries + 1),
        "wait": wait_exponential(_FIRST_PAUSE, _LONGEST_PAUSE) + wait_random(0, _JITTER),
        "retry": retry_if_exception(is_transient),
        "before_sleep": say,
        "reraise": True,
    }


class _Notices:
    """Says what is tried again: a line now and then, whatever the number of failures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = -_QUIET
        self._unsaid = 0

    def say(self, place: str, error: BaseException, attempt: int, of: int, pause: float) -> None:
        """Says so, unless a line has been said just before; then counts it for the next one."""
        with self._lock:
            if time.monotonic() - self._said < _QUIET:
                self._unsaid += 1
                return
            others = f"; {self._unsaid} more such failures before" if self._unsaid else ""
            self._said, self._unsaid = time.monotonic(), 0
        # An error's level, since ranks other than 0 say nothing else.
        _log.error(
            "warning: %s failed (%s): attempt %d of %d in %.1f s%s",
            place,
            reason_of(error),
            attempt,
            of,
            pause,
            others,
        )


_notices = _Notices()
