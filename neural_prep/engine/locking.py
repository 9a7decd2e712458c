"""A folder that one run has to itself: rank 0 holds a lock on a file in it while the run lives."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import BinaryIO

from neural_prep.errors import InputError

_log = logging.getLogger(__name__)

NAME = "lock"


def lock_folder(folder: Path) -> BinaryIO:
    """Makes the folder and locks it, until the file that is returned is closed.

    Raises:
        InputError: if another run is at work there, or if nothing can be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        lock = _lock(folder / NAME)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"output.dir: finished blocks cannot be kept in {folder} "
            f"({os.strerror(error.errno or 0)}); make it a folder that can be written to, or "
            "choose another output.dir"
        ) from error
    with contextlib.suppress(OSError):  # a full disk; who holds it is for messages alone
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
    return lock


def _lock(path: Path) -> BinaryIO:
    while True:
        lock = path.open("a+b")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _occupied(path, lock) from None
        except OSError as error:
            _log.warning(
                "warning: %s cannot be locked (%s); start one run there at a time",
                path.parent,
                os.strerror(error.errno or 0),
            )
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()  # a run that has just ended has removed it
        path.parent.mkdir(exist_ok=True)


def _occupied(path: Path, lock: BinaryIO) -> InputError:
    with lock:
        lock.seek(0)
        owner = lock.read().decode(errors="replace") or "an unknown process"
    return InputError(
        f"output.dir: {path.parent.parent} is being written to by another run ({owner}); "
        "wait for its end, or choose another folder"
    )
