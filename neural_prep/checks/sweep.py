"""Cuts a sample along every dimension of every input in turn: cases that show where it works."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neural_prep.checks.cases import Argument, Case, Constant, Input
from neural_prep.checks.names import find_name
from neural_prep.checks.sound import shape_of
from neural_prep.sharding.layout import split_sizes

ALL = "all"  # instead of an argument: all of them are cut alike

Place = tuple[int, int]  # an argument's number, and one in it where that is a list, else 0


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample whose inputs are cut in one way.

    Attributes:
        target: The import path of the module or function.
        argument: The argument that is cut, or `ALL`; empty where there is only one to cut.
        dim: The dimension.
        division: How it is divided: `even`, `uneven` or `empty`.
        case: The case to run.
    """

    target: str
    argument: str
    dim: int
    division: str
    case: Case


def target_of(case: Case) -> str:
    """The import path of what a case checks."""
    path = case.function if case.module is None else case.module.class_path
    assert path is not None
    return path


def trials_of(sample: Case, ranks: int) -> Iterator[Trial]:
    """Every way to cut a sample along one dimension.

    All inputs of as many dimensions as the first one are cut alike, then each one alone: as evenly
    as can be, with one row for each rank but the first, and with nothing for the first.

    Args:
        sample: A case without cuts; inputs that are `plain` are never cut.
        ranks: Number of ranks.
    """
    shapes = dict(_shapes(sample))
    if not shapes:
        return
    first = next(iter(shapes.values()))
    alike = [place for place, shape in shapes.items() if len(shape) == len(first)]
    chosen = {ALL: alike} if len(alike) > 1 else {}
    chosen |= {_label(sample, place): [place] for place in shapes}
    for label, places in chosen.items():
        for dim in range(len(shapes[places[0]])):
            for division, cuts in _divisions([shapes[place][dim] for place in places], ranks):
                sizes = dict(zip(places, cuts, strict=True))
                label = label if len(shapes) > 1 else ""
                name = "-".join([sample.name, *([label] if label else []), str(dim), division])
                inputs = tuple(_cut(sample.inputs, dim, sizes, ranks))
                case = replace(sample, name=name, inputs=inputs, ranks=(ranks,))
                yield Trial(target_of(sample), label, dim, division, case)


def _shapes(sample: Case) -> Iterator[tuple[Place, tuple[int, ...]]]:
    """The shapes of what can be cut."""
    for number, argument in enumerate(sample.inputs):
        for place, part in enumerate(_parts(argument)):
            if isinstance(part, Input) and not part.plain and shape_of(part):
                yield (number, place), shape_of(part)


def _parts(argument: Argument) -> tuple[Input | Constant, ...]:
    return argument if isinstance(argument, tuple) else (argument,)


def _divisions(totals: Sequence[int], ranks: int) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Ways to divide dimensions of these sizes, each way once."""
    seen: list[list[tuple[int, ...]]] = []
    for name, divide in (("even", split_sizes), ("uneven", _uneven), ("empty", _empty)):
        sizes = [tuple(divide(total, ranks)) for total in totals]
        if sizes not in seen:
            seen.append(sizes)
            yield name, sizes


def _uneven(total: int, ranks: int) -> tuple[int, ...]:
    """One for each rank but the first, as long as there are.

    >>> _uneven(5, 3), _uneven(2, 3)
    ((3, 1, 1), (1, 1, 0))
    """
    others = [int(rank < total) for rank in range(1, ranks)]
    return (total - sum(others), *others)


def _empty(total: int, ranks: int) -> tuple[int, ...]:
    """Nothing for the first rank, or, of three and more, for the second.

    >>> _empty(5, 2), _empty(5, 3)
    ((0, 5), (3, 0, 2))
    """
    if ranks == 1:
        return (total,)
    parts = list(split_sizes(total, ranks - 1))
    parts.insert(min(1, ranks - 2), 0)
    return tuple(parts)


def _cut(
    inputs: Sequence[Argument], dim: int, sizes: Mapping[Place, tuple[int, ...]], ranks: int
) -> Iterator[Argument]:
    for number, argument in enumerate(inputs):
        parts = [
            replace(part, cut={"domain": dim}, sizes={ranks: (sizes[number, place],)})
            if isinstance(part, Input) and (number, place) in sizes
            else part
            for place, part in enumerate(_parts(argument))
        ]
        yield tuple(parts) if isinstance(argument, tuple) else parts[0]


def _label(sample: Case, place: Place) -> str:
    """What an input is called: its keyword, or its name in the function's signature."""
    number, inside = place
    argument = sample.inputs[number]
    suffix = f"[{inside}]" if isinstance(argument, tuple) else ""
    keyword = getattr(argument, "name", None)
    if keyword is not None:
        return f"{keyword}{suffix}"
    found = find_name(target_of(sample), "sample")
    try:
        known = list(inspect.signature(getattr(found, "forward", found)).parameters.values())
    except (TypeError, ValueError):  # of a function without a signature
        known = []
    names = [one.name for one in known if one.kind is not one.VAR_POSITIONAL and one.name != "self"]
    variadic = any(one.kind is one.VAR_POSITIONAL for one in known)
    if number >= len(names) or variadic:
        return f"argument {number + 1}{suffix}" if number else f"input{suffix}"
    return f"{names[number]}{suffix}"
