"""Decorators that compile functions with numba: kernels, which Python calls, and their helpers.

With these decorators, compiled functions pass arguments to each other without overhead. Arrays are
passed without reference counts, and named tuples of numbers by address. A `stage` of a kernel is
inlined, so that its arguments need not be passed at all. By default, numba counts references
atomically whenever one compiled function passes an array to another, and copies tuples item by
item. Many helpers write no more than one instruction; these costs would take most of their time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import make_array

from tilewright.targets.kernel_compilation import KernelSet
from tilewright.targets.kernel_listener import announce
from tilewright.targets.kernel_parts import PartCompiler

Numbers = TypeVar("Numbers", bound=NamedTuple)

Function = TypeVar("Function", bound=Callable[..., object])

KERNELS = 18
"""Number of functions in this package that have the decorator `kernel`. `row_lowering` creates one
such function for each of six lowerings."""

# Functions that only kernels call need no wrappers for other callers. A helper allocates nothing,
# so it is compiled without reference counts; functions that allocate or return views of arrays have
# their own decorators. Registered functions are compiled once for the types of their arguments.
# `njit` would compile them again for each constant among the arguments, which took most of the
# compile time.
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": PartCompiler}
helper = register_jitable(_nrt=False, **_INNER)
allocating_helper = register_jitable(**_INNER)
# Decorator of a part of a kernel that LLVM inlines, so that its records stay in registers.
stage = register_jitable(_nrt=False, forceinline=True, **_INNER)
# Decorator of a part of a kernel that returns records or views of arrays. Functions that are
# compiled separately cannot return them.
view_stage = nb.njit(inline="always")


def kernel(function: Function) -> Function:
    """Compile a function that Python calls directly.

    The compiled function releases the GIL. Its code is cached on disk.
    """
    dispatcher = nb.njit(cache=True, nogil=True, no_cfunc_wrapper=True)(function)
    announce(dispatcher, KernelSet("simulator kernels", KERNELS, nb.core.config.CACHE_DIR))
    return cast(Function, dispatcher)


@lru_cache(maxsize=64)
def as_record(numbers: Numbers) -> Numbers:
    """Convert a named tuple of integers to a NumPy record, which numba passes by address.

    The record has the shape ().
    """
    kind = np.dtype([(name, np.int64) for name in numbers._fields])
    return cast(Numbers, np.array([tuple(numbers)], kind)[0])


@intrinsic
def unowned(_: Any, lent: types.Type) -> Any:
    """Return an array, or a tuple with arrays, without reference counting, as a call argument.

    The caller must keep an owner of the array alive during the call. Arguments of the caller have
    an owner, and so do objects that the caller uses after the call. numba frees any other array
    after it was passed to `unowned` and before the call. Pass such an array directly to a function
    that is compiled with `_nrt=False`, which does not count references either.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.return_type, arguments[0])

    return lent(lent), generate


@intrinsic
def set_zero(_: Any, record: Any) -> Any:
    """Set every byte of a NumPy record to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = ir.Constant(ir.IntType(64), record.size)
        cgutils.memset(builder, arguments[0], size, 0)
        return context.get_dummy_value()

    return types.void(record), generate


@intrinsic
def rarely(_: Any, condition: types.Type) -> Any:
    """Return a truth value unchanged, and tell the compiler that it is usually False."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bit = ir.IntType(1)
        expect = builder.module.declare_intrinsic(
            "llvm.expect", [bit], ir.FunctionType(bit, [bit, bit])
        )
        return builder.call(expect, [arguments[0], bit(0)])

    return types.boolean(types.boolean), generate


def _without_owner(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    if isinstance(kind, types.Array):
        view = make_array(kind)(context, builder, value=value)
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()
    if isinstance(kind, BaseTuple):
        items = cgutils.unpack_tuple(builder, value)
        kinds = kind.types
        return context.make_tuple(
            builder, kind,
            [_without_owner(context, builder, k, v) for k, v in zip(kinds, items, strict=True)],
        )  # fmt: skip
    return value
