"""The hot loop: each step's sums, and its differences', in a fixed order that vectorises as it is.

This text is the definition; tests hold the code against plain NumPy made from it, bit by bit.

A *row* is the values of one step that lie together in memory: N grid points of I interleaved
variables. All arithmetic is in float64. With `lanes` the least power of two that makes
`width = lanes * I` at least `WIDTH`, the value of grid point n goes into lane n mod lanes.

*Shift.* Each variable's mean over `min(N, SAMPLE)` points, k * N // taken for k = 0, 1, ..., added
in this order, without those that are not finite; 0 if none is left. Of differences likewise.

*Sums.* A row is cut into tiles of `TILE * width` values. In a tile each lane adds `x - shift` and
its square, in order of n. At the tile's end the upper half of the lanes is added to the lower half
until one is left, and the tile's two sums are added to the row's: each is a running sum, with the
rounding errors of its additions (`two_sum`) added up beside it. Values that are not finite add
nothing; minimum and maximum are of the others, of differences as float64 rounds them (of 0 and -0
the one in the first lane, and there the first).

*Record.* With S and Q the row's sums, S's error added: `off = S / count`, mean = shift + off as
`two_sum`, M2 = Q - S * off plus Q's error; 0 where it is not positive. If all values are equal, the
mean is their value and M2 is 0. Sums that overflow give a NaN mean, squares that do an infinite M2.

*Again.* A variable is summed again about its mean, differences with what rounded in subtracting
(`((x - p) - shift) + error`), where the shift was off by more than `FAR` standard deviations, or
where a difference rounds somewhere and is steady: |mean| is more than `STEADY` standard deviations,
or all are equal as rounded and not 0. Without this, the rounding would show beside a small std.

Squares need deviations between 1e-150 and 1e150: larger ones overflow, a std of smaller ones is
lost. A difference that overflows counts as missing.

A row's tile serves its values and every lag while it is in cache. Measured on one core, float32, 1
to 100 interleaved variables: 6 GB/s for values alone, which is reading memory (a plain loop: 2.3),
3 GB/s with one lag. All of it is in one file because numba's cache of a compiled function does not
notice changes in other files: after one in `moments.two_sum` or `settle`, touch this file.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from neural_prep.stats.moments import (
    COUNT,
    M2,
    M2_LOW,
    MAX,
    MEAN,
    MEAN_LOW,
    MIN,
    MISSING,
    settle,
    two_sum,
)
from neural_prep.stats.prefetch import prefetch

WIDTH = 256  # least values that are added side by side
TILE = 32  # groups of `width` values before lanes are combined
SAMPLE = 64  # values that guess the shift
FAR = 4.0  # standard deviations; the square of this is what cancels of M2's digits
STEADY = 1e3  # |mean| / std of a difference, above which its rounding could show at 1e-12

# Rows of the accumulators, `(6, width)`.
_SUM, _SQUARES, _LEAST, _MOST, _PRESENT, _INFINITE = range(6)


def lanes_of(inner: int) -> int:
    """How many lanes a row of `inner` interleaved variables has.

    >>> lanes_of(1), lanes_of(17), lanes_of(100), lanes_of(300)
    (256, 16, 4, 1)
    """
    lanes = 1
    while lanes * inner < WIDTH:
        lanes *= 2
    return lanes


@njit(nogil=True, cache=True)
def _one(a, shift, s, q, low, high):  # type: ignore[no-untyped-def]
    """The sums, least and most with one more value."""
    low = a if a < low else low
    high = a if a > high else high
    a -= shift
    return s + a, q + a * a, low, high


@njit(nogil=True, cache=True)
def _one_present(a, shift, s, q, low, high, count):  # type: ignore[no-untyped-def]
    """`_one`, and the count, unless the value is NaN: comparisons leave that out by themselves."""
    present = a == a
    low = a if a < low else low
    high = a if a > high else high
    deviation = a - shift if present else 0.0
    added = 1.0 if present else 0.0
    return s + deviation, q + deviation * deviation, low, high, count + added


@njit(nogil=True, cache=True)
def _add(x, p, width, shift, acc, counts):  # type: ignore[no-untyped-def]
    """Adds one tile, four groups at a time to keep sums in registers.

    Each group is a view of its own: with computed indices into `x` the loop does not vectorise.
    What is None is known when a variant is compiled, and costs nothing.

    Args:
        x: The tile's values.
        p: What is subtracted from them, for differences; else None.
        width: Values of a group.
        shift: `(width,)`.
        acc: `(6, width)`.
        counts: `(width,)`, counts what is not NaN; None: nothing is.
    """
    sums, squares, least, most = acc[0], acc[1], acc[2], acc[3]
    whole = x.size // (4 * width) * (4 * width)
    for begin in range(0, whole, 4 * width):
        if p is None:
            prefetch(x, begin + 4 * width, begin + 8 * width)
        else:
            prefetch(p, begin + 4 * width, begin + 8 * width)  # `x` has just been read
        x0 = x[begin : begin + width]
        x1 = x[begin + width : begin + 2 * width]
        x2 = x[begin + 2 * width : begin + 3 * width]
        x3 = x[begin + 3 * width : begin + 4 * width]
        if p is not None:
            p0 = p[begin : begin + width]
            p1 = p[begin + width : begin + 2 * width]
            p2 = p[begin + 2 * width : begin + 3 * width]
            p3 = p[begin + 3 * width : begin + 4 * width]
        for j in range(width):
            c, s, q, low, high = shift[j], sums[j], squares[j], least[j], most[j]
            a0, a1 = np.float64(x0[j]), np.float64(x1[j])
            a2, a3 = np.float64(x2[j]), np.float64(x3[j])
            if p is not None:
                a0 -= np.float64(p0[j])
                a1 -= np.float64(p1[j])
                a2 -= np.float64(p2[j])
                a3 -= np.float64(p3[j])
            if counts is None:
                s, q, low, high = _one(a0, c, s, q, low, high)
                s, q, low, high = _one(a1, c, s, q, low, high)
                s, q, low, high = _one(a2, c, s, q, low, high)
                s, q, low, high = _one(a3, c, s, q, low, high)
            else:
                n = counts[j]
                s, q, low, high, n = _one_present(a0, c, s, q, low, high, n)
                s, q, low, high, n = _one_present(a1, c, s, q, low, high, n)
                s, q, low, high, n = _one_present(a2, c, s, q, low, high, n)
                s, q, low, high, n = _one_present(a3, c, s, q, low, high, n)
                counts[j] = n
            sums[j], squares[j], least[j], most[j] = s, q, low, high
    for begin in range(whole, x.size, width):
        rest = x[begin : begin + width]
        for j in range(rest.size):
            a = np.float64(rest[j])
            if p is not None:
                a -= np.float64(p[begin + j])
            c, s, q, low, high = shift[j], sums[j], squares[j], least[j], most[j]
            if counts is None:
                s, q, low, high = _one(a, c, s, q, low, high)
            else:
                s, q, low, high, counts[j] = _one_present(a, c, s, q, low, high, counts[j])
            sums[j], squares[j], least[j], most[j] = s, q, low, high


@njit(nogil=True, cache=True)
def _add_tile(x, p, differs, gaps, width, shift, acc):  # type: ignore[no-untyped-def]
    """`_add` in the variant that a row of values, or of differences, needs."""
    if differs and gaps:
        _add(x, p, width, shift, acc, acc[_PRESENT])
    elif differs:
        _add(x, p, width, shift, acc, None)
    elif gaps:
        _add(x, None, width, shift, acc, acc[_PRESENT])
    else:
        _add(x, None, width, shift, acc, None)


@njit(nogil=True, cache=True)
def _add_finite(x, error, width, shift, acc):  # type: ignore[no-untyped-def]
    """`_add` of the finite values of `x` and their rounding `error`, with counts of both kinds.

    The same bits as `_add` where none is infinite and no error is there.
    """
    sums, squares, least, most = acc[0], acc[1], acc[2], acc[3]
    present, infinite = acc[4], acc[5]
    for begin in range(0, x.size, width):
        rest = x[begin : begin + width]
        errors = error[begin : begin + width]
        for j in range(rest.size):
            a = np.float64(rest[j])
            finite = a - a == 0.0
            low = a if finite else np.inf
            high = a if finite else -np.inf
            least[j] = low if low < least[j] else least[j]
            most[j] = high if high > most[j] else most[j]
            present[j] += 1.0 if finite else 0.0
            infinite[j] += 0.0 if finite else (1.0 if a == a else 0.0)
            deviation = (a - shift[j]) + errors[j] if finite else 0.0
            sums[j] += deviation
            squares[j] += deviation * deviation


@njit(nogil=True, cache=True)
def _subtract(x, p, difference):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        difference[i] = np.float64(x[i]) - np.float64(p[i])


@njit(nogil=True, cache=True)
def _subtraction_error(x, p, error):  # type: ignore[no-untyped-def]
    """What `_subtract` rounds away (the rest of Knuth's two-sum)."""
    for i in range(x.size):
        a, b = np.float64(x[i]), np.float64(p[i])
        total = a - b
        other = total - a
        error[i] = (a - (total - other)) - (b + other)


@njit(nogil=True, cache=True)
def _find_rounding(x, p, width, worst, scratch):  # type: ignore[no-untyped-def]
    """Raises `worst` (width) to the largest rounding error of the differences in each place."""
    for begin in range(0, x.size, TILE * width):
        tile, earlier = x[begin : begin + TILE * width], p[begin : begin + TILE * width]
        error = scratch[1, : tile.size]
        _subtraction_error(tile, earlier, error)
        for group in range(0, tile.size, width):
            errors = error[group : group + width]
            for j in range(errors.size):
                size = abs(errors[j])
                worst[j] = size if size > worst[j] else worst[j]  # not where it is NaN


@njit(nogil=True, cache=True)
def _flush(acc, sums, inner, width):  # type: ignore[no-untyped-def]
    """Adds lanes by halves, and the tile to the row's `sums` (4, inner): S, its error, Q, its."""
    for r in range(2):
        lanes = acc[r]
        half = width // 2
        while half >= inner:
            left, right = lanes[:half], lanes[half : 2 * half]
            for j in range(half):
                left[j] += right[j]
            half //= 2
        for i in range(inner):
            sums[2 * r, i], error = two_sum(sums[2 * r, i], lanes[i])
            sums[2 * r + 1, i] += error
        lanes[:] = 0.0


@njit(nogil=True, cache=True)
def _clear(acc, sums):  # type: ignore[no-untyped-def]
    acc[:] = 0.0
    acc[_LEAST] = np.inf
    acc[_MOST] = -np.inf
    sums[:] = 0.0


@njit(nogil=True, cache=True)
def _guess_shift(x, p, differs, inner, shift):  # type: ignore[no-untyped-def]
    """Fills `shift` (width) with each variable's mean over up to `SAMPLE` evenly spaced points."""
    points = x.size // inner
    taken = min(points, SAMPLE)
    for i in range(inner):
        total = 0.0
        present = 0
        for k in range(taken):
            n = (k * points // taken) * inner + i
            a = np.float64(x[n])
            if differs:
                a -= np.float64(p[n])
            if a - a == 0.0:
                total += a
                present += 1
        shift[i::inner] = total / present if present > 0 else 0.0


@njit(nogil=True, cache=True)
def _sum_present(x, p, differs, inner, width, shift, acc, sums):  # type: ignore[no-untyped-def]
    """Sums one row of values, or of differences, some of which may be NaN."""
    _clear(acc, sums)
    for begin in range(0, x.size, TILE * width):
        tile, earlier = x[begin : begin + TILE * width], p[begin : begin + TILE * width]
        _add_tile(tile, earlier, differs, True, width, shift, acc)
        _flush(acc, sums, inner, width)


@njit(nogil=True, cache=True)
def _sum_finite(x, p, differs, exact, inner, width, shift, acc, sums, scratch):  # type: ignore[no-untyped-def]
    """Sums the finite values, or differences, of one row, with what rounds if `exact`."""
    _clear(acc, sums)
    scratch[:] = 0.0
    for begin in range(0, x.size, TILE * width):
        tile = x[begin : begin + TILE * width]
        difference, error = scratch[0, : tile.size], scratch[1, : tile.size]
        if differs:
            earlier = p[begin : begin + TILE * width]
            _subtract(tile, earlier, difference)
            if exact:
                _subtraction_error(tile, earlier, error)
            _add_finite(difference, error, width, shift, acc)
        else:
            _add_finite(tile, error, width, shift, acc)
        _flush(acc, sums, inner, width)


@njit(nogil=True, cache=True)
def _close_variable(acc, sums, shift, i, inner, points, complete, out):  # type: ignore[no-untyped-def]
    """Writes variable `i`'s record, `out` (8); returns how far the shift was off."""
    count = np.float64(points) if complete else acc[_PRESENT, i::inner].sum()
    low, high = acc[_LEAST, i::inner].min(), acc[_MOST, i::inner].max()
    out[:] = 0.0
    out[COUNT], out[MISSING] = count, points - count
    out[MIN], out[MAX] = low, high
    if count == 0.0:
        return 0.0
    total = sums[0, i] + sums[1, i]
    off = total / count
    out[MEAN], out[MEAN_LOW] = two_sum(shift[i], off)
    squares, error = two_sum(sums[2, i], -(total * off))
    out[M2], out[M2_LOW] = two_sum(squares, error + sums[3, i])
    if out[M2] <= 0.0:
        out[M2], out[M2_LOW] = 0.0, 0.0
    settle(out)
    return off


@njit(nogil=True, cache=True)
def _close_row(x, p, differs, gaps, inner, width, shift, acc, sums, scratch, out):  # type: ignore[no-untyped-def]
    """Turns a row's sums into records `out` (8, inner), summing again where they can't be trusted.

    Leaves the shifts of what was summed again at its mean.

    Returns:
        Whether anything is missing.
    """
    points = x.size // inner
    complete = not gaps
    for i in range(inner):
        complete = complete and sums[0, i] - sums[0, i] == 0.0
    if not complete and not gaps:
        _sum_present(x, p, differs, inner, width, shift, acc, sums)
    if not complete and (acc[_LEAST].min() == -np.inf or acc[_MOST].max() == np.inf):
        _sum_finite(x, p, differs, False, inner, width, shift, acc, sums, scratch)
    far = np.zeros(inner, np.bool_)
    steady = np.zeros(inner, np.bool_)
    for i in range(inner):
        off = _close_variable(acc, sums, shift, i, inner, points, complete, out[:, i])
        same = out[MIN, i] == out[MAX, i]
        if same:
            out[MEAN, i], out[MEAN_LOW, i], out[M2, i], out[M2_LOW, i] = out[MIN, i], 0.0, 0.0, 0.0
        mean, variance = out[MEAN, i], out[M2, i] / max(out[COUNT, i], 1.0)
        far[i] = not same and off * off > FAR * FAR * variance
        steady[i] = differs and (mean * mean > STEADY * STEADY * variance)
    if steady.any():
        _find_rounding(x, p, width, acc[_SUM], scratch)
    for i in range(inner):
        far[i] = far[i] or (steady[i] and acc[_SUM, i::inner].max() > 0.0)
        if far[i]:
            shift[i::inner] = out[MEAN, i]
    if far.any():
        _sum_finite(x, p, differs, True, inner, width, shift, acc, sums, scratch)
        for i in range(inner):
            if far[i]:
                _close_variable(acc, sums, shift, i, inner, points, False, out[:, i])
    return out[MISSING].max() > 0.0


@njit(nogil=True, cache=True)
def _earlier(x, ring, t, o, ahead, lags, k):  # type: ignore[no-untyped-def]
    """The row that kind `k` subtracts from step `t`'s: in the piece, else in the ring before it."""
    lag = lags[k - 1] if k > 0 else 0
    if t >= lag:
        return x[t - lag, o]
    return ring[(ahead + t - lag) % ring.shape[0], o]


@njit(nogil=True, cache=True)
def _sum_row(x, ring, t, o, ahead, age, lags, gaps, inner, width, shift, acc, sums):  # type: ignore[no-untyped-def]
    """Sums a row and its differences in one pass over memory.

    `gaps` says for which of them to expect missing values.
    """
    for k in range(1 + lags.size):
        if _counts(age, lags, k):
            earlier = _earlier(x, ring, t, o, ahead, lags, k)
            _guess_shift(x[t, o], earlier, k > 0, inner, shift[k])
            _clear(acc[k], sums[k])
    for begin in range(0, x.shape[2], TILE * width):
        stop = begin + TILE * width
        for k in range(1 + lags.size):
            if _counts(age, lags, k):
                earlier = _earlier(x, ring, t, o, ahead, lags, k)[begin:stop]
                _add_tile(x[t, o, begin:stop], earlier, k > 0, gaps[k], width, shift[k], acc[k])
                _flush(acc[k], sums[k], inner, width)


@njit(nogil=True, cache=True)
def _counts(age, lags, k):  # type: ignore[no-untyped-def]
    """Whether a step has values of kind `k`: 0, its own; else, differences at `lags[k - 1]`."""
    return age >= (lags[k - 1] if k > 0 else 0)


@njit(nogil=True, cache=True)
def _clear_records(out):  # type: ignore[no-untyped-def]
    out[:] = 0.0
    out[:, MIN] = np.inf
    out[:, MAX] = -np.inf


@njit(nogil=True, cache=True)
def summarise_steps(x, ring, age, ahead, begin, lags, inner, lanes, out, infinite):  # type: ignore[no-untyped-def]
    """Writes the record of each step of a piece.

    Args:
        x: `(T, O, N * I)` float32 or float64, NaN where missing.
        ring: `(R, O, N * I)`, the steps before the piece.
        age: `(T,)` steps of the same trajectory before each; -1: the step is not selected.
        ahead: The slot, modulo R, that `x[0]` would have in the ring.
        begin: First step that is summarised; `out` says how many.
        lags: `(L,)` int64, each at least 1, and at most R where `x` does not reach back far enough.
        inner: I.
        lanes: `lanes_of(I)`.
        out: `(B, 8, 1 + L, O * I)`, overwritten.
        infinite: `(B,)` bool, overwritten: whether a value is infinite (it counts as missing).
    """
    width, kinds = lanes * inner, 1 + lags.size
    acc = np.empty((kinds, 6, width))
    sums = np.empty((kinds, 4, inner))
    shift = np.empty((kinds, width))
    scratch = np.empty((2, TILE * width))
    gaps = np.empty(kinds, np.bool_)  # as in the step before; changes no bit
    _clear_records(out)
    infinite[:] = False
    for o in range(x.shape[1]):  # step after step, so that the row before is in cache
        gaps[:] = False
        for b in range(out.shape[0]):
            t = begin + b
            _sum_row(
                *(x, ring, t, o, ahead, age[t], lags, gaps),
                *(inner, width, shift, acc, sums),
            )
            for k in range(kinds):
                if _counts(age[t], lags, k):
                    gaps[k] = _close_row(
                        *(x[t, o], _earlier(x, ring, t, o, ahead, lags, k), k > 0, gaps[k]),
                        *(inner, width, shift[k], acc[k], sums[k], scratch),
                        out[b, :, k, o * inner : (o + 1) * inner],
                    )
            if age[t] >= 0 and acc[0, _INFINITE].any():
                infinite[b] = True
