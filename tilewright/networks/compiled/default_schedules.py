"""Schedules every function that TVM makes of the operators between kernels.

Values with one reader are inlined, outer loops run in parallel, the innermost is vectorised. What
reduces rows, as a softmax does, is written anew (`networks.compiled.row_loops`).

The limits were chosen on the Xeon of docs/evidence/cpu.md, so that small networks do not wait for
threads. `python -m benchmarks.cpu.networks --quick --threads 1,2` measures small networks again.
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
"""Where TVM's FuseOps looks for what a function is, and its number of a reduction."""
WIDEST = 64
"""Numbers at most in the innermost loop: four of the widest vectors."""
LEAST = 8
"""A last loop that can have no vectors of so many is left to LLVM."""
WORTH_THREADS = 1 << 14
"""Steps of a loop nest that take longer than waking threads."""


def scheduling(lanes: int) -> Pass:
    """A pass over a module whose operators are functions already; vectors hold so many float32
    numbers."""

    def run(module: IRModule, _: object) -> IRModule:
        made = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            if isinstance(function, tirx.PrimFunc) and KERNEL not in (function.attrs or {}):
                made.update_func(name, scheduled(function, lanes))
        return made

    return module_pass(run, opt_level=0, name="TilewrightGeneric")


def joining_rows(lanes: int) -> Pass:
    """A pass that lets functions over rows take in the operators before them, value by value. What
    scales or masks a softmax is then done while a row is in the cache. TVM fuses operators with a
    reduction behind them, but counts a softmax as a function that takes in what follows."""

    def run(module: IRModule, _: object) -> IRModule:
        made = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            attrs = function.attrs or {}
            if not isinstance(function, tirx.PrimFunc) or KERNEL in attrs:
                continue
            if int(attrs.get(PATTERN, 0)) > REDUCTION and _is_by_rows(function, lanes):
                made.update_func(name, function.with_attr(PATTERN, REDUCTION))
        return made

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
    """What a function does to the rows of a task, see `row_loops.by_task`; None where it is not by
    rows."""
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        blocks = [sch.get(sch.get_sblock(name)) for name in _blocks(sch)]
        return by_task(sch.mod["main"], blocks, lanes, rows, whole, read)
    except (NoRows, ScheduleError, ValueError):
        return None


def scheduled(function: PrimFunc, lanes: int) -> PrimFunc:
    """The function with a schedule, or as it is where none applies."""
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        made = _by_rows(sch, lanes)
        if made is None:
            for name in _blocks(sch):
                _schedule(sch, sch.get_sblock(name))
            made = sch.mod["main"]
    except (ScheduleError, ValueError):  # sizes that are known only as it runs, or no such loops
        return function
    return made.with_attrs(function.attrs) if function.attrs else made


def _by_rows(sch: Schedule, lanes: int) -> PrimFunc | None:
    """The function as loops over rows; None where none are reduced."""
    blocks = [sch.get(sch.get_sblock(name)) for name in _blocks(sch)]
    try:
        return by_rows(sch.mod["main"], blocks, lanes, WORTH_THREADS)
    except NoRows:
        return None


def _blocks(sch: Schedule) -> list[str]:
    """The names of its blocks with loops around them, in order."""
    root = sch.get_sblock("root")
    return [str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)]


def _inline(sch: Schedule) -> None:
    """Values without a sum that one operation reads are computed where they are read."""
    for name in _blocks(sch)[:-1]:
        block = sch.get_sblock(name)
        if len(sch.get_consumers(block)) > 1:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def _schedule(sch: Schedule, block: Block) -> None:
    """One nest of loops. Raises `ScheduleError` or `ValueError`."""
    loops = sch.get_loops(block)
    if not loops:
        return
    kinds = [int(each.iter_type) for each in sch.get(block).iter_vars]
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
    elif sizes[-1] < LEAST and not sums:  # a few channels: LLVM interleaves them
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
    """The largest divisor that is no larger than `most`."""
    return max(d for d in range(1, min(size, most) + 1) if size % d == 0)
