"""Finds the files of one split of a MEPS store by their names, and in the order of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neural_prep.data.source import StoreOptions
from neural_prep.data.timelines.times import Times, parse_moment
from neural_prep.errors import InputError

SAMPLES = "samples"  # folder of the splits' folders
FLUX = "toa_downwelling_shortwave_flux"
WATER = "wtr"

_SAMPLE = re.compile(r"nwp_(?P<analysis>[0-9]{10})_mbr(?P<member>[0-9]+)\.npy")
_FLUX = re.compile(rf"nwp_{FLUX}_(?P<analysis>[0-9]{{10}})\.npy")
_WATER = re.compile(rf"{WATER}_(?P<analysis>[0-9]{{10}})\.npy")
_EXPECTED = "nwp_<YYYYMMDDHH>_mbr<MMM>.npy"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file and what its name says: the analysis as YYYYMMDDHH, and the member if it has one."""

    path: Path
    analysis: str
    member: int | None = None


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The selected files of one split, each kind sorted by name."""

    samples: tuple[NamedFile, ...]
    fluxes: tuple[NamedFile, ...]
    waters: tuple[NamedFile, ...]
    warnings: tuple[str, ...]


def find_files(root: Path, options: StoreOptions) -> SplitFiles:
    """Files of the split whose analysis lies between `data.start` and `data.end`, inclusive.

    Raises:
        InputError: if there is no such split, or no sample in it.
    """
    folder = _find_split(root, options.split)
    # Not glob: that passes over a folder that cannot be read, and takes hidden files.
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    paths = [path for path in paths if path.suffix == ".npy" and not path.name.startswith(".")]
    samples, fluxes, waters = (_match(paths, each) for each in (_SAMPLE, _FLUX, _WATER))
    known = {file.path for file in (*samples, *fluxes, *waters)}
    strangers = [path.name for path in paths if path not in known]
    if not samples:
        found = f"{len(strangers)} other .npy files, the first {strangers[0]}" if strangers else ""
        raise InputError(
            f"{folder} has no samples ({found or 'no .npy files'}); expected files {_EXPECTED}"
        )
    _refuse_repeats(samples)
    chosen, fluxes, waters = (_select(files, options) for files in (samples, fluxes, waters))
    if not chosen:
        raise InputError(
            f"{folder} has no samples from {options.start or 'its first'} to "
            f"{options.end or 'its last'}, but {len(samples)} of the analyses "
            f"{samples[0].analysis} to {samples[-1].analysis}; correct data.start or data.end"
        )
    warnings = (*_stranger_warnings(folder, strangers), *_flux_warnings(folder, chosen, fluxes))
    return SplitFiles(chosen, fluxes, waters, warnings)


def _find_split(root: Path, split: str | None) -> Path:
    folder = root / SAMPLES
    if not folder.is_dir():
        raise InputError(
            f"data.path: {root} has no folder {SAMPLES}; expected the MEPS layout, "
            f"{SAMPLES}/<split>/{_EXPECTED}"
        )
    splits = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not splits:
        raise InputError(
            f"data.path: {folder} has no folders; expected one for each split, such as train"
        )
    listed = ", ".join(splits)
    if split is None:
        raise InputError(f"data.split is not set; {root} has the splits {listed}: choose one")
    if split not in splits:
        raise InputError(
            f"data.split: {split!r} is no split of {root}; it has {listed}: choose one"
        )
    return folder / split


def _match(paths: Sequence[Path], pattern: re.Pattern[str]) -> tuple[NamedFile, ...]:
    found = []
    for path in paths:
        if match := pattern.fullmatch(path.name):
            member = match.groupdict().get("member")
            found.append(NamedFile(path, match["analysis"], int(member) if member else None))
    return tuple(found)


def _refuse_repeats(samples: Sequence[NamedFile]) -> None:
    """Refuses a member that is there twice, as `mbr1` and `mbr001`: one of them is a mistake."""
    first: dict[tuple[str, int | None], Path] = {}
    for file in samples:
        other = first.setdefault((file.analysis, file.member), file.path)
        if other != file.path:
            raise InputError(
                f"{other} and {file.path.name} are both member {file.member} of analysis "
                f"{file.analysis}; remove or rename one"
            )


def _select(files: tuple[NamedFile, ...], options: StoreOptions) -> tuple[NamedFile, ...]:
    if options.start is None and options.end is None:
        return files
    times = Times("analysis", np.array([_position(file) for file in files], np.int64), "date")
    kept = np.ones(len(files), np.bool_)
    if options.start is not None:
        kept &= times.positions >= parse_moment(options.start, times, "data.start", last=False)
    if options.end is not None:
        kept &= times.positions <= parse_moment(options.end, times, "data.end", last=True)
    return tuple(file for file, keep in zip(files, kept, strict=True) if keep)


def _position(file: NamedFile) -> int:
    """Microseconds since 1970 of the file's analysis."""
    digits = file.analysis
    try:
        moment = np.datetime64(f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:]}", "us")
    except ValueError:
        raise InputError(
            f"{file.path} is of analysis {digits}, no date and hour (YYYYMMDDHH) that "
            "data.start and data.end could be compared with; rename it"
        ) from None
    return int(moment.astype(np.int64))


def _stranger_warnings(folder: Path, strangers: Sequence[str]) -> Iterator[str]:
    if strangers:
        yield (
            f"{folder}: {len(strangers)} .npy files are neither samples nor flux nor water and "
            f"were left out, the first {strangers[0]}"
        )


def _flux_warnings(
    folder: Path, samples: Sequence[NamedFile], fluxes: Sequence[NamedFile]
) -> Iterator[str]:
    """Where flux files and samples don't match; a store without any flux is whole."""
    analyses = {file.analysis for file in samples}
    lit = {file.analysis for file in fluxes}
    if lit and (lacking := analyses - lit):
        yield (
            f"{folder}: {len(lacking)} of {len(analyses)} analyses have no flux file, the first "
            f"{min(lacking)}"
        )
    if lone := lit - analyses:
        yield (
            f"{folder}: {len(lone)} of {len(lit)} flux files are of an analysis without samples, "
            f"the first {min(lone)}; they are counted all the same"
        )
