"""The options of `neural-prep check`; whatever is wrong with them is one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import PositiveFloat, PositiveInt

from neural_prep.checks.loading import explain
from neural_prep.checks.names import nearest
from neural_prep.errors import InputError

SAMPLES = "configs/coverage.yaml"
STANDARD_OUTPUT = "-"
_TIMEOUT = 60.0  # seconds that a case may take
_DTYPE = "float64"


def parse_options(args: Sequence[str]) -> Any:
    """What is asked for.

    Raises:
        InputError: if an option is unknown, missing or wrong, or does not go with another.
    """
    parser = _parser()
    known = [name for action in parser._actions for name in action.option_strings]
    for arg in args:
        name = arg.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise InputError(f"{name} is not a known option{nearest(name, known)}")
    try:
        options = parser.parse_args(list(args))
    except ArgumentError as error:
        found = re.fullmatch(r"(\w+): (.*)", explain(error, {}))
        line = explain(error, {})
        if found is not None:
            line = f"--{found[1].replace('_', '-')}: {_in_words(found[2])}"
        raise InputError(f"{line} (neural-prep check --help lists all options)") from error
    _check_together(options)
    return options


def _check_together(options: Any) -> None:
    if options.coverage is None:
        if options.config is None:
            raise InputError("--config: not given, expected a file of cases")
        return
    for option, is_given in {"only": options.only, "dtype": options.dtype != _DTYPE}.items():
        if is_given:
            raise InputError(f"--{option}: --coverage is of all samples as they are; leave it out")
    options.config = options.config or SAMPLES


def _in_words(said: str) -> str:
    """What jsonargparse says of a number that is none, in fewer words.

    >>> _in_words("Not of type PositiveInt: 0 does not conform to restriction v>0")
    'found 0, expected a whole number above 0'
    >>> _in_words("Not of type PositiveFloat: could not convert string to float: 'x'")
    'found x, expected a number above 0'
    """
    found = re.match(r"Not of type Positive(\w+): (?:(\S+) does not conform|.*: '(.*)')", said)
    if found is None:
        return said
    kind = "whole number" if found[1] == "Int" else "number"
    return f"found {found[2] or found[3]}, expected a {kind} above 0"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="neural-prep check",
        description="Check sharded layers against their serial twins: outputs, gradients of inputs "
        "and parameters, buffers. Starts its own ranks, or uses torchrun's or srun's.",
        exit_on_error=False,
    )
    parser.add_argument(
        "-c", "--config", type=str | None, metavar="FILE", help="The file of cases, or of samples."
    )
    parser.add_argument(
        "--nproc-per-node",
        type=PositiveInt,
        default=None,
        metavar="N",
        help="Number of ranks. Default: that of GPUs, else 2.",
    )
    parser.add_argument(
        "--only", type=str | None, metavar="PATTERN", help="Only cases with such names: 'conv*'."
    )
    parser.add_argument(
        "--dtype",
        type=Literal["float64", "float32"],
        default=_DTYPE,
        help="With float32, check in that, to 1e-5, the cases that set no dtype of their own. "
        "Default: each case's dtype.",
    )
    parser.add_argument(
        "--timeout",
        type=PositiveFloat,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"Seconds that a case may take. Default: {_TIMEOUT:g}.",
    )
    parser.add_argument(
        "--coverage",
        type=str | None,
        nargs="?",
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="Cut samples along every dimension instead, and write what works as a page of "
        f"Markdown. Default: to standard output, from the samples in {SAMPLES}.",
    )
    return parser
