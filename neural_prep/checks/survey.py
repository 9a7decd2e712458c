"""Reports a survey: its page, to a file or to standard output, and what is wrong beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from neural_prep.checks.coverage import IN_PART, NOT_TRIED, REFUSED, RIGHT, WRONG, Survey
from neural_prep.checks.options import STANDARD_OUTPUT
from neural_prep.checks.report import Row, show_wrong
from neural_prep.checks.verdict import HOLDS, REFUSES
from neural_prep.errors import InputError


def check_target(file: str) -> None:
    """Checks that a page could be written.

    Raises:
        InputError: if there is no such folder, or it is one itself.
    """
    if file == STANDARD_OUTPUT:
        return
    if not Path(file).parent.is_dir():
        raise InputError(f"--coverage: {Path(file).parent} is no folder; make it, or give another")
    if Path(file).is_dir():
        raise InputError(f"--coverage: {file} is a folder; give a file, such as {file}/coverage.md")


def tell_survey(survey: Survey, rows: Sequence[Row], file: str, ended: str) -> None:
    """Writes the page, and tells what is wrong on standard error.

    Args:
        survey: What was run.
        rows: What was found, in the same order.
        file: Where the page goes.
        ended: Why not all of it has run: there is no page then.
    """
    console = Console(stderr=True)
    show_wrong(console, [row for row in rows if row.verdict.word not in (HOLDS, REFUSES)])
    if ended:
        console.print(Text(ended, style="bold red"), soft_wrap=True)
        return
    names = (trial.case.name for trial in survey.trials.values())
    verdicts = {name: row.verdict for name, row in zip(names, rows, strict=True)}
    page = survey.page(verdicts)
    if file == STANDARD_OUTPUT:
        sys.stdout.write(page)
        return
    Path(file).write_text(page, encoding="utf-8")
    found = [row.verdict for table in survey.rows(verdicts).values() for row in table]
    words = [RIGHT, IN_PART, REFUSED, NOT_TRIED, *([WRONG] if WRONG in found else [])]
    counts = [f"{found.count(word)} {word}" for word in words]
    ranks = f"{survey.ranks} rank{'s' * (survey.ranks != 1)}"
    seconds = sum(row.seconds for row in rows)
    line = f"wrote {file}: {', '.join(counts)}; {len(rows)} trials on {ranks}, in {seconds:.1f} s"
    Console().print(Text(line), soft_wrap=True)
