"""Files that are replaced as a whole: a reader sees the old or the new one, never half of one.

Several files are written out first and renamed afterwards, so that a full disk leaves all the old
ones in place.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(*paths: Path) -> Iterator[tuple[BinaryIO, ...]]:
    """Opens a temporary file beside each path; they take the paths' places when the block ends.

    On an error in the block, or on a full disk, every path is as it was and the temporary files
    are gone.

    Raises:
        OSError: if a file cannot be made, flushed to disk or renamed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "greeting.txt"
    >>> with replacing(path) as (file,):
    ...     _ = file.write(b"hello")
    >>> path.read_text()
    'hello'
    """
    temporaries = [_beside(path) for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            files = tuple(stack.enter_context(temporary.open("xb")) for temporary in temporaries)
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for temporary, path in zip(temporaries, paths, strict=True):
            os.replace(temporary, path)
        for folder in {path.parent for path in paths}:
            _sync(folder)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A new hidden name in the same folder: a rename is atomic within one file system only."""
    # Not `tempfile`: its files are readable by their owner alone, also after the rename.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _sync(folder: Path) -> None:
    """Flushes the renames themselves, on file systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
