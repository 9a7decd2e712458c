"""What all ranks together have found of a case: one verdict, and what is wrong in lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neural_prep.checks.check import Outcome, Part
from neural_prep.world.ranks import is_of_lost_peer

_WIDTH = 120  # of what is told briefly
_LINES = 12  # of a stack or of what a rank has written
HOLDS, REFUSES = "holds", "refuses"
DIFFERS, RAISES, HANGS, DIES = "differs", "raises", "hangs", "dies"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a rank that has not come to the end of a case.

    Attributes:
        text: In words, such as `ended with exit code 3`.
        details: Where it is, or what it has written.
        dead: Whether it is gone.
    """

    text: str
    details: str = ""
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a case.

    Attributes:
        word: One of the words above.
        errors: The largest error of each part, over all ranks.
        lines: What is wrong, each with its ranks.
        in_step: Whether all ranks are at the same point, and may go on together.
    """

    word: str = HOLDS
    errors: Mapping[Part, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    in_step: bool = True

    @property
    def holds(self) -> bool:
        """Whether the case holds."""
        return self.word == HOLDS


def judge(outcomes: Mapping[int, Outcome], fates: Mapping[int, Fate]) -> Verdict:
    """The verdict of all ranks.

    Args:
        outcomes: What ranks have found that came to the end.
        fates: What became of others.
    """
    dead = [rank for rank, fate in fates.items() if fate.dead]
    raising = [rank for rank, one in outcomes.items() if one.raised]
    following = [rank for rank in raising if fates and is_of_lost_peer(outcomes[rank].raised)]
    lines = _by_ranks({rank: [_ended(fates[rank])] for rank in dead})
    lines += _by_ranks({rank: one.differences for rank, one in outcomes.items()})
    lines += _by_ranks({r: [_raised(outcomes[r])] for r in raising if r not in following})
    lines += _by_ranks({rank: [_ended(fates[rank])] for rank in fates if rank not in dead})
    lines += _by_ranks({r: [textwrap.shorten(outcomes[r].raised, _WIDTH)] for r in following})
    apart = "" if fates else _apart({rank: one.position for rank, one in outcomes.items()})
    if not lines:
        lines += _unequal(outcomes)
    if apart:
        lines.append(f"the ranks left the case at different points: {apart}")
    if dead:
        word = DIES
    elif not fates and not apart and _all_refuse(outcomes.values()):
        word = REFUSES
    elif len(raising) > len(following):
        word = RAISES
    elif fates and not any(one.differences for one in outcomes.values()):
        word = HANGS
    else:
        word = DIFFERS if lines else HOLDS
    return Verdict(word, _largest(outcomes.values()), tuple(lines), not (fates or apart))


def _all_refuse(outcomes: Iterable[Outcome]) -> bool:
    """Whether all ranks refuse alike, with nothing wrong before."""
    found = list(outcomes)
    alike = len({one.raised for one in found}) == 1
    return alike and all(one.refused and not one.differences for one in found)


def _raised(outcome: Outcome) -> str:
    return f"{outcome.raised}\n{_last(outcome.trace)}".rstrip()


def _ended(fate: Fate) -> str:
    return f"{fate.text}\n{_last(fate.details)}".rstrip()


def _last(text: str) -> str:
    """The last lines of a long text, where the cause is."""
    lines = text.splitlines()
    return "\n".join(lines if len(lines) <= _LINES else ["  ...", *lines[-_LINES:]])


def _largest(outcomes: Iterable[Outcome]) -> dict[Part, float]:
    found: dict[Part, float] = {}
    for outcome in outcomes:
        for part, error in outcome.errors.items():
            found[part] = max(found.get(part, 0.0), error)
    return found


def _by_ranks(said: Mapping[int, Sequence[str]]) -> list[str]:
    """Lines, each once, after the ranks that say it.

    >>> _by_ranks({0: ["differs"], 1: ["differs", "hangs"]})
    ['ranks 0, 1: differs', 'rank 1: hangs']
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(said):
        for text in said[rank]:
            ranks.setdefault(text, []).append(rank)
    return [f"{named(who)}: {text}" for text, who in ranks.items()]


def named(ranks: Sequence[int]) -> str:
    """Ranks in words.

    >>> named([1]), named([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _unequal(outcomes: Mapping[int, Outcome]) -> list[str]:
    """What should be the same on several ranks and is not."""
    lines = []
    for name in dict.fromkeys(name for one in outcomes.values() for name in one.layouts):
        found = {rank: one.layouts.get(name, "missing") for rank, one in outcomes.items()}
        if len(set(found.values())) > 1:
            words = [f"{found[rank].strip()} on rank {rank}" for rank in sorted(found)]
            lines.append(f"{name} is {', '.join(words)}")
    if lines:
        return lines
    for name in dict.fromkeys(name for one in outcomes.values() for name in one.same):
        first: dict[tuple[int, ...], tuple[int, str]] = {}
        for rank in sorted(outcomes):
            piece, word = outcomes[rank].same.get(name, ((), ""))
            other, expected = first.setdefault(piece, (rank, word))
            if word != expected:
                lines.append(f"{name} is not the same on ranks {other} and {rank}")
                break
    return lines


def _apart(positions: Mapping[int, Mapping[str, int]]) -> str:
    """Where ranks stand at different points; empty: nowhere.

    >>> _apart({0: {"group 0": 3}, 1: {"group 0": 2}})
    'group 0: 3 collectives on rank 0, 2 on rank 1'
    """
    for name in dict.fromkeys(name for one in positions.values() for name in one):
        found = {rank: one[name] for rank, one in positions.items() if name in one}
        if len(set(found.values())) > 1:
            unit = "" if name == "groups made" else " collectives"
            counts = [f"{count} on rank {rank}" for rank, count in sorted(found.items())]
            return f"{name}: {', '.join(counts).replace(' on', f'{unit} on', 1)}"
    return ""
