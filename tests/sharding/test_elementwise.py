"""Every function in the table of elementwise ones, under each of its names, against plain torch."""

import warnings

import pytest
import torch

from neural_prep.sharding import ShardTensor
from neural_prep.sharding.ops import elementwise
from neural_prep.sharding.registry import aliases, has_function

pytestmark = pytest.mark.multigpu_static

NAMES = [name for name in elementwise._NAMES if has_function(name)]


def candidates():
    """Arguments, some of which each function takes."""
    generator = torch.Generator().manual_seed(0)
    floats, column = (
        torch.rand(shape, dtype=torch.float64, generator=generator) * 0.8 + 0.1
        for shape in ((5, 3), (5, 1))
    )
    integers, ones = (torch.randint(1, 6, shape, generator=generator) for shape in ((5, 3), (5, 1)))
    mask = integers > 3
    large = floats + 2
    return [
        *((floats,), (integers,), (floats, column), (integers, ones), (mask, mask)),
        *((floats, column, floats), (floats, mask, 0.5), (2, floats), (floats, 0.3, 0.2)),
        *((floats, column, 0.3), (large, 2), (floats, 1)),
    ]


def results(function, arguments):
    """What plain torch gives, as a list; None: it takes other arguments."""
    try:
        found = function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return None
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", NAMES)
def test_as_plain_torch(distributed_mesh, name):
    warnings.simplefilter("ignore")  # some names are deprecated
    checked = 0
    for function in aliases(name):
        for arguments in candidates():
            expected = results(function, arguments)
            if expected is None or not isinstance(expected[0], torch.Tensor):
                continue
            cuts = iter([{"domain": 0}, {"domain": 0}, {}])
            given = [
                ShardTensor.scatter(argument, distributed_mesh, next(cuts))
                if isinstance(argument, torch.Tensor)
                else argument
                for argument in arguments
            ]
            found = function(*given)
            found = list(found) if isinstance(found, tuple) else [found]
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == other.dtype
                torch.testing.assert_close(one.full(), other, rtol=1e-14, atol=0, equal_nan=True)
            checked += 1
    assert checked > 0
