"""Schedule every function that TVM generates for the operators between kernels.

Values with a single reader are inlined, the outer loops run in parallel, and the innermost loop is
vectorised. Functions that reduce rows, such as softmax, are instead rewritten by
`networks.compiled.row_loops`.

The limits were chosen on the Xeon described in docs/evidence/cpu.md so that small networks do not
wait for threads. `python -m benchmarks.cpu.networks --quick --threads 1,2` measures small networks
again.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import module_pass
from tvm.s_tir import Schedule, ScheduleError

from tilewright.core.tvm_types import Block, Pass, PrimFunc
from tilewright.networks.compiled.kernel_calls import KERNEL
from tilewright.networks.compiled.row_loops import NoRows, by_rows, by_task

PATTERN, REDUCTION = "op_pattern", 3
"""Name of the function attribute in which TVM's pass FuseOps finds the pattern of a function, and
the value of the attribute for a reduction."""
WIDEST = 64
"""Maximum length of the innermost loop: four vectors of 16 float32 values."""
LEAST = 8
"""Minimum length of the innermost loop for which the schedule vectorises it. Shorter loops are left
to LLVM."""
WORTH_THREADS = 1 << 14
"""Number of iterations of a loop nest from which on it takes longer than waking threads."""


def make_schedule_pass(lanes: int) -> Pass:
    """Return a pass that schedules all TensorIR functions that are not kernels.

    The pass expects that the operators have already been lowered to TensorIR functions.

    Args:
        lanes: number of float32 values per vector.
    """

    def run(module: IRModule, _: object) -> IRModule:
        result = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            if isinstance(function, tirx.PrimFunc) and KERNEL not in (function.attrs or {}):
                result.update_func(name, scheduled(function, lanes))
        return result

    return module_pass(run, opt_level=0, name="TilewrightGeneric")


def joining_rows(lanes: int) -> Pass:
    """Return a pass that allows TVM to fuse row functions with the operators before them.

    Row functions reduce rows, for example softmax and layer normalisation. TVM fuses elementwise
    operators into a reduction that follows them, but only fuses a softmax with what comes after it.
    The pass marks row functions as reductions. Scaling or masking before a softmax is then computed
    while a row is in the cache.

    Args:
        lanes: number of float32 values per vector.
    """

    def run(module: IRModule, _: object) -> IRModule:
        result = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            attrs = function.attrs or {}
            if not isinstance(function, tirx.PrimFunc) or KERNEL in attrs:
                continue
            if int(attrs.get(PATTERN, 0)) > REDUCTION and _is_by_rows(function, lanes):
                result.update_func(name, function.with_attr(PATTERN, REDUCTION))
        return result

    return module_pass(run, opt_level=0, name="TilewrightJoinRows")


def _is_by_rows(function: PrimFunc, lanes: int) -> bool:
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        return _by_rows(sch, lanes) is not None
    except (ScheduleError, ValueError):
        return False


def rows_of_task(
    function: PrimFunc, lanes: int, rows: int, whole: tuple[int, int], read: int
) -> PrimFunc | None:
    """Return a function that computes only some rows of a given function.

    The index of the first row becomes an additional parameter. Fused attention computes the softmax
    between its products in this way.

    Args:
        function: function over all rows.
        lanes: number of float32 values per vector.
        rows: number of rows to compute.
        whole: total number of rows, and number of elements per row.
        read: number of the parameter that is divided by rows. Each row of the result may depend
            only on the same row of this parameter.

    Returns:
        The function, or None if `function` does not work row by row.
    """
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        blocks = [sch.get(sch.get_sblock(name)) for name in _blocks(sch)]
        return by_task(sch.mod["main"], blocks, lanes, rows, whole, read)
    except (NoRows, ScheduleError, ValueError):
        return None


def scheduled(function: PrimFunc, lanes: int) -> PrimFunc:
    """Schedule a TensorIR function; return it unchanged if no schedule applies.

    Args:
        function: the function.
        lanes: number of float32 values per vector.
    """
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        new_function = _by_rows(sch, lanes)
        if new_function is None:
            for name in _blocks(sch):
                _schedule(sch, sch.get_sblock(name))
            new_function = sch.mod["main"]
    except (ScheduleError, ValueError):  # sizes are dynamic, or the function has other loops
        return function
    return new_function.with_attrs(function.attrs) if function.attrs else new_function


def _by_rows(sch: Schedule, lanes: int) -> PrimFunc | None:
    """Rewrite the schedule's function as loops over the rows of its tensors.

    Returns:
        The function; None if it does not reduce rows, as a softmax does.
    """
    blocks = [sch.get(sch.get_sblock(name)) for name in _blocks(sch)]
    try:
        return by_rows(sch.mod["main"], blocks, lanes, WORTH_THREADS)
    except NoRows:
        return None


def _blocks(sch: Schedule) -> list[str]:
    """Return the names of the function's TensorIR blocks (one per loop nest), in order."""
    root = sch.get_sblock("root")
    return [str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)]


def _inline(sch: Schedule) -> None:
    """Inline every block that is not a reduction and has at most one reader."""
    for name in _blocks(sch)[:-1]:
        block = sch.get_sblock(name)
        if len(sch.get_consumers(block)) > 1:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def _schedule(sch: Schedule, block: Block) -> None:
    """Schedule one loop nest: vectorise the innermost loop, and run the outer loops in parallel.

    Args:
        sch: the schedule, which is changed.
        block: the TensorIR block of the loop nest.

    Raises:
        ScheduleError, ValueError: TVM cannot apply a step.
    """
    loops = sch.get_loops(block)
    if not loops:
        return
    kinds = [int(axis.iter_type) for axis in sch.get(block).iter_vars]
    if len(kinds) != len(loops) or not set(kinds) <= {0, 2}:
        return
    extents = [int(sch.get(loop).extent) for loop in loops]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    sizes = [size for size, kind in zip(extents, kinds, strict=True) if kind == 0]
    if not spatial:
        return
    *outer, last = spatial
    width, vector = _divisor(sizes[-1], WIDEST), None
    if width >= LEAST:
        rest, vector = sch.split(last, [None, width])
        sch.reorder(*outer, rest, *sums, vector)
        sch.vectorize(vector)
        outer.append(rest)
    elif not outer:
        outer.append(last)
    elif sizes[-1] < LEAST and not sums:  # few channels, which LLVM interleaves
        sch.unroll(last)
        if len(outer) > 1:
            outer.pop()
    fused = sch.fuse(*outer)
    if math.prod(extents) >= WORTH_THREADS:
        sch.parallel(fused)
    if sums:
        initial = sch.decompose_reduction(block, sums[0])
        if vector is not None:
            sch.vectorize(sch.get_loops(initial)[-1])


def _divisor(size: int, most: int) -> int:
    """Return the largest divisor of `size` that is at most `most`."""
    return max(d for d in range(1, min(size, most) + 1) if size % d == 0)
