"""Readers of whole sources that check what every `Series` promises, and writers of small stores."""

import numpy as np
import pytest


def walk(series, *, lag=0, piece_steps=None, continued=False):
    """Reads a series block by block and checks its promises.

    Returns:
        `{(position, column): [values of each part ...]}` of all selected steps, each read once.
    """
    found, ages, rings = {}, {}, {}
    outline = series.outline(lag=lag, piece_steps=piece_steps)
    assert len(outline.pieces) == len(outline.again) == len(series.block_nbytes)
    for block, nbytes in enumerate(series.block_nbytes):
        before = series.predecessor(block)
        keep = continued and before is not None
        assert not keep or before < block
        spans = list(series.spans(block, lag=lag, piece_steps=piece_steps, continued=keep))
        assert [span.last for span in spans] == [False] * (len(spans) - 1) + [True] * bool(spans)
        assert sum(span.nbytes for span in spans if not span.context) == nbytes
        assert before is None or before == block - outline.apart
        assert outline.pieces[block] == sum(not span.context for span in spans)
        earlier = sum(span.nbytes for span in spans if span.context)
        assert outline.again[block] == earlier or keep
        for number, span in enumerate(spans):
            assert (span.block, span.part) == (block, spans[0].part)
            ring = rings.setdefault(span.part, {})
            if number == 0 and not keep:
                ring.clear()
            assert span.context == 0 or (number == 0 and span.context == span.stop - span.first)
            piece = series.read(span)
            check_piece(piece, series)
            assert piece.values.nbytes <= max(outline.piece_nbytes, lag * outline.step_nbytes)
            assert series.place(span, len(piece.age) - 1)
            flat = piece.values.swapaxes(2, 3)  # (T, O, I, N)
            flat = flat.reshape(*flat.shape[:1], len(series.columns), -1)
            for step, age in enumerate(piece.age):
                position = span.first + step
                ring[position] = flat[step]
                for distance in range(1, min(lag, age) + 1 if not span.context else 0):
                    assert position - distance in ring, "a lag's earlier step was not read"
                if span.context or age < 0:
                    continue
                assert ages.setdefault(position, age) == age
                for column, values in zip(series.columns, flat[step], strict=True):
                    if column >= 0:
                        parts = found.setdefault((position, column), {})
                        assert span.part not in parts, "a value was read twice"
                        parts[span.part] = values
            for position in sorted(ring)[: -max(lag, 1)]:
                del ring[position]
    return {key: list(parts.values()) for key, parts in found.items()}, ages


def check_piece(piece, series):
    values, span = piece.values, piece.span
    assert values.ndim == 4
    assert values.shape[0] == len(piece.age) == span.stop - span.first
    assert values.shape[1] * values.shape[3] == len(series.columns)
    assert values.dtype in (np.float32, np.float64)
    assert values.dtype.isnative
    assert values[0].flags.c_contiguous
    assert piece.age.dtype == np.int64


@pytest.fixture(name="walk", scope="session")
def walk_fixture():
    return walk


@pytest.fixture(scope="session")
def summarise():
    """Count, missing, min and max of each variable, in physical units, by plain NumPy."""

    def run(source, **how):
        result = {}
        for series in source.series:
            group = next(group for group in source.groups if group.name == series.group)
            for (_, column), parts in walk(series, **how)[0].items():
                variable = group.variables[column]
                values = np.concatenate(parts).astype(np.float64) * variable.scale + variable.offset
                result.setdefault((group.name, variable.name), []).append(values)
        return {key: summary(np.concatenate(steps)) for key, steps in result.items()}

    return run


def summary(values):
    finite = values[np.isfinite(values)]
    least, most = (finite.min(), finite.max()) if len(finite) else (None, None)
    return {"count": len(finite), "missing": len(values) - len(finite), "min": least, "max": most}
