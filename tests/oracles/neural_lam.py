"""neural-lam's five published results, computed anew by their definitions.

Written from the definitions in `create_parameter_weights.py` (neural-lam 0.1 to 0.3) and in
`npyfilesmeps/compute_standardization_stats.py` (later), in NumPy float64; it calls nothing of the
package under test.

- Every mean is a mean of means: over time and grid per sample (of the flux: per batch), then over
  the samples (the batches). Every std is sqrt(mean of squares - mean^2) of such means.
- Differences are of standardised fields, over `lag` steps. The script cuts each sample into `lag`
  interleaved series, one for each start 0 .. lag-1, after leaving out the last T mod lag steps, so
  that all series are equally long. Thus it takes all pairs (t - lag, t) of the first
  (T // lag) * lag steps. (It has T = 65 built in: of lag 3's 62 pairs it takes 60.)
- The flux is read with every sample, so once for each ensemble member, and without two steps of T:
  the last two up to 0.2 (`flux_steps=slice(None, -2)`: the first position of the forcing's window
  of three), the first two afterwards (`slice(2, None)`, the default: those of the initial states).

These agree with statistics over all values and all pairs where
- all samples have the same number of steps, a multiple of the lag, and no value is missing;
- no variable is constant, and std is not many orders smaller than the mean (the script subtracts
  squares, moreover in float32, which loses a std below 1e-3 of the mean);
- every analysis has equally many members, and all batches are equally large;
- the two left-out steps of the flux change neither its mean nor its mean square, for instance
  where each step has the same values in another order.

Legend: B samples of a batch, S samples, T steps, N grid points, V variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Results(NamedTuple):
    """What neural-lam reads; `flux_stats` is mean and std, or None without flux."""

    parameter_mean: Array
    parameter_std: Array
    diff_mean: Array
    diff_std: Array
    flux_stats: Array | None


def published_results(
    samples: Sequence[Array],
    lag: int,
    fluxes: Sequence[Array] | None = None,
    *,
    batch_size: int = 1,
    flux_steps: slice = slice(2, None),
) -> Results:
    """The five results of S samples.

    Args:
        samples: S arrays `(T, N, V)`, all with the same T.
        lag: Steps between the two fields of a difference.
        fluxes: S arrays `(T, N)`, one for each sample.
        batch_size: Samples that are averaged at once.
        flux_steps: Steps of the flux that are used.
    """
    mean, std = _mean_std(
        [batch.mean(axis=(1, 2)) for batch in _batches(samples, batch_size)],
        [(batch**2).mean(axis=(1, 2)) for batch in _batches(samples, batch_size)],
    )
    standardised = [(np.asarray(sample, np.float64) - mean) / std for sample in samples]
    differences = [_differences(batch, lag) for batch in _batches(standardised, batch_size)]
    diff_mean, diff_std = _mean_std(
        [each.mean(axis=(1, 2)) for each in differences],
        [(each**2).mean(axis=(1, 2)) for each in differences],
    )
    return Results(mean, std, diff_mean, diff_std, _flux_stats(fluxes, batch_size, flux_steps))


def _batches(samples: Sequence[Array], size: int) -> Iterator[Array]:
    for first in range(0, len(samples), size):
        yield np.stack([np.asarray(each, np.float64) for each in samples[first : first + size]])


def _differences(batch: Array, lag: int) -> Array:
    """`(B, T, N, V)` to `(lag * B, T // lag - 1, N, V)`."""
    used = batch.shape[1] // lag * lag
    series = np.concatenate([batch[:, start:used:lag] for start in range(lag)])
    return series[:, 1:] - series[:, :-1]


def _mean_std(means: list[Array], squares: list[Array]) -> tuple[Array, Array]:
    """Of the samples' means and mean squares, `(B, V)` each: mean and std, `(V,)`."""
    mean = np.concatenate(means).mean(axis=0)
    return mean, np.sqrt(np.concatenate(squares).mean(axis=0) - mean**2)


def _flux_stats(fluxes: Sequence[Array] | None, size: int, steps: slice) -> Array | None:
    if fluxes is None:
        return None
    batches = [batch[:, steps] for batch in _batches(fluxes, size)]
    mean = np.mean([batch.mean() for batch in batches])
    second_moment = np.mean([(batch**2).mean() for batch in batches])
    return np.stack([mean, np.sqrt(second_moment - mean**2)])
