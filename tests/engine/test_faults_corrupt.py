"""`data.corrupt`: chunks that cannot be decoded end the run, or count as missing and are listed."""

import re
import shutil

import numpy as np
import pytest
import xarray as xr
import zarr

from neural_prep.engine.command import run_stats

STEPS, POINTS, NAMES = 40, 60, ("u", "v", "w")
BAD = {"state/c/2/1/0": (slice(10, 15), 1), "state/c/7/0/0": (slice(35, 40), 0)}  # steps, variable
LISTED = [
    {
        "array": "state",
        "chunk": "state/c/2/1/0",
        "from": "2020-01-01T10:00",
        "to": "2020-01-01T14:00",
    },
    {
        "array": "state",
        "chunk": "state/c/7/0/0",
        "from": "2020-01-02T11:00",
        "to": "2020-01-02T15:00",
    },
]


@pytest.fixture(scope="module")
def fields():
    """`(T, V, N)`, with a missing value of its own."""
    values = np.random.default_rng(2).normal(280.0, 5.0, (STEPS, 3, POINTS)).astype(np.float32)
    values[3, 2, 7] = np.nan
    return values


@pytest.fixture(scope="module")
def store(fields, tmp_path_factory):
    """An mllam store in chunks of five steps and one variable, of which two are cut off."""
    path = tmp_path_factory.mktemp("corrupt") / "store.zarr"
    data = xr.Dataset(
        {"state": (("time", "state_feature", "grid_index"), fields)},
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(STEPS) * np.timedelta64(1, "h"),
            "state_feature": list(NAMES),
        },
    )
    data.to_zarr(path, encoding={"state": {"chunks": (5, 1, POINTS)}}, consolidated=False)
    for key in BAD:
        chunk = path / key
        chunk.write_bytes(chunk.read_bytes()[:-30])
    return path


@pytest.fixture(scope="module")
def expected(fields, two_pass):
    """The state's statistics, by NumPy, with those chunks missing."""
    values = fields.copy()
    for steps, variable in BAD.values():
        values[steps, variable] = np.nan
    return two_pass.group("state", [values.transpose(0, 2, 1)], lags=(1, 6))


def arguments(store, out, *more):
    args = ["--data.path", store, "--model.lags", "[1,6]", "--data.block_bytes", "1"]
    return [*map(str, args), "--output.dir", str(out), *more]


@pytest.fixture(scope="module")
def missing(store, tmp_path_factory, read_result):
    """The result of one rank, to which chunks that are corrupt are missing."""
    out = tmp_path_factory.mktemp("out")
    assert run_stats(arguments(store, out, "--data.corrupt", "missing")) == 0
    return read_result(out)


def check(ours, theirs):
    for name in ("count", "missing"):
        assert ours[name] == getattr(theirs, name).tolist(), name
    for name in ("min", "max"):
        np.testing.assert_array_equal(ours[name], getattr(theirs, name))
    for name in ("mean", "std"):
        np.testing.assert_allclose(ours[name], getattr(theirs, name), rtol=1e-6)  # of float32


def test_corrupt_chunks_count_as_missing(missing, expected):
    assert missing["source"]["corrupt"] == LISTED
    state = missing["groups"]["state"]
    check(state, expected.values)
    for ours, (_, theirs) in zip(state["differences"], expected.differences, strict=True):
        check(ours, theirs)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_on_any_number_of_ranks(run_job, read_result, store, missing, tmp_path, ranks):
    done = run_job(*arguments(store, tmp_path, "--data.corrupt", "missing"), ranks=ranks)
    assert done.status == 0, done.err
    said = "2 chunks are corrupt and count as missing: state/c/2/1/0, state/c/7/0/0"
    assert f"warning: {said}" in done.out
    assert read_result(tmp_path) == missing


def test_by_default_a_corrupt_chunk_ends_the_run(run_job, store, tmp_path):
    done = run_job(*arguments(store, tmp_path), ranks=2)
    assert done.status == 2
    (line,) = [line for line in done.err.splitlines() if line.startswith("neural-prep: ")]
    assert re.fullmatch(
        rf"neural-prep: state in {store} at (2020-01-01T10:00 to 2020-01-01T14:00: chunk "
        r"state/c/2/1/0|2020-01-02T11:00 to 2020-01-02T15:00: chunk state/c/7/0/0) is corrupt \(.*"
        r"\); write it again, or count such chunks as missing with data.corrupt: missing",
        line,
    )


@pytest.fixture
def stopped(store, run_job, tmp_path):
    """A copy of the store, and a run on it that has ended at an infinity in its last block."""
    copy = tmp_path / "store.zarr"
    shutil.copytree(store, copy)
    state = zarr.open_array(copy / "state", mode="r+")
    last = state[-1, 2, -1]
    state[-1, 2, -1] = np.inf
    args = arguments(copy, tmp_path / "out")
    done = run_job(*args, "--data.corrupt", "missing")
    assert done.status == 2, done.err
    assert "w is infinite" in done.err
    state[-1, 2, -1] = last
    return state, args


def test_a_new_start_lists_them_too(stopped, missing, read_result, tmp_path, capsys):
    _, args = stopped
    assert run_stats([*args, "--data.corrupt", "missing"]) == 0
    # Blocks are chunks here. Not done are the last, the corrupt ones, and the two after the first
    # of these, whose pairs lack values.
    assert "resuming: 19 of 24 blocks done" in capsys.readouterr().err
    result = read_result(tmp_path / "out")
    assert (result["source"]["corrupt"], result["groups"]) == (LISTED, missing["groups"])


def test_a_chunk_that_was_mended_meanwhile_counts(stopped, fields, two_pass, read_result, tmp_path):
    state, args = stopped
    state[10:15, 1] = fields[10:15, 1]
    assert run_stats([*args, "--data.corrupt", "missing"]) == 0
    result = read_result(tmp_path / "out")
    assert result["source"]["corrupt"] == LISTED[1:]
    values = fields.transpose(0, 2, 1).copy()
    values[35:, :, 0] = np.nan
    expected = two_pass.group("state", [values], lags=(1, 6))
    check(result["groups"]["state"], expected.values)
    differences = result["groups"]["state"]["differences"]
    for ours, (_, theirs) in zip(differences, expected.differences, strict=True):
        check(ours, theirs)


def test_another_choice_is_another_run(stopped, run_job):
    _, args = stopped
    done = run_job(*args)
    assert done.status == 2
    assert "blocks of another run: data.corrupt was missing, now fail;" in done.err


@pytest.fixture
def samples(write_samples, tmp_path):
    """A MEPS store of four samples, of which the second is cut off."""
    root, arrays = write_samples(tmp_path / "samples", 4)
    path = root / "samples/train/nwp_2022010100_mbr001.npy"
    path.write_bytes(path.read_bytes()[:-40])
    arrays[1][:] = np.nan
    return root, arrays, path


def test_a_sample_that_is_cut_off(samples, two_pass, read_result, tmp_path, capsys):
    root, arrays, path = samples
    args = [*arguments(root, tmp_path / "out"), "--data.split", "train"]
    assert run_stats(args) == 2
    assert f"{path} of" in capsys.readouterr().err
    for steps in ("13", "2"):
        more = ["--data.corrupt", "missing", "--data.piece_steps", steps]
        assert run_stats([*args, *more]) == 0
        said = capsys.readouterr().out
        assert (
            f"warning: 1 chunk is corrupt and counts as missing: samples/train/{path.name}" in said
        )
        result = read_result(tmp_path / "out")
        (entry,) = result["source"]["corrupt"]
        assert entry == {
            "array": "state",
            "chunk": f"samples/train/{path.name}",
            "from": "2022-01-01T00:00",
            "to": "2022-01-01T00:00",
        }
        flat = [array.reshape(13, -1, 3) for array in arrays]
        expected = two_pass.group("state", flat, lags=(1, 6))
        check(result["groups"]["state"], expected.values)


def test_a_result_without_corrupt_chunks_has_no_list(write_samples, read_result, tmp_path):
    root, _ = write_samples(tmp_path / "samples", 1)
    args = [*arguments(root, tmp_path / "out"), "--data.split", "train"]
    assert run_stats([*args, "--data.corrupt", "missing"]) == 0
    assert "corrupt" not in read_result(tmp_path / "out")["source"]


@pytest.mark.parametrize("corrupt", ["fail", "missing"])
@pytest.mark.parametrize("decoder", ["zarr", "zarrs"])
def test_a_folder_in_place_of_a_chunk_is_an_error(forks, store, tmp_path, corrupt, decoder):
    copied = tmp_path / "store"
    shutil.copytree(store, copied)
    chunk = copied / "state/c/3/0/0"
    chunk.unlink()
    chunk.mkdir()
    options = ("--data.corrupt", corrupt, "--data.decoder", decoder)
    ended = forks.run("--data.path", copied, *options, "--output.dir", tmp_path / "out")
    assert ended.status == 2
    (line,) = [line for line in ended.err.splitlines() if line.startswith("neural-prep: ")]
    assert line.startswith(f"neural-prep: {chunk} is a folder; expected a file")
