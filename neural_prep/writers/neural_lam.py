"""Format `neural_lam`: the files that neural-lam's MEPS datastore reads from its `static` folder.

All are float32: `parameter_mean.pt`, `parameter_std.pt`, `diff_mean.pt`, `diff_std.pt` and
`parameter_weights.npy` hold one entry for each variable of group `state`, `flux_stats.pt` the
flux's mean and std. Differences are of the first lag, in units of the state's std.

A model that trains on NaN learns nothing and says so late, so no file holds one. A constant
variable's difference is 0, with std 0. Where there is no value, or no pair, mean 0 and std 1 are
written instead, which change nothing in a standardisation. Both are warned of. Leaving a file out
would be worse: neural-lam then takes an older run's, or what happens to be in memory.

Source: names, shapes and types are those of neural-lam's `create_parameter_weights.py`, later
`npyfilesmeps/compute_standardization_stats.py`.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from neural_prep.errors import InputError
from neural_prep.stats.statistics import GroupStatistics, Statistics
from neural_prep.writers.formats import FormatOptions
from neural_prep.writers.weights import parameter_weights

STATE = "state"
FLUX = "flux"
FILES = (
    "parameter_mean.pt",
    "parameter_std.pt",
    "diff_mean.pt",
    "diff_std.pt",
    "flux_stats.pt",
    "parameter_weights.npy",
)

logger = logging.getLogger(__name__)


def check(groups: Mapping[str, Sequence[str]], lags: Sequence[int], options: FormatOptions) -> None:
    """Asks for a state group, a lag and, with a table of weights, a weight for each variable."""
    if STATE not in groups:
        raise InputError(
            f"output.formats: neural_lam is made from group {STATE!r}, and the store has "
            f"{', '.join(groups) or 'no group'}; leave neural_lam out"
        )
    if not lags:
        raise InputError(
            "model.lags: [] gives neural_lam no difference to write; "
            "name at least one lag, such as [1], or leave neural_lam out of output.formats"
        )
    if options.parameter_weights is not None:
        parameter_weights(groups[STATE], options.parameter_weights)


def render(statistics: Statistics, options: FormatOptions) -> dict[str, bytes]:
    """The `.pt` files and, where a table of weights is given, `parameter_weights.npy`."""
    arrays = _arrays(statistics, options)
    return {name: _save(name, array.astype(np.float32)) for name, array in arrays.items()}


def _arrays(statistics: Statistics, options: FormatOptions) -> dict[str, NDArray[np.float64]]:
    """Each file's array by the file's name."""
    state, flux = statistics.group(STATE), statistics.group(FLUX)
    assert state is not None, "`check` comes before `render`"
    mean, std = _mean_std(state)
    diff_mean, diff_std = _standardised_differences(state)
    arrays = {
        "parameter_mean.pt": mean,
        "parameter_std.pt": std,
        "diff_mean.pt": diff_mean,
        "diff_std.pt": diff_std,
    }
    if flux is not None:
        assert len(flux.variables) == 1, flux.variables
        arrays["flux_stats.pt"] = np.concatenate(_mean_std(flux))  # (2,)
    if options.parameter_weights is not None:
        weights = parameter_weights(state.variables, options.parameter_weights)
        arrays["parameter_weights.npy"] = weights
    return arrays


def _mean_std(group: GroupStatistics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and std of the values, each `(V,)`; 0 and 1 where there is none."""
    empty = group.values.count == 0
    for v in np.flatnonzero(empty):
        logger.warning(
            "neural_lam: %s has no value; its mean is written as 0, its std as 1",
            group.variables[v],
        )
    return np.where(empty, 0.0, group.values.mean), np.where(empty, 1.0, group.values.std)


def _standardised_differences(
    state: GroupStatistics,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and std of the first lag's differences in units of the state's std, each `(V,)`."""
    lag, pairs = state.differences[0]
    constant = state.values.std == 0  # or all but constant: float64 holds no std that small
    empty = ~constant & (pairs.count == 0)
    for v in np.flatnonzero(constant | empty):
        logger.warning(
            "neural_lam: %s %s; its difference's mean is written as 0, its std as %d",
            state.variables[v],
            "is constant" if constant[v] else f"has no difference over lag {lag}",
            int(empty[v]),
        )
    known = ~constant & ~empty
    unit = np.where(known, state.values.std, 1.0)
    mean = np.where(known, pairs.mean, 0.0) / unit
    std = np.where(known, pairs.std, empty) / unit
    return mean, std


def _save(name: str, array: NDArray[np.float32]) -> bytes:
    file = io.BytesIO()
    if name.endswith(".npy"):
        np.save(file, array, allow_pickle=False)
    else:
        torch.save(torch.from_numpy(array), file)
    return file.getvalue()
