"""Schedules every function that TVM makes of the operators between kernels.

Values with one reader are inlined, outer loops run in parallel, the innermost is vectorised. Where
rows are summed, as in a softmax, all that is done to a row is done while it is in the cache.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import module_pass
from tvm.s_tir import Schedule, ScheduleError

from tilewright.networks.compiled.rewrite import KERNEL

WIDEST = 64
"""Numbers at most in the innermost loop: four of the widest vectors."""
LEAST = 8
"""A last loop that can have no vectors of so many is left to LLVM."""
PARTIAL = 16
"""Sums of a row that are kept side by side, at most. They are added one by one at its end."""
WORTH_THREADS = 1 << 14
"""Steps of a loop nest that take longer than waking threads."""


def scheduling() -> Any:
    """A pass over a module whose operators are functions already."""

    def run(module: IRModule, _: Any) -> IRModule:
        made = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            if isinstance(function, tirx.PrimFunc) and KERNEL not in (function.attrs or {}):
                made.update_func(name, scheduled(function))
        return made

    return module_pass(run, opt_level=0, name="TilewrightGeneric")


def scheduled(function: Any) -> Any:
    """The function with a schedule, or as it is where none applies."""
    try:
        sch = Schedule(IRModule({"main": function}))
        _inline(sch)
        if (by_rows := _by_rows(sch.copy())) is None:
            for name in _blocks(sch):
                _schedule(sch, sch.get_sblock(name))
    except (ScheduleError, ValueError):  # sizes that are known only as it runs, or no such loops
        return function
    sch = by_rows or sch
    return sch.mod["main"].with_attrs(function.attrs) if function.attrs else sch.mod["main"]


def _blocks(sch: Any) -> list[str]:
    """The names of its blocks with loops around them, in order."""
    root = sch.get_sblock("root")
    return [str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)]


def _inline(sch: Any) -> None:
    """Values without a sum that one operation reads are computed where they are read."""
    for name in _blocks(sch)[:-1]:
        block = sch.get_sblock(name)
        if len(sch.get_consumers(block)) > 1:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def _by_rows(sch: Any) -> Any:
    """The schedule with one loop over rows, in which every nest does its part of a row; None where
    no rows are summed, the nests do not have the same rows, or these fill no vectors."""
    *before, last = _blocks(sch)
    _, sizes = _axes(sch, last)
    kinds = [0] * len(sizes)
    if len(sizes) < 2 or _divisor(sizes[-1], PARTIAL) < LEAST:
        return None
    of_sum = ([*kinds[1:], 2], sizes)
    known = (of_sum, (kinds, sizes), (kinds[1:], sizes[:-1]))
    sums = [name for name in before if _axes(sch, name) == of_sum]
    if not sums or any(_axes(sch, name) not in known for name in (*before, last)):
        return None
    try:
        for name in sums:
            _side_by_side(sch, name)
        outer = sch.fuse(*sch.get_loops(sch.get_sblock(last))[:-1])
        for name in reversed(_blocks(sch)[:-1]):
            sch.compute_at(sch.get_sblock(name), outer)
        if math.prod(sizes) >= WORTH_THREADS:
            sch.parallel(outer)
        for name in _blocks(sch):
            _vectorise_row(sch, sch.get_sblock(name))
    except ScheduleError:
        return None
    return sch


def _axes(sch: Any, name: str) -> tuple[list[int], list[int]]:
    """The kinds of a nest's axes, 0 for one of its result and 2 for one that is summed, and their
    sizes."""
    block = sch.get_sblock(name)
    kinds = [int(each.iter_type) for each in sch.get(block).iter_vars]
    return kinds, [int(sch.get(loop).extent) for loop in sch.get_loops(block)]


def _side_by_side(sch: Any, name: str) -> None:
    """Sum a row in several sums, one a lane."""
    block = sch.get_sblock(name)
    *_, inner = sch.get_loops(block)
    _, lanes = sch.split(inner, [None, _divisor(int(sch.get(inner).extent), PARTIAL)])
    sch.rfactor(lanes, factor_axis=len(sch.get_loops(block)) - 2)


def _vectorise_row(sch: Any, block: Any) -> None:
    """What a nest does to a row, in vectors."""
    loops = sch.get_loops(block)[1:]
    sums = any(int(each.iter_type) == 2 for each in sch.get(block).iter_vars)
    if sums and len(loops) == 2:  # side by side
        lanes, places = loops
        sch.reorder(places, lanes)
        sch.vectorize(lanes)
        initial = sch.decompose_reduction(block, places)
        sch.vectorize(sch.get_loops(initial)[-1])
    elif loops and not sums:
        width = _divisor(int(sch.get(loops[-1]).extent), WIDEST)
        sch.vectorize(sch.split(loops[-1], [None, width])[1])


def _schedule(sch: Any, block: Any) -> None:
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
