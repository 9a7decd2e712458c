"""Chunks that cannot be decoded: named in an error, or missing; no other value is touched."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from numcodecs import BZ2, LZ4, LZMA, Blosc, Fletcher32, Zstd
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError
from neural_prep.stats.statistics import CorruptChunk

SHAPE, CHUNKS = (8, 3, 10), (2, 3, 5)  # (time, y, x); chunk (1, 0, 1) is steps 2 and 3, x from 5
BAD = (slice(2, 4), slice(None), slice(5, 10))
KEYS = {2: "t/1.0.1", 3: "t/c/1/0/1"}
TIMES = ("2020-01-01T12:00", "2020-01-01T18:00")


def values(dtype="f4"):
    generator = np.random.default_rng(3)
    return generator.integers(1, 100, SHAPE).astype(dtype)


@pytest.fixture
def write(tmp_path):
    """Writes a CF store of one array `t` and returns its path."""

    def run(data=None, zarr_format=3, attrs=None, **how):
        data = values() if data is None else data
        path = str(tmp_path / "store.zarr")
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        time = group.create_array("time", data=np.arange(8) * 6, **named(zarr_format, ["time"]))
        time.attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
        how = {"chunks": CHUNKS, **named(zarr_format, ["time", "y", "x"]), **how}
        array = group.create_array("t", shape=SHAPE, dtype=data.dtype, **how)
        array[...] = data
        array.attrs.update(attrs or {})
        return path

    return run


def named(zarr_format, dims):
    if zarr_format == 3:
        return {"dimension_names": dims}
    return {"attributes": {"_ARRAY_DIMENSIONS": dims}}


def spoil(path, key, damage):
    """Damages one chunk's file."""
    file = Path(path, key)
    content = file.read_bytes()
    file.write_bytes(damage(content))


def half(content):
    return content[: len(content) // 2]


def empty(content):
    return b""


def longer(content):
    return content + content


def other(content):
    return b"not what it was" * 9


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.fixture
def read():
    """All values `(T, y, x)` as read, and the corrupt chunks that were found."""

    def run(path, piece_steps=None, corrupt="missing", **how):
        (series,) = open_source("cf", StoreOptions(path, corrupt=corrupt, **how)).series
        found, bad = np.zeros(SHAPE), []
        for block in range(len(series.block_nbytes)):
            for span in series.spans(block, lag=0, piece_steps=piece_steps, continued=True):
                piece = series.read(span)
                place = (slice(span.first, span.stop), *series.plan.grid.ranges(span.part))
                found[place] = piece.values.reshape(found[place].shape)
                bad += piece.corrupt
        return found, bad

    return run


def expected(data, bad=BAD):
    floats = data.astype(float)
    floats[bad] = np.nan
    return floats


@pytest.mark.parametrize(
    ("zarr_format", "how", "damage"),
    [
        (3, {"compressors": ZstdCodec()}, half),
        (3, {"compressors": ZstdCodec()}, empty),
        (3, {"compressors": ZstdCodec(checksum=True)}, flipped),
        (3, {"compressors": BloscCodec(cname="lz4")}, half),
        (3, {"compressors": BloscCodec(cname="zstd")}, other),
        (3, {"compressors": BloscCodec(clevel=0)}, half),
        (3, {"compressors": BloscCodec(cname="zstd")}, empty),
        (2, {"compressors": Blosc()}, half),
        (2, {"compressors": Blosc(clevel=0)}, half),
        (2, {"compressors": Blosc()}, longer),
        (3, {"compressors": GzipCodec()}, half),
        (3, {"compressors": GzipCodec()}, flipped),
        (2, {"compressors": BZ2()}, other),
        (2, {"compressors": LZMA()}, half),
        (3, {"compressors": Crc32cCodec()}, flipped),
        (3, {"compressors": Crc32cCodec()}, empty),
        (3, {"compressors": None}, half),
        (3, {"compressors": None}, longer),
        (3, {"compressors": None}, empty),
        (2, {"compressors": Zstd()}, half),
        (2, {"compressors": LZ4()}, other),
        (2, {"compressors": None, "filters": [Fletcher32()]}, flipped),
        (2, {"compressors": None}, half),
        (2, {"compressors": None}, longer),
        (2, {"compressors": None, "order": "F"}, empty),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_corrupt_chunk(write, read, zarr_format, how, damage):
    path = write(zarr_format=zarr_format, **how)
    key = KEYS[zarr_format]
    spoil(path, key, damage)
    for piece_steps in (None, 1):
        found, bad = read(path, piece_steps)
        np.testing.assert_array_equal(found, expected(values()))
        assert bad == [CorruptChunk("t", key, *TIMES)]
    with pytest.raises(InputError) as error:
        read(path, corrupt="fail")
    message = str(error.value)
    assert message.startswith(f"t in {path} at {' to '.join(TIMES)}: chunk {key} is corrupt (")
    assert message.endswith(
        "); write it again, or count such chunks as missing with data.corrupt: missing"
    )
    assert "\n" not in message


def test_several_corrupt_chunks_are_listed_once_each(write, read):
    path = write()
    for key in ("t/c/0/0/0", "t/c/3/0/1"):
        spoil(path, key, half)
    found, bad = read(path)
    lost = expected(expected(values(), np.s_[:2, :, :5]), np.s_[6:, :, 5:])
    np.testing.assert_array_equal(found, lost)
    assert [chunk.chunk for chunk in bad] == ["t/c/0/0/0", "t/c/3/0/1"]


@pytest.mark.parametrize("dtype", ["i2", ">i2", "u1", "f8"])
def test_packed_integers_are_missing_too(write, read, dtype):
    attrs = {"scale_factor": 0.5, "add_offset": 3.0, "_FillValue": 7}
    data = values(dtype)
    data[0, 0, 0], data[1, 0, 0] = 7, 8
    path = write(data, attrs=attrs)
    spoil(path, KEYS[3], half)
    found, bad = read(path)
    lost = expected(data)
    lost[data == 7] = np.nan
    np.testing.assert_array_equal(found, lost)
    assert len(bad) == 1


def test_a_chunk_that_was_never_written_is_not_corrupt(write, read):
    path = write(fill_value=2.0)
    Path(path, KEYS[3]).unlink()
    found, bad = read(path)
    assert (found[BAD] == 2.0).all()
    assert bad == []


@pytest.fixture
def sharded(write):
    """A store of shards of four steps and one inner chunk for each of them."""
    return write(chunks=(1, 3, 5), shards=(4, 3, 5), compressors=Crc32cCodec())


def test_one_inner_chunk_of_a_shard(sharded, read):
    spoil(
        sharded, "t/c/0/0/1", lambda content: bytes([content[0] ^ 1]) + content[1:]
    )  # the first inner chunk
    found, bad = read(sharded)
    np.testing.assert_array_equal(found, expected(values(), np.s_[:1, :, 5:]))
    assert bad == [CorruptChunk("t", "t/c/0/0/1", "2020-01-01T00:00", "2020-01-01T00:00")]


def test_a_blosc_chunk_of_a_shard(write, read):
    path = write(chunks=(1, 3, 5), shards=(4, 3, 5), compressors=BloscCodec(clevel=0))
    (series,) = open_source("cf", StoreOptions(path)).series
    (sharding,) = series.data.stored.array.metadata.codecs
    assert type(sharding.codecs[-1]).__name__ == "_WholeBloscCodec"
    np.testing.assert_array_equal(read(path)[0], values())


def test_a_shard_without_its_index(sharded, read):
    spoil(sharded, "t/c/0/0/1", half)
    found, bad = read(sharded)
    np.testing.assert_array_equal(found, expected(values(), np.s_[:4, :, 5:]))
    assert [chunk.first for chunk in bad] == [f"2020-01-01T{hour:02}:00" for hour in (0, 6, 12, 18)]


@pytest.mark.parametrize("decoder", ["zarr", "zarrs"])
def test_an_empty_shard(sharded, read, decoder):
    # zarr takes a shard of no bytes for one without chunks, which would be missing without a word.
    spoil(sharded, "t/c/0/0/1", empty)
    found, bad = read(sharded, decoder=decoder)
    np.testing.assert_array_equal(found, expected(values(), np.s_[:4, :, 5:]))
    assert {chunk.chunk for chunk in bad} == {"t/c/0/0/1"}
    with pytest.raises(InputError, match=r"chunk t/c/0/0/1 is corrupt \(it is empty\)"):
        read(sharded, corrupt="fail", decoder=decoder)


def test_earlier_steps_for_a_lag_are_as_bad_as_their_chunk(write):
    path = write()
    spoil(path, KEYS[3], half)
    options = StoreOptions(path, corrupt="missing", block_bytes=1)
    (series,) = open_source("cf", options).series
    blocks = len(series.block_nbytes)
    (span, *_) = series.spans(blocks - 3, lag=1, piece_steps=None, continued=False)
    assert (span.first, span.stop, span.context) == (3, 4, 1)
    piece = series.read(span)
    assert piece.values.shape[0] == len(piece.age) == 1
    assert np.isnan(piece.values).all()
    assert [chunk.chunk for chunk in piece.corrupt] == [KEYS[3]]


def test_damaged_coordinates_are_an_error_even_so(write, read):
    path = write()
    spoil(path, "time/c/0", half)
    with pytest.raises(InputError, match=r"^time in .* cannot be decoded \(.*\); write it again"):
        read(path)


def test_what_may_not_be_read_is_not_corrupt(write, read):
    path = write()
    chunk = Path(path, KEYS[3])
    chunk.unlink()
    chunk.symlink_to(chunk)  # a loop: neither there nor absent
    place = f"t in {path} at 2020-01-01T00:00 to 2020-01-02T18:00"
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value) == (
        f"{place} cannot be read (t/c/1/0/1: Too many levels of symbolic links); start again when "
        "it can"
    )
