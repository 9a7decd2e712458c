"""The whole job inside ranks that are there already: every field counts once, whoever reads it."""

import numpy as np
import pytest
import xarray as xr

from neural_prep.engine.command import run_stats


@pytest.fixture
def run_here(world, shared_tmp_path, read_result):
    """Runs the command as one of the ranks and returns the result that rank 0 has written."""

    def run(*args):
        world.barrier()  # the store is there
        strategy = "ddp" if world.size > 1 else "auto"
        ranks = ("--trainer.devices", world.size, "--trainer.strategy", strategy)
        options = [*args, *ranks, "--output.dir", shared_tmp_path / "out"]
        assert run_stats([str(option) for option in options]) == 0
        world.barrier()  # the result is
        return read_result(shared_tmp_path / "out")

    return run


def check_samples(run_here, world, write_samples, folder, samples):
    """The statistics of random samples against NumPy's own two passes."""
    if world.rank == 0:
        write_samples(folder / "store", samples)
    arrays = write_samples(folder / f"rank{world.rank}", samples)[1]  # the same on every rank
    options = ("--data.split", "train", "--data.block_bytes", "1", "--data.piece_steps", "2")
    result = run_here("--data.path", folder / "store", *options, "--data.workers", "3")
    state = result["groups"]["state"]
    values = np.stack(arrays).astype(np.float64)  # (S, T, y, x, V)
    assert state["count"] == [values[..., 0].size] * 3
    np.testing.assert_allclose(state["mean"], values.mean((0, 1, 2, 3)), rtol=1e-14)
    # NumPy's own two passes are good to 1e-11 at an offset of 1e5 and a std of 3.
    np.testing.assert_allclose(state["std"], values.std((0, 1, 2, 3)), rtol=1e-10)
    differences = values[:, 1:] - values[:, :-1]
    assert state["differences"][0]["count"] == [differences[..., 0].size] * 3
    np.testing.assert_allclose(
        state["differences"][0]["std"], differences.std((0, 1, 2, 3)), rtol=1e-12
    )


@pytest.mark.multigpu_dynamic(world_size=[1, 3])
def test_a_fresh_world(run_here, world, write_samples, shared_tmp_path):
    check_samples(run_here, world, write_samples, shared_tmp_path, samples=1)


@pytest.mark.multigpu_static
@pytest.mark.parametrize("samples", [1, 2, 13])
def test_every_sample_counts_once(run_here, world, write_samples, shared_tmp_path, samples):
    check_samples(run_here, world, write_samples, shared_tmp_path, samples)


@pytest.mark.multigpu_dynamic(world_size=3)
def test_ranks_that_see_different_stores(world, write_samples, tmp_path, shared_tmp_path, capfd):
    write_samples(tmp_path / "store", 3 + (world.rank == 2))
    world.barrier()
    args = ["--data.path", tmp_path / "store", "--data.split", "train"]
    args += ["--trainer.devices", 3, "--trainer.strategy", "ddp", "--output.dir", shared_tmp_path]
    assert run_stats([str(arg) for arg in args]) == 2
    err = capfd.readouterr().err
    world.barrier()
    (shared_tmp_path / f"rank{world.rank}.txt").write_text(err)
    world.barrier()
    said = "\n".join(path.read_text() for path in shared_tmp_path.glob("rank*.txt"))
    assert said.count("neural-prep: ") == 1
    assert "is not the same store for all ranks: 1 of 3 found another one than rank 0; " in said


@pytest.mark.multigpu_static
def test_lags_reach_over_the_ends_of_ranks(run_here, world, shared_tmp_path):
    generator = np.random.default_rng(5)
    values = generator.normal(280.0, 5.0, (97, 3, 40)).astype(np.float32)  # (T, V, N)
    values[generator.random(values.shape) < 0.05] = np.nan
    store = xr.Dataset(
        {"state": (("time", "state_feature", "grid_index"), values)},
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(97) * np.timedelta64(6, "h"),
            "state_feature": ["t", "u", "v"],
        },
    )
    path = shared_tmp_path / "store"
    if world.rank == 0:
        chunks = {"state": {"chunks": (4, 2, 25)}}
        store.to_zarr(path, zarr_format=3, encoding=chunks, consolidated=False)
    options = ("--model.lags", "[1,7]", "--data.block_bytes", "900")
    state = run_here("--data.path", path, *options)["groups"]["state"]
    assert state["count"] == np.isfinite(values).sum((0, 2)).tolist()
    for difference, lag in zip(state["differences"], (1, 7), strict=True):
        pairs = values[lag:].astype(np.float64) - values[:-lag]
        assert difference["count"] == np.isfinite(pairs).sum((0, 2)).tolist()
        np.testing.assert_allclose(difference["std"], np.nanstd(pairs, axis=(0, 2)), rtol=1e-12)
