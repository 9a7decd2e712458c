"""`.npy` files as a series: exact values, no needless copy, whole-file blocks, damage found."""

import io
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_prep.data.files.series import ArrayFile, FileSeries, open_file
from neural_prep.errors import InputError

DIMS = ("time", "y", "x", "feature")
GRID = (3, 4)
FEATURES = 2
STEP = 3 * 4 * FEATURES  # values


def sample(steps, dtype="float32", seed=0):
    """Values `(steps, 3, 4, 2)` that every type holds, and floats of more digits."""
    values = np.random.default_rng(seed).uniform(0, 100, (steps, *GRID, FEATURES))
    return (values > 50 if dtype == "bool" else values).astype(dtype)


def write(folder, arrays):
    paths = [folder / f"nwp_{index}.npy" for index in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def make_series(files, *, block_bytes=1, kept=None):
    """The series of sample files that are opened already."""
    points = files[0].shape[1] * files[0].shape[2]
    shape = (1, points, files[0].shape[3])
    columns = tuple(range(shape[2]))
    return FileSeries("state", columns, tuple(files), shape, True, kept, block_bytes)


def open_series(folder, arrays, **how):
    return make_series([open_file(path, DIMS) for path in write(folder, arrays)], **how)


def pieces(series, piece_steps=None):
    """All pieces in order."""
    for block in range(len(series.block_nbytes)):
        for span in series.spans(block, lag=1, piece_steps=piece_steps, continued=False):
            yield series.read(span)


def message_of(call, *args):
    with pytest.raises(InputError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Values


@pytest.mark.parametrize("fortran", [False, True], ids=["C", "Fortran"])
@pytest.mark.parametrize(
    "dtype",
    [
        "<f2",
        "<f4",
        "<f8",
        ">f2",
        ">f4",
        ">f8",
        "<i2",
        ">i2",
        "u1",
        "i1",
        "<i4",
        "<i8",
        ">u4",
        "bool",
    ],
)
@pytest.mark.parametrize("piece_steps", [1, 2, 5, None])
def test_values_are_exact(tmp_path, dtype, fortran, piece_steps):
    stored = sample(5, dtype)
    series = open_series(tmp_path, [np.asfortranarray(stored) if fortran else stored])
    found = list(pieces(series, piece_steps))
    for piece in found:
        assert piece.values.dtype in (np.float32, np.float64)
        assert piece.values.dtype.isnative
        assert all(step.flags.c_contiguous for step in piece.values)
    values = np.concatenate([piece.values for piece in found])
    assert values.shape == (5, 1, 12, FEATURES)
    assert np.array_equal(values.reshape(stored.shape), stored)
    assert np.concatenate([piece.age for piece in found]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_native_floats_are_used_where_they_are_mapped(tmp_path, dtype, monkeypatch):
    series = open_series(tmp_path, [sample(5, dtype)])
    mapped = []
    load = ArrayFile.load

    def spy(file):
        mapped.append(load(file))
        return mapped[-1]

    monkeypatch.setattr(ArrayFile, "load", spy)
    for piece in pieces(series, 2):
        assert np.shares_memory(piece.values, mapped[-1])
        base = piece.values
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.memmap)


def test_mapped_files_are_never_changed(tmp_path):
    series = open_series(tmp_path, [sample(2)])
    piece = next(pieces(series))
    piece.values[...] = 0  # writable, as the compiled arithmetic's other input
    assert np.array_equal(np.load(tmp_path / "nwp_0.npy"), sample(2))


@pytest.mark.parametrize("dtype", ["float32", "int16", ">f4"])
def test_only_kept_points_are_read(tmp_path, dtype):
    kept = np.arange(12) % 3 != 1
    series = open_series(tmp_path, [sample(3, dtype)], kept=kept)
    (piece,) = pieces(series)
    assert piece.values.flags.c_contiguous
    np.testing.assert_array_equal(piece.values, sample(3, dtype).reshape(3, 1, 12, 2)[:, :, kept])
    assert series.block_nbytes.tolist() == [sample(3, dtype).nbytes]


def test_values_that_lie_off_their_alignment(tmp_path):
    path = tmp_path / "odd.npy"
    buffer = io.BytesIO()
    np.save(buffer, sample(2))
    content = buffer.getvalue()
    # One blank more in the header: what some writers in other languages do.
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length - 1] + b" \n"
    start = content[:8] + (length + 1).to_bytes(2, "little")
    path.write_bytes(start + header + content[10 + length :])
    series = make_series([open_file(path, DIMS)])
    (piece,) = pieces(series)
    assert piece.values.flags.aligned
    assert np.array_equal(piece.values.reshape(2, *GRID, FEATURES), sample(2))


def test_missing_and_infinite_values_pass_through(tmp_path):
    stored = sample(2)
    stored[0, 0, 0], stored[1, 2, 3] = [np.nan, np.inf], [-np.inf, np.nan]
    (piece,) = pieces(open_series(tmp_path, [stored]))
    np.testing.assert_array_equal(piece.values.reshape(stored.shape), stored)


def test_fields_without_time_are_one_step(tmp_path):
    stored = np.arange(24, dtype=np.float32).reshape(2, *GRID)
    (path,) = write(tmp_path, [stored])
    file = open_file(path, ("coordinate", "y", "x"))
    series = FileSeries("static", (3, 4), (file,), (2, 12, 1), False, None, 1)
    (piece,) = pieces(series)
    assert (piece.values.shape, piece.age.tolist()) == ((1, 2, 12, 1), [0])
    np.testing.assert_array_equal(piece.values.reshape(stored.shape), stored)
    assert series.place(piece.span, 0) == str(path)


def test_threads_read_at_once(tmp_path):
    arrays = [sample(7, seed=seed) for seed in range(8)]
    series = open_series(tmp_path, arrays)
    spans = [
        span
        for block in range(8)
        for span in series.spans(block, lag=0, piece_steps=2, continued=False)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = [piece.values for piece in pool.map(series.read, spans)]
    np.testing.assert_array_equal(np.concatenate(found).ravel(), np.concatenate(arrays).ravel())


# Blocks and spans


@pytest.mark.parametrize(
    ("steps", "limit", "expected"),
    [
        pytest.param([2, 2, 2], 1, [2, 2, 2], id="a larger file is a block"),
        pytest.param([2, 2, 2], 4, [4, 2], id="packed"),
        pytest.param([2, 2, 2], 6, [6], id="just fits"),
        pytest.param([1, 5, 1, 1], 4, [1, 5, 2], id="a large one between"),
        pytest.param([3, 2, 2, 1], 5, [5, 3], id="of different lengths"),
    ],
)
def test_blocks_are_whole_files(tmp_path, steps, limit, expected):
    nbytes = STEP * 4
    series = open_series(tmp_path, [sample(n) for n in steps], block_bytes=limit * nbytes)
    assert series.block_nbytes.tolist() == [n * nbytes for n in expected]
    assert all(series.predecessor(block) is None for block in range(len(expected)))


@given(
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    more=st.lists(st.integers(1, 5), max_size=4),
    limit=st.integers(1, 12),
)
def test_appended_files_leave_earlier_bounds(steps, more, limit):
    """All blocks but the last keep their bounds; the last keeps its beginning."""

    def bounds(lengths):
        series = make_series([pretend(n) for n in lengths], block_bytes=limit * STEP * 4)
        return np.concatenate(([0], np.cumsum(series.block_nbytes))).tolist()

    before, after = bounds(steps), bounds(steps + more)
    assert after[: len(before) - 1] == before[:-1]


@given(
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    limit=st.integers(1, 12),
    piece_steps=st.one_of(st.none(), st.integers(1, 9)),
    lag=st.integers(0, 9),
    continued=st.booleans(),
)
def test_spans_cover_every_step_once(steps, limit, piece_steps, lag, continued):
    series = make_series([pretend(n) for n in steps], block_bytes=limit * STEP * 4)
    covered = []
    for block, nbytes in enumerate(series.block_nbytes):
        spans = list(series.spans(block, lag=lag, piece_steps=piece_steps, continued=continued))
        assert [span.last for span in spans] == [False] * (len(spans) - 1) + [True]
        assert sum(span.nbytes for span in spans) == nbytes
        assert {span.context for span in spans} == {0}
        assert all(span.stop - span.first <= (piece_steps or 9) for span in spans)
        covered += [step for span in spans for step in range(span.first, span.stop)]
    assert covered == list(range(sum(steps)))


@pytest.mark.parametrize("piece_steps", [1, 2, 3, 7, None])
@pytest.mark.parametrize("lag", [0, 1, 3, 20])
@pytest.mark.parametrize("block_bytes", [1, 1000, 10**9])
def test_every_step_once_and_its_lags_at_hand(tmp_path, walk, piece_steps, lag, block_bytes):
    arrays = [sample(steps, seed=steps) for steps in (4, 1, 6)]
    series = open_series(tmp_path, arrays, block_bytes=block_bytes)
    found, ages = walk(series, lag=lag, piece_steps=piece_steps)
    assert ages == dict(enumerate([0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5]))
    stored = np.concatenate(arrays).reshape(11, 12, FEATURES)
    assert sorted(found) == [(step, column) for step in range(11) for column in range(FEATURES)]
    for (step, column), (values,) in found.items():
        np.testing.assert_array_equal(values, stored[step, :, column])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", 20), ("float64", 10), ("int16", 20), ("int8", 20), ("int32", 10)],
)
def test_pieces_are_of_about_16_mb_in_memory(dtype, expected):
    points = 100_000
    file = pretend(25, (25, 100, 1000, 2), dtype)
    series = FileSeries("state", (0, 1), (file,), (1, points, 2), True, None, 1)
    first = next(series.spans(0, lag=0, piece_steps=None, continued=False))
    assert first.stop == expected


def pretend(steps, shape=None, dtype="float32"):
    """A file that is never read."""
    shape = shape or (steps, *GRID, FEATURES)
    return ArrayFile(None, shape, np.dtype(dtype), "", (0, 0))


def test_place_names_file_step_and_label(tmp_path):
    paths = write(tmp_path, [sample(2), sample(5)])
    series = make_series([open_file(path, DIMS, "analysis 2022010100") for path in paths])
    spans = list(series.spans(1, lag=0, piece_steps=3, continued=False))
    assert series.place(spans[1], 1) == f"{paths[1]}, step 4 (analysis 2022010100)"


# Damage


def saved(array, **how):
    buffer = io.BytesIO()
    np.save(buffer, array, **how)
    return buffer.getvalue()


def zipped():
    buffer = io.BytesIO()
    np.savez(buffer, sample(2))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        pytest.param(b"", ["of 0 bytes is no whole .npy file", "write it again"], id="empty"),
        pytest.param(b"t2m,t850\n1,2\n", ["no whole .npy file", "magic string"], id="text"),
        pytest.param(zipped(), ["no whole .npy file", "write it again or remove"], id="npz"),
        pytest.param(
            saved(sample(2))[:-1],
            [f"of {128 + 2 * STEP * 4 - 1} bytes", "cut off: its header announces more"],
            id="truncated",
        ),
        pytest.param(saved(sample(2))[:60], ["no whole .npy file", "header"], id="half a header"),
        pytest.param(
            saved(sample(2)).replace(b"(2, 3", b"(2, (", 1), ["no whole .npy file"], id="damaged"
        ),
        pytest.param(
            saved(np.array([{}], object), allow_pickle=True), ["Python objects"], id="pickled"
        ),
        pytest.param(
            saved(np.zeros(2)), ["shape (2,); expected (time, y, x, feature), each"], id="1-d"
        ),
        pytest.param(saved(np.float32(3)), ["has shape (); expected (time, y, x"], id="0-d"),
        pytest.param(saved(sample(2)[0]), ["has shape (3, 4, 2); expected (time"], id="3-d"),
        pytest.param(
            saved(sample(0)), ["has shape (0, 3, 4, 2)", "each at least 1: write"], id="no step"
        ),
        pytest.param(saved(sample(2)[:, :0]), ["(2, 0, 4, 2)", "at least 1"], id="no row"),
        pytest.param(saved(sample(2, "complex64")), ["has type complex64", "floats"], id="complex"),
        pytest.param(saved(sample(2, "U3")), ["has type <U3; expected integers"], id="text values"),
        pytest.param(
            saved(np.zeros((1, 1, 1, 1), "M8[h]")), ["datetime64[h]", "floats"], id="times"
        ),
        pytest.param(
            saved(np.zeros((1, 1, 1, 1), [("t", "f4")])), ["has type [('t'"], id="structured"
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, parts):
    path = tmp_path / "nwp_2022010100_mbr000.npy"
    path.write_bytes(content)
    message = message_of(open_file, path, DIMS)
    assert message.startswith(f"{path} ")
    assert len(message) < len(str(path)) + 300
    for part in parts:
        assert part in message


@given(
    at=st.integers(0, 127),
    byte=st.one_of(st.integers(0, 255), st.sampled_from(list(b"()'{},:<-0129"))),
)
def test_a_damaged_header_is_never_a_traceback(tmp_path_factory, at, byte):
    content = bytearray(saved(sample(2)))
    content[at] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    path.write_bytes(content)
    try:
        open_file(path, DIMS)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - it may as well be whole


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: None, "No such file or directory", id="missing"),
        pytest.param(lambda path: path.symlink_to("nowhere"), "No such file", id="dead link"),
        pytest.param(lambda path: path.mkdir(), "Is a directory", id="folder"),
        pytest.param(
            lambda path: path.symlink_to(path.name), "symbolic links", id="link to itself"
        ),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path, make, reason):
    path = tmp_path / "nwp_2022010100_mbr000.npy"
    make(path)
    message = message_of(open_file, path, DIMS)
    assert message.startswith(f"{path} cannot be read (")
    assert reason in message
    assert "make it readable or remove it" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_named(tmp_path):
    (path,) = write(tmp_path, [sample(2)])
    path.chmod(0)
    assert "cannot be read (Permission denied)" in message_of(open_file, path, DIMS)


def truncate(path):
    os.truncate(path, path.stat().st_size - 4)


def replace(path, **how):
    np.save(path, sample(**how))
    os.utime(path, ns=(0, 1))  # the clock that files get is coarse


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(truncate, id="shorter"),
        pytest.param(lambda path: path.write_bytes(b""), id="emptied"),
        pytest.param(lambda path: path.unlink(), id="removed"),
        pytest.param(lambda path: replace(path, steps=6), id="more steps"),
        pytest.param(lambda path: replace(path, steps=5, dtype="int32"), id="another type"),
        pytest.param(lambda path: replace(path, steps=5, seed=1), id="other values"),
    ],
)
def test_a_change_during_the_run_is_found(tmp_path, change):
    series = open_series(tmp_path, [sample(5)])
    spans = list(series.spans(0, lag=1, piece_steps=2, continued=False))
    series.read(spans[0])
    change(tmp_path / "nwp_0.npy")
    assert message_of(series.read, spans[1]) == (
        f"{tmp_path / 'nwp_0.npy'} has changed since the run began; start again when no one "
        "writes to the store"
    )
