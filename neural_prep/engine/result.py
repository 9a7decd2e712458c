"""From merged records to the result and its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from neural_prep.data.source import Group
from neural_prep.engine.plan import Plan
from neural_prep.errors import InputError
from neural_prep.stats.corrupt import CorruptChunk
from neural_prep.stats.moments import Record, empty
from neural_prep.stats.statistics import (
    GroupStatistics,
    RunInfo,
    SourceInfo,
    Statistics,
    summarise,
)
from neural_prep.writers.formats import FormatOptions, find_format, write_formats
from neural_prep.writers.weights import parameter_weights

ALWAYS = "json"  # the contract that other tools read


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where results go, and in which formats.

    Attributes:
        dir: Folder for the result; made if it is not there.
        formats: Formats besides `json`, which is always written: `neural_lam`.
        resume: What happens to blocks that an earlier, stopped run has finished: `auto` goes on
            from them, `never` drops them, `require` fails where there are none.
        keep_blocks: Whether finished blocks stay when the result is written, so that a run on the
            store once it has grown at its end reads what is new.
    """

    dir: str | None = None
    formats: list[str] = field(default_factory=lambda: [ALWAYS])
    resume: Literal["auto", "never", "require"] = "auto"
    keep_blocks: bool = False

    @property
    def directory(self) -> Path:
        """The folder.

        Raises:
            InputError: if none was given.
        """
        if not self.dir:
            raise InputError("output.dir is not given; say where results go, such as stats/meps")
        return Path(self.dir)

    @property
    def names(self) -> list[str]:
        """All formats that are written, each once."""
        return list(dict.fromkeys([ALWAYS, *self.formats]))


def check_output(output: OutputOptions, plan: Plan, options: FormatOptions) -> None:
    """Finds out before the work whether the result could be written after it.

    Raises:
        InputError: if a format is unknown or cannot be written, or the folder cannot be written to.
    """
    groups = {
        group.name: [variable.name for variable in group.variables] for group in plan.source.groups
    }
    formats = [find_format(name) for name in output.names]
    for each in formats:
        each.check(groups, plan.lags, options)
    if options.parameter_weights is not None:
        parameter_weights(groups.get("state", []), options.parameter_weights)
    directory = output.directory
    if directory.exists() and not directory.is_dir():
        raise InputError(f"output.dir: {directory} is no folder; choose another one")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise InputError(
            f"output.dir: {directory} cannot be written to ({os.strerror(error.errno or 0)}); "
            "choose another folder"
        ) from error
    for path in (directory / name for each in formats for name in each.FILES):
        if path.exists() and not path.is_file():
            raise InputError(f"output.dir: {path} is no file, so it cannot be replaced; remove it")


def assemble(
    plan: Plan,
    records: Sequence[Record],
    *,
    split: str | None,
    run: RunInfo,
    device: str,
    corrupt: Sequence[CorruptChunk] = (),
) -> Statistics:
    """The result of a whole run.

    Args:
        plan: What was read.
        records: Each series' merged record.
        split: The split that was read.
        run: How it was read.
        device: Kind of device that the arithmetic ran on.
        corrupt: Chunks that could not be decoded and counted as missing, in any order.
    """
    source = plan.source
    first = source.groups[0]
    return Statistics(
        source=SourceInfo(
            path=source.path,
            layout=source.layout,
            split=split,
            steps=first.steps,
            trajectories=first.trajectories,
            fingerprint=plan.fingerprint(device),
            corrupt=tuple(sorted(corrupt, key=_order)),
        ),
        run=run,
        groups=tuple(_summarise(plan, group, records) for group in source.groups),
    )


def _order(chunk: CorruptChunk) -> tuple[str, str, str]:
    return chunk.array, chunk.first or "", chunk.chunk


def _summarise(plan: Plan, group: Group, records: Sequence[Record]) -> GroupStatistics:
    indices = [i for i, series in enumerate(plan.source.series) if series.group == group.name]
    lags = plan.lags_of(indices[0])
    record = empty(1 + len(lags), len(group.variables))
    for index in indices:
        columns = np.array(plan.source.series[index].columns)
        used = columns >= 0
        record[:, :, columns[used]] = records[index][:, :, used]
    return summarise(
        record,
        name=group.name,
        variables=[variable.name for variable in group.variables],
        units=[variable.unit for variable in group.variables],
        lags=lags,
        scale=[variable.scale for variable in group.variables],
        offset=[variable.offset for variable in group.variables],
    )


class WriteError(Exception):
    """The result cannot be written; the files that were there are still whole."""


def write_result(
    statistics: Statistics, output: OutputOptions, options: FormatOptions
) -> tuple[Path, ...]:
    """Writes every format, all files or none, and returns their paths.

    Raises:
        WriteError: if one cannot be written.
    """
    try:
        return write_formats(output.names, statistics, output.directory, options)
    except OSError as error:
        raise WriteError(
            f"output.dir: the result cannot be written to {output.directory} "
            f"({os.strerror(error.errno or 0)}); files that were there are unchanged; make room or "
            "choose another folder, and start again"
        ) from error
