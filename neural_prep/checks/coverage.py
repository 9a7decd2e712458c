"""What works on pieces, name by name, as a page of Markdown: what trials of samples have found."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from neural_prep.checks.cases import Case
from neural_prep.checks.names import find_name
from neural_prep.checks.samples import Samples
from neural_prep.checks.sweep import Trial, target_of, trials_of
from neural_prep.checks.verdict import HOLDS, REFUSES, Verdict

RIGHT, IN_PART, REFUSED, NOT_TRIED, WRONG = "right", "in part", "refused", "not tried", "WRONG"
_WORDS = (RIGHT, IN_PART, REFUSED, NOT_TRIED, WRONG)
_MODULES, _FUNCTIONS = "torch.nn", "torch.nn.functional"
_NO_SAMPLE = "no sample"
_NAMED = 2  # cases that a row names
_WIDTH = 90  # of a reason
_REASON = re.compile(
    r"NotImplementedError: (.+?) of a tensor that is (?:cut .*? along \S+|replicated) (.+?);"
)
_HEAD = """\
# What runs on pieces

Every module of `torch.nn` and every public function of `torch.nn.functional`, of torch {torch}.
Each was run on samples whose inputs were cut along one dimension after the other, on {ranks} ranks:
as evenly as can be, unevenly, and with an empty piece. Where there are several inputs, *all* of as
many dimensions as the first were cut alike, then each one alone. Outputs and all gradients were
compared with those of one process, to {rtol:g} of the largest value in {dtype}. Random functions
draw other numbers than on one process, so dropout was run where it keeps, or drops, everything.

*Right* is what gives the same; *refused*, what raises `NotImplementedError` on every rank; *in
part*, what does either, by the dimension that is cut, or by how. Numbers are dimensions. The last
column names cases of `configs/sharded_layers.yaml` that check more.

Written by `neural-prep check --coverage docs/coverage.md`, from the samples in
`configs/coverage.yaml`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What has been found of a module or a function.

    Attributes:
        target: Its import path.
        verdict: One of the words above.
        right: Along which dimensions it is right.
        refused: Along which it is refused, at least for some sizes.
        why: Why it is refused, or was not tried.
        cases: Names of other cases that check it.
    """

    target: str
    verdict: str
    right: str = ""
    refused: str = ""
    why: str = ""
    cases: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The row of a table in Markdown."""
        name = self.target.rpartition(".")[2]
        more = len(self.cases) - _NAMED
        named = ", ".join(self.cases[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        cells = (f"`{name}`", self.verdict, self.right, self.refused, self.why, named)
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Survey:
    """All trials of samples.

    Attributes:
        samples: The samples.
        ranks: Number of ranks.
        trials: What to run, by the name of its case.
    """

    samples: Samples
    ranks: int
    trials: Mapping[str, Trial]

    @classmethod
    def of(cls, samples: Samples, ranks: int) -> Survey:
        """Every trial of every sample."""
        found = (trial for sample in samples.cases for trial in trials_of(sample, ranks))
        return cls(samples, ranks, {trial.case.name: trial for trial in found})

    def trials_of(self, target: str) -> list[Trial]:
        """The trials of one module or function."""
        return [trial for trial in self.trials.values() if trial.target == target]

    def row(self, target: str, verdicts: Mapping[str, Verdict]) -> Row:
        """What has been found of a module or a function.

        Args:
            target: Its import path.
            verdicts: By the names of cases.
        """
        cases = tuple(case.name for case in self.samples.checks if _checks(case, target))
        trials = self.trials_of(target)
        if not trials:
            why = self.samples.untried.get(target, _NO_SAMPLE)
            return Row(target, NOT_TRIED, why=why, cases=cases)
        words: dict[tuple[str, int], set[str]] = {}
        for trial in trials:
            word = verdicts[trial.case.name].word
            words.setdefault((trial.argument, trial.dim), set()).add(word)
        right = [key for key, found in words.items() if found == {HOLDS}]
        refused = [key for key, found in words.items() if REFUSES in found]
        verdict = IN_PART
        if any(found - {HOLDS, REFUSES} for found in words.values()):
            verdict = WRONG
        elif not refused:
            verdict = RIGHT
        elif set.union(*words.values()) == {REFUSES}:
            verdict = REFUSED
        mixed = {key for key in refused if HOLDS in words[key]}
        why = _reason(verdicts[trial.case.name] for trial in trials)
        return Row(target, verdict, _listed(right), _listed(refused, mixed), why, cases)

    def rows(self, verdicts: Mapping[str, Verdict]) -> dict[str, list[Row]]:
        """A table for each namespace."""
        known = {_MODULES: list(public_modules()), _FUNCTIONS: list(public_functions())}
        others = {target_of(case) for case in self.samples.cases}.difference(*known.values())
        known |= {"others": sorted(others)} if others else {}
        return {
            title: [self.row(target, verdicts) for target in targets]
            for title, targets in known.items()
        }

    def page(self, verdicts: Mapping[str, Verdict]) -> str:
        """All of it, in Markdown."""
        tables = self.rows(verdicts)
        first = self.samples.cases[0]
        head = _HEAD.format(
            torch=torch_version(), ranks=self.ranks, rtol=first.rtol, dtype=first.dtype
        )
        counts = [_counts(title, rows) for title, rows in tables.items()]
        lines = [head, _line("", *_WORDS[:4]), _line(*["---"] * 5), *counts]
        for title, rows in tables.items():
            lines += ["", f"## {title}", ""]
            lines += [_line("name", "verdict", "right along", "refused along", "why", "cases")]
            lines += [_line(*["---"] * 6), *map(str, rows)]
        return "\n".join(lines) + "\n"


def public_modules() -> Iterator[str]:
    """Import paths of the modules of `torch.nn`.

    >>> "torch.nn.Conv2d" in public_modules()
    True
    """
    for name, found in sorted(vars(nn).items()):
        if isinstance(found, type) and issubclass(found, nn.Module) and not name.startswith("_"):
            yield f"{_MODULES}.{name}"


def public_functions() -> Iterator[str]:
    """Import paths of the functions of `torch.nn.functional`.

    >>> {"torch.nn.functional.conv2d", "torch.nn.functional.relu_"} < set(public_functions())
    True
    """
    borrowed = [torch.overrides, torch._jit_internal]
    for name, found in sorted(vars(F).items()):
        if name.startswith("_") or not inspect.isroutine(found):
            continue
        if not any(getattr(module, name, None) is found for module in borrowed):
            yield f"{_FUNCTIONS}.{name}"


def torch_version() -> str:
    """Torch's version, without that of its build."""
    return torch.__version__.partition("+")[0]


def _checks(case: Case, target: str) -> bool:
    """Whether a case checks this, under whatever name."""
    return _found(target_of(case)) is _found(target)


@cache
def _found(path: str) -> Any:
    return find_name(path, "sample")


def _counts(title: str, rows: Sequence[Row]) -> str:
    words = [row.verdict for row in rows]
    return _line(title, *(str(words.count(word)) for word in _WORDS[:4]))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(keys: Iterable[tuple[str, int]], mixed: Iterable[tuple[str, int]] = ()) -> str:
    """Dimensions by argument.

    >>> _listed([("all", 0), ("all", 1), ("target", 0)], [("all", 1)])
    'all 0, 1 in part; target 0'
    """
    found: dict[str, list[str]] = {}
    for argument, dim in keys:
        part = " in part" if (argument, dim) in mixed else ""
        found.setdefault(argument, []).append(f"{dim}{part}")
    return "; ".join(f"{argument} {', '.join(dims)}".strip() for argument, dims in found.items())


def _reason(verdicts: Iterable[Verdict]) -> str:
    """Why the first of those that refuse does."""
    for verdict in verdicts:
        if verdict.word == REFUSES:
            said = " ".join(verdict.lines[0].splitlines()[0].split())
            found = _REASON.search(said)
            text = f"{found[1]} {found[2]}" if found else said.partition("Error: ")[2]
            return textwrap.shorten(text.replace("|", "/"), _WIDTH, placeholder=" ...")
    return ""
