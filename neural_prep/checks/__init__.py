"""Numerical checks of sharded layers against their serial twins, from YAML."""

from neural_prep.checks.cases import Case, in_float32
from neural_prep.checks.in_tests import check_case
from neural_prep.checks.loading import load_cases

__all__ = ["Case", "check_case", "in_float32", "load_cases"]
