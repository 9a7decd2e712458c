"""The MEPS layout: neural-lam's folder of `.npy` samples, one forecast of one member each.

`samples/<split>/nwp_<YYYYMMDDHH>_mbr<MMM>.npy` `(time, y, x, feature)`; beside them, one for each
analysis, the flux `nwp_toa_downwelling_shortwave_flux_<YYYYMMDDHH>.npy` `(time, y, x)` and open
water `wtr_<YYYYMMDDHH>.npy` `(y, x)`; and fields of `static/`. A file that members share is one
file, and so counted once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.files.find import FLUX, SAMPLES, WATER, NamedFile, find_files
from neural_prep.data.files.series import ArrayFile, FileSeries, open_file
from neural_prep.data.names import find_names
from neural_prep.data.source import Group, Series, StoreOptions, Variable
from neural_prep.errors import InputError
from neural_prep.stats.corrupt import CorruptChunk

_STATIC = {  # file, its dimensions before (y, x), its variables
    "nwp_xy.npy": (("coordinate",), ("nwp_x", "nwp_y")),
    "surface_geopotential.npy": ((), ("surface_geopotential",)),
    "border_mask.npy": ((), ("border_mask",)),
}
_BORDER = "border_mask.npy"


@dataclass(frozen=True, slots=True)
class MepsSource:
    """A MEPS store of which one split was opened; see `Source`."""

    path: str
    groups: tuple[Group, ...]
    series: tuple[Series, ...]
    warnings: tuple[str, ...]
    identity: Mapping[str, object]
    extent: Mapping[str, object]
    layout: str = "meps"
    remote: bool = False


def recognises(path: Path) -> bool:
    """Whether the path is a folder with samples."""
    return (path / SAMPLES).is_dir()


def open_source(options: StoreOptions) -> MepsSource:
    """Opens one split and checks every file's header and length.

    Raises:
        InputError: if there is no such split, or its files don't agree.
    """
    if options.step is not None:
        raise InputError(
            f"data.step: {options.step!r} was given, but a MEPS sample is one trajectory whose "
            "steps have no times; leave data.step out"
        )
    root = Path(options.path)
    found = find_files(root, options)
    samples = _open_alike(found.samples, ("time", "y", "x", "feature"), "state", options)
    kept = _interior(root, samples[0]) if options.region == "interior" else None
    grid = _Grid(samples[0], kept, options)
    variables, columns = find_names(root, options).columns(samples[0].shape[3])

    groups, series = [_timed_group("state", variables, samples)], [grid.samples(columns, samples)]
    if found.fluxes:
        fluxes = _open_alike(found.fluxes, ("time", "y", "x"), "flux", options, samples[0])
        groups.append(_timed_group("flux", (Variable(FLUX, "W/m**2"),), fluxes))
        series.append(grid.fields("flux", (0,), fluxes, timed=True))
    static_variables, static_series = _open_static(root, found.waters, grid)
    if static_variables:
        groups.append(Group("static", static_variables, steps=1, trajectories=1))
        series += static_series
    return MepsSource(
        path=options.path,
        groups=tuple(groups),
        series=tuple(series),
        warnings=found.warnings,
        identity=_identity(options, groups, series, kept),
        extent={"files": [(file.path.name, file.shape) for each in series for file in each.files]},
    )


@dataclass(frozen=True)
class _Grid:
    """What all series of a store share.

    Attributes:
        sample: The file whose grid all others must have.
        kept: `(y * x,)`: which points are used; None: all.
        options: What was asked for.
    """

    sample: ArrayFile
    kept: NDArray[np.bool_] | None
    options: StoreOptions

    @property
    def points(self) -> int:
        """Number of grid points."""
        return self.sample.shape[1] * self.sample.shape[2]

    def samples(self, columns: tuple[int, ...], files: Sequence[ArrayFile]) -> FileSeries:
        """The series of all samples, in which variables lie together."""
        return self._series("state", columns, files, (1, self.points, len(columns)), timed=True)

    def fields(
        self, group: str, columns: tuple[int, ...], files: Sequence[ArrayFile], *, timed: bool
    ) -> FileSeries:
        """A series of files of whole fields, one for each of the columns."""
        return self._series(group, columns, files, (len(columns), self.points, 1), timed=timed)

    def _series(
        self,
        group: str,
        columns: tuple[int, ...],
        files: Sequence[ArrayFile],
        shape: tuple[int, int, int],
        *,
        timed: bool,
    ) -> FileSeries:
        block_bytes, retries = self.options.block_bytes, self.options.retries
        return FileSeries(
            group, columns, tuple(files), shape, timed, self.kept, block_bytes, retries
        )


def _check_grid(field: ArrayFile, sample: ArrayFile) -> None:
    """Refuses a field `(..., y, x)` on another grid than a sample's `(time, y, x, feature)`.

    Raises:
        InputError: naming both files and their shapes.
    """
    if field.shape[-2:] != sample.shape[1:3]:
        raise InputError(
            f"{field.path} has shape {field.shape}, but {sample.path} {sample.shape}; the grids "
            "(y, x) must agree: write one of them again or remove it"
        )


def _open_alike(
    files: Sequence[NamedFile],
    dims: Sequence[str],
    group: str,
    options: StoreOptions,
    sample: ArrayFile | None = None,
) -> list[ArrayFile]:
    """Opens files of one kind: they have one type, and one shape but for the number of steps.

    Fields besides have the grid of a `sample`.
    """
    opened = [
        open_file(
            file.path,
            dims,
            f"analysis {file.analysis}",
            retries=options.retries,
            if_cut_off=_entry(file, group, options) if options.corrupt == "missing" else None,
        )
        for file in files
    ]
    if sample is not None:
        for file in opened:
            _check_grid(file, sample)
    first, begin = opened[0], 1 if dims[0] == "time" else 0
    for file in opened[1:]:
        if file.shape[begin:] != first.shape[begin:] or file.dtype != first.dtype:
            raise InputError(
                f"{first.path} has shape {first.shape} ({first.dtype}), but {file.path} "
                f"{file.shape} ({file.dtype}); files of one split must agree in all but the "
                "number of steps: write one of them again or remove it"
            )
    return opened


def _entry(file: NamedFile, group: str, options: StoreOptions) -> CorruptChunk:
    """What the result says of a file that is cut off and counts as missing."""
    analysis = file.analysis
    time = f"{analysis[:4]}-{analysis[4:6]}-{analysis[6:8]}T{analysis[8:]}:00"
    key = file.path.relative_to(Path(options.path)).as_posix()
    return CorruptChunk(group, key, time, time)


def _timed_group(name: str, variables: tuple[Variable, ...], files: Sequence[ArrayFile]) -> Group:
    return Group(name, variables, sum(file.shape[0] for file in files), len(files))


def _interior(root: Path, sample: ArrayFile) -> NDArray[np.bool_] | None:
    """Which points are no border, `(y * x,)`; None where all are."""
    path = _static_files(root).get(_BORDER)
    if path is None:
        raise InputError(
            f"data.region: interior needs {root / 'static' / _BORDER}, which is not there; write "
            "it or use all"
        )
    file = open_file(path, ("y", "x"))
    _check_grid(file, sample)
    border = file.load().reshape(-1)
    other = border[(border != 0) & (border != 1)]  # NaN is one of these
    if other.size:
        raise InputError(
            f"data.region: {path} holds {other[0]}; expected 1 (or True) on the border and 0 (or "
            "False) inside, nothing else"
        )
    if border.all():
        raise InputError(
            f"data.region: {path} is True everywhere, so nothing is interior; correct it or use all"
        )
    return border == 0 if border.any() else None


def _open_static(
    root: Path, waters: Sequence[NamedFile], grid: _Grid
) -> tuple[tuple[Variable, ...], list[FileSeries]]:
    """Variables and series of the static group: open water, then the fields of `static/`."""
    variables: list[Variable] = []
    series = []
    if waters:
        files = _open_alike(waters, ("y", "x"), "static", grid.options, grid.sample)
        variables.append(Variable(WATER))
        series.append(grid.fields("static", (0,), files, timed=False))
    for name, path in _static_files(root).items():
        leading, names = _STATIC[name]
        file = open_file(path, (*leading, "y", "x"))
        _check_grid(file, grid.sample)
        if leading and file.shape[0] != len(names):
            raise InputError(
                f"{path} has shape {file.shape}; expected {len(names)} fields ({', '.join(names)}):"
                " write it again or remove it"
            )
        columns = tuple(range(len(variables), len(variables) + len(names)))
        variables += map(Variable, names)
        series.append(grid.fields("static", columns, [file], timed=False))
    return tuple(variables), series


def _static_files(root: Path) -> dict[str, Path]:
    """Those fields of `static/` that there are, in a fixed order."""
    folder = root / "static"
    # Listed, not asked for one by one: a link that leads nowhere is there, and is a mistake.
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name: folder / name for name in _STATIC if name in there}


def _identity(
    options: StoreOptions,
    groups: Sequence[Group],
    series: Sequence[FileSeries],
    kept: NDArray[np.bool_] | None,
) -> Mapping[str, object]:
    return {
        "split": options.split,
        "start": options.start,
        "end": options.end,
        "region": options.region,
        "interior": None if kept is None else hashlib.sha256(kept.tobytes()).hexdigest(),
        "names": {group.name: [each.name for each in group.variables] for group in groups},
        "columns": [each.columns for each in series],
        "shapes": [each.shape for each in series],
        "dtypes": [each.files[0].dtype.str for each in series],
        "grid": series[0].files[0].shape[1:3],
    }
