"""`neural-prep stats`: a LightningCLI whose every mistake is one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from rich.filesize import decimal

from neural_prep.engine.config import check_arguments, explain, known_keys
from neural_prep.engine.datamodule import StatsDataModule
from neural_prep.engine.journal import Journal
from neural_prep.engine.launcher import RankLauncher
from neural_prep.engine.memory import keep_memory
from neural_prep.engine.module import StatsModule
from neural_prep.engine.peers import PeerFailedError
from neural_prep.engine.plan import Plan
from neural_prep.engine.progress import ReadingProgress
from neural_prep.engine.report import show
from neural_prep.engine.result import (
    OutputOptions,
    WriteError,
    assemble,
    check_output,
    write_result,
)
from neural_prep.engine.stopping import DONE, StopEverywhere, StoppedError, status_of
from neural_prep.engine.trainer import (
    StatsTrainer,
    check_flags,
    check_world,
    device_kind,
    launcher_flags,
)
from neural_prep.errors import InputError, ReadError
from neural_prep.interrupts import SIGNALS, STOPPED, is_first_to_end
from neural_prep.stats.accumulate import warm_up
from neural_prep.stats.statistics import RunInfo, Statistics
from neural_prep.writers.formats import FormatOptions

_log = logging.getLogger(__name__)

_DEFAULTS = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,  # Lightning's counts batches; ours counts all ranks' bytes
    "use_distributed_sampler": False,
}
_PATIENCE = 2.0  # seconds before the user is told what takes so long
_PLAIN = (
    InputError,
    StoppedError,
    ReadError,
    WriteError,
    PeerFailedError,
    OSError,
)  # errors whose message says it all
_TURN = 2.0  # seconds in which rank 0 reports a mistake that all ranks find


class StatsCLI(LightningCLI):
    """The command's sections: `trainer`, `model`, `data` and `output`."""

    datamodule: StatsDataModule
    model: StatsModule
    trainer: StatsTrainer
    device: str  # kind of device that the arithmetic runs on
    has_looked = False  # whether files have been opened, which ranks may see differently

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """`stats` alone, a method of the trainer."""
        return {"stats": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the `output` section."""
        parser.add_class_arguments(OutputOptions, "output")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Checks the YAML files' keys before their values are parsed."""
        assert isinstance(args, list)
        known = known_keys(self._subcommand_parsers["stats"])
        try:
            self.config = parser.parse_args(check_arguments(args, known))
        except ArgumentError as error:
            raise InputError(explain(str(error))) from error
        seed = self.config["stats"].get("seed_everything")
        if isinstance(seed, int) and not 0 <= seed < 2**32:
            raise InputError(f"seed_everything: {seed} is no seed; expected 0 to {2**32 - 1}")

    def instantiate_classes(self) -> None:
        """Builds trainer, model and data; what they refuse is the user's mistake."""
        try:
            super().instantiate_classes()
        except InputError:
            raise
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise InputError(str(error)) from error

    def instantiate_trainer(self, **kwargs: Any) -> StatsTrainer:
        """Builds the trainer from flags that have been checked."""
        flags = self._get(self.config_init, "trainer")
        check_flags(flags)
        self.device = device_kind(flags)
        return super().instantiate_trainer(  # type: ignore[return-value]
            **{**kwargs, "accelerator": self.device, **launcher_flags()}
        )

    def before_stats(self) -> None:
        """Checks all that can be checked before a rank reads."""
        check_world(self.trainer)
        self.has_looked = True
        self.stopping = StopEverywhere()
        self.trainer.callbacks += [self.stopping, ReadingProgress()]  # type: ignore[attr-defined]
        self.output: OutputOptions = self._get(self.config_init, "output")
        self.options = FormatOptions(self.model.parameter_weights)
        plan = self.datamodule.open(self.model.lags, self.trainer.num_devices)
        check_output(self.output, plan, self.options)
        self.model.journal = self._open_journal(plan)
        for line in plan.source.warnings:
            _log.warning("warning: %s", line)
        _log.info(
            "%s: %s in %s on %s",
            plan.source.path,
            decimal(plan.nbytes),
            _count(plan.blocks, "block"),
            _count(self.trainer.world_size, "rank"),
        )
        _compile(self.device)

    def _open_journal(self, plan: Plan) -> Journal:
        """Opens the journal, in which rank 0 finds what earlier starts have finished."""
        shapes = [plan.record_shape(series) for series in range(len(plan.source.series))]
        journal = Journal(
            self.output.directory / "journal",
            plan.covered(self.device),
            shapes,
            plan.lengths,
            keep=self.output.keep_blocks,
            required=self.output.resume == "require",
        )
        if _own_rank():
            return journal  # rank 0 will tell what it has found
        journal.lock()
        if self.output.resume == "never":
            journal.discard()
        found = journal.find()
        if journal.required and not found.blocks:
            raise InputError(
                f"output.resume: require, but {journal.folder} holds no finished block; "
                "leave it out to begin anew"
            )
        for line in found.damaged:
            _log.warning("warning: %s; the blocks behind it are read again", line)
        return journal

    def after_stats(self) -> None:
        """Writes the result, from rank 0, and shows it."""
        if not self.trainer.is_global_zero:
            return
        assert self.model.records is not None
        run = RunInfo(
            ranks=self.trainer.world_size,
            blocks=self.datamodule.plan.blocks,
            bytes=self.model.nbytes,
            seconds=self.model.seconds,
        )
        statistics = assemble(
            self.datamodule.plan,
            self.model.records,
            split=self.datamodule.split,
            run=run,
            device=self.device,
            corrupt=self.model.corrupt,
        )
        paths = write_result(statistics, self.output, self.options)
        if self.model.journal is not None:
            self.model.journal.finish()
        _show(statistics)
        _log.info(
            "wrote %s in %s from %s in %.2f s (%s/s)",
            ", ".join(path.name for path in paths),
            self.output.directory,
            decimal(run.bytes),
            run.seconds,
            decimal(int(run.bytes / max(run.seconds, 1e-9))),
        )


def run_stats(args: Sequence[str]) -> int:
    """Runs `neural-prep stats` with these arguments and returns the exit status."""
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    _quieten()
    keep_memory()
    try:
        return _run(args)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _run(args: Sequence[str]) -> int:
    cli = StatsCLI.__new__(StatsCLI)  # known here, whatever its constructor raises
    try:
        cli.__init__(  # type: ignore[misc]
            StatsModule,
            StatsDataModule,
            trainer_class=StatsTrainer,
            trainer_defaults=_DEFAULTS,
            seed_everything_default=False,
            save_config_callback=None,
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False, "stats": {"exit_on_error": False}},
            args=["stats", *args],
        )
    except BaseException as error:
        stopping: StopEverywhere | None = getattr(cli, "stopping", None)
        cause = None if stopping is None else stopping.cause
        progress = "" if stopping is None else stopping.progress
        looked = cli.has_looked or isinstance(error.__cause__, OSError)
        status = _report(cause or error, early=cause is None, shared=not looked, progress=progress)
        trainer: StatsTrainer | None = getattr(cli, "trainer", None)
        if trainer is not None and isinstance(trainer.strategy.launcher, RankLauncher):
            trainer.strategy.launcher.end_all()
        return status
    return DONE


def _report(error: BaseException, *, early: bool, shared: bool, progress: str) -> int:
    """Tells the user once what ended the run, and returns the exit status.

    A signal may come to all ranks, or to one that ends the others by signals: rank 0 tells of it.

    Args:
        error: What ended it.
        early: Whether it did so before ranks could tell one another.
        shared: Whether it was found in the arguments alone, by all ranks alike.
        progress: How far all ranks were.
    """
    if isinstance(error, MisconfigurationException):
        error = InputError(str(error))
    if isinstance(error, SystemExit):  # from --help and the like
        return int(error.code or 0)
    status = status_of(error)
    if status == STOPPED and _own_rank():
        return status
    if isinstance(error, PeerFailedError) and (not error.note or (_own_rank() and error.shared)):
        return status
    if early and _own_rank():
        time.sleep(_TURN)  # rank 0 finds the same, and whoever started us ends us meanwhile
        if shared:
            return status
    if not is_first_to_end():
        return status
    if isinstance(error, _PLAIN):
        told = f" ({progress})" if status == STOPPED and progress else ""
        sys.stderr.write(f"neural-prep: {' '.join(str(error).split())}{told}\n")
    else:
        traceback.print_exception(error)
    return status


def _compile(device: str) -> None:
    """Has the arithmetic compiled before ranks start, so that one of them does it and once."""
    hint = threading.Timer(_PATIENCE, _log.info, ["compiling the arithmetic, once on this machine"])
    hint.daemon = True
    hint.start()
    warm_up(device)
    hint.cancel()


def _show(statistics: Statistics) -> None:
    """Prints the tables; who has stopped reading them (`| head`) has the files."""
    try:
        show(statistics)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # the latter is rich's, for the same reason
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _own_rank() -> int:
    """This process' rank before there is a process group, as its launcher's environment says."""
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def _quieten() -> None:
    """Keeps from the user what a user can do nothing about, and speaks from rank 0 alone."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("neural_prep")
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if _own_rank() else logging.INFO)
