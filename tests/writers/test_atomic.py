import errno
import os
import stat

import pytest

from neural_prep.writers import atomic
from neural_prep.writers.atomic import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file(tmp_path):
    with replacing(tmp_path / "a") as (file,):
        file.write(b"new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_a_reader_sees_the_old_file_until_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with path.open("rb") as reader, replacing(path) as (file,):
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TypeError, match="bytes-like"), replacing(path) as (file,):
        file.writelines([b"ne", "w"])
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_several_files_are_replaced_together(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"old")
    with replacing(*paths) as files:
        for file in files:
            file.write(b"new")
        assert [path.read_bytes() for path in paths] == [b"old", b"old"]
    assert [path.read_bytes() for path in paths] == [b"new", b"new"]
    assert names(tmp_path) == ["a", "b"]


def test_a_full_disk_at_the_second_file_replaces_none(tmp_path, monkeypatch):
    flushed = []

    def fsync(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    paths = [tmp_path / name for name in "ab"]
    with pytest.raises(OSError, match="No space left"), replacing(*paths):
        pass
    assert names(tmp_path) == []


def test_content_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            atomic.os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))
        )
    with replacing(tmp_path / "a", tmp_path / "b"):
        pass
    assert calls == ["fsync", "fsync", "replace", "replace", "fsync"]  # the last is the folder's


def test_a_path_that_cannot_be_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "a"):
        pass
    assert names(tmp_path) == ["a"]


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "a"):
        pass


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        with replacing(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
