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
def _add(x, width, shift, acc):  # type: ignore[no-untyped-def]
    """Adds the complete values of one tile `x`, four groups at a time to keep sums in registers.

    Each group is a view of its own: with computed indices into `x` the loop does not vectorise.
    """
    sums, squares, least, most = acc[0], acc[1], acc[2], acc[3]
    whole = x.size // (4 * width) * (4 * width)
    for begin in range(0, whole, 4 * width):
        x0 = x[begin : begin + width]
        x1 = x[begin + width : begin + 2 * width]
        x2 = x[begin + 2 * width : begin + 3 * width]
        x3 = x[begin + 3 * width : begin + 4 * width]
        for j in range(width):
            c, s, q, low, high = shift[j], sums[j], squares[j], least[j], most[j]
            a0, a1 = np.float64(x0[j]), np.float64(x1[j])
            a2, a3 = np.float64(x2[j]), np.float64(x3[j])
            low = a0 if a0 < low else low
            high = a0 if a0 > high else high
            low = a1 if a1 < low else low
            high = a1 if a1 > high else high
            low = a2 if a2 < low else low
            high = a2 if a2 > high else high
            low = a3 if a3 < low else low
            high = a3 if a3 > high else high
            a0 -= c
            a1 -= c
            a2 -= c
            a3 -= c
            s = (((s + a0) + a1) + a2) + a3
            q = (((q + a0 * a0) + a1 * a1) + a2 * a2) + a3 * a3
            sums[j], squares[j], least[j], most[j] = s, q, low, high
    for begin in range(whole, x.size, width):
        rest = x[begin : begin + width]
        for j in range(rest.size):
            a0 = np.float64(rest[j])
            least[j] = a0 if a0 < least[j] else least[j]
            most[j] = a0 if a0 > most[j] else most[j]
            a0 -= shift[j]
            sums[j] += a0
            squares[j] += a0 * a0


@njit(nogil=True, cache=True)
def _add_present(x, error, width, shift, acc):  # type: ignore[no-untyped-def]
    """`_add` of the finite values of `x` and their rounding `error`.

    The same bits as `_add` where all are finite and no error is there.
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
def _sum_present(x, p, differs, exact, inner, width, shift, acc, sums, scratch):  # type: ignore[no-untyped-def]
    """Sums one row of values, or of differences, some of which may be missing."""
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
            _add_present(difference, error, width, shift, acc)
        else:
            _add_present(tile, error, width, shift, acc)
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
def _close_row(x, p, differs, inner, width, shift, acc, sums, scratch, out):  # type: ignore[no-untyped-def]
    """Turns a row's sums into records `out` (8, inner), summing again where they can't be trusted.

    Leaves the shifts of what was summed again at its mean.
    """
    points = x.size // inner
    complete = True
    for i in range(inner):
        complete = complete and sums[0, i] - sums[0, i] == 0.0
    if not complete:
        _sum_present(x, p, differs, False, inner, width, shift, acc, sums, scratch)
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
        _sum_present(x, p, differs, True, inner, width, shift, acc, sums, scratch)
        for i in range(inner):
            if far[i]:
                _close_variable(acc, sums, shift, i, inner, points, False, out[:, i])


@njit(nogil=True, cache=True)
def _earlier(x, ring, t, o, ahead, lag):  # type: ignore[no-untyped-def]
    """The row of the step `lag` before step `t`: in the piece, else in the ring of earlier ones."""
    if t >= lag:
        return x[t - lag, o]
    return ring[(ahead + t - lag) % ring.shape[0], o]


@njit(nogil=True, cache=True)
def _sum_row(x, ring, t, o, ahead, lags, inner, width, shift, acc, sums, scratch):  # type: ignore[no-untyped-def]
    """Sums a row and its differences in one pass over memory.

    `lags` are 0 (the values) and those for which the step has an earlier one.
    """
    row = x[t, o]
    for k in range(lags.size):
        _guess_shift(row, _earlier(x, ring, t, o, ahead, lags[k]), k > 0, inner, shift[k])
        _clear(acc[k], sums[k])
    for begin in range(0, row.size, TILE * width):
        tile = row[begin : begin + TILE * width]
        _add(tile, width, shift[0], acc[0])
        _flush(acc[0], sums[0], inner, width)
        for k in range(1, lags.size):
            earlier = _earlier(x, ring, t, o, ahead, lags[k])[begin : begin + TILE * width]
            difference = scratch[0, : tile.size]
            _subtract(tile, earlier, difference)
            _add(difference, width, shift[k], acc[k])
            _flush(acc[k], sums[k], inner, width)


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
    width = lanes * inner
    acc = np.empty((1 + lags.size, 6, width))
    sums = np.empty((1 + lags.size, 4, inner))
    shift = np.empty((1 + lags.size, width))
    scratch = np.empty((2, TILE * width))
    paired = np.zeros(1 + lags.size, np.int64)
    for b in range(out.shape[0]):
        t = begin + b
        infinite[b] = False
        out[b] = 0.0
        out[b, MIN] = np.inf
        out[b, MAX] = -np.inf
        if age[t] < 0:
            continue
        kinds = 1
        for lag in lags:
            if lag <= age[t]:
                paired[kinds] = lag
                kinds += 1
        for o in range(x.shape[1]):
            _sum_row(x, ring, t, o, ahead, paired[:kinds], inner, width, shift, acc, sums, scratch)
            k = 0
            for kind in range(1 + lags.size):
                if kind > 0 and lags[kind - 1] > age[t]:
                    continue
                earlier = _earlier(x, ring, t, o, ahead, paired[k])
                columns = out[b, :, kind, o * inner : (o + 1) * inner]
                _close_row(
                    x[t, o],
                    earlier,
                    k > 0,
                    inner,
                    width,
                    shift[k],
                    acc[k],
                    sums[k],
                    scratch,
                    columns,
                )
                k += 1
            infinite[b] = infinite[b] or acc[0, _INFINITE].any()
