"""Writes one function for the two products of an attention and what is done to rows between them.

    parallel (heads, shares of their rows)
      scores of some rows        the first product, into a buffer of the task
      softmax of these rows      with what scales or masks it
      product with the values    the second one, out of another buffer of the task

The products are the kernels that the processor has for so many rows, with their rule's schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx

from tilewright.core.errors import WorkloadError
from tilewright.networks.compiled.default_schedules import rows_of_task
from tilewright.networks.compiled.transposed_operands import MovedAxes, Place, elsewhere
from tilewright.targets.capabilities import CompilesKernels
from tilewright.targets.workload import Workload

SCORES = 1 << 19
"""Bytes of the scores of a task: as much as a usual second-level cache."""
FEWEST_ROWS = 16
"""Of a task, so that register tiles have work enough for each key that they read."""
DATA, WEIGHTS, OUT = range(3)


@dataclass(frozen=True, eq=False)
class AttentionProduct:
    """A kernel that a layer calls: its workload, its parameters (data, weights and result), and
    those of them that have other axes."""

    workload: Workload
    params: Sequence[Any]
    moved: Mapping[int, MovedAxes]


@dataclass(frozen=True, eq=False)
class RowsBetween:
    """A function over rows of scores, which are its parameter number `scores`."""

    function: Any
    scores: int


def joined_function(
    scores: AttentionProduct, between: RowsBetween, values: AttentionProduct,
    compiles: CompilesKernels, lanes: int,
) -> Any:  # fmt: skip
    """The function of the parameters of all three, but for the scores; None where they cannot be
    cut into the same tasks."""
    for rows in _shares(scores.workload):
        found = _Tasks(scores.workload, rows, compiles).joined(scores, between, values, lanes)
        if found is not None:
            return found
    return None


def _shares(w: Workload) -> Iterator[int]:
    """Rows of a task, the best first: divisors of a head's whose scores fit, or all."""
    most = max(FEWEST_ROWS, SCORES // (4 * w.out_channels))
    fits = range(min(most, w.height), FEWEST_ROWS - 1, -1)
    yield from (rows for rows in fits if w.height % rows == 0)
    yield w.height


class _Tasks:
    """Tasks of so many `rows` of a head each."""

    def __init__(self, scores: Workload, rows: int, compiles: CompilesKernels) -> None:
        self._rows, self._columns, self._compiles = rows, scores.out_channels, compiles
        self._shares = scores.height // rows
        self._count = scores.batch * self._shares
        self._task = tirx.Var("task", "int32")
        size = (rows * self._columns,)
        self._scores, self._softmax = (
            tirx.decl_buffer(size, "float32", name) for name in ("scores", "softmax")
        )

    def joined(
        self, scores: AttentionProduct, between: RowsBetween, values: AttentionProduct, lanes: int
    ) -> Any:
        """The function, None where a part has other tasks."""
        first = self._product(scores, {OUT: (self._scores, self._own)})
        second = self._product(values, {DATA: (self._softmax, self._own)})
        rows = rows_of_task(
            between.function, lanes, self._rows, (self._count * self._rows, self._columns),
            between.scores,
        )  # fmt: skip
        if first is None or second is None or rows is None:
            return None
        *others, softmax, number = rows.params
        read = others.pop(between.scores)
        middle = _with_variable(rows.body, number, tirx.Cast("int64", self._task))
        for old, new in ((read, self._scores), (softmax, self._softmax)):
            middle = elsewhere(middle, old, new, self._along(old))
        buffers = [tirx.AllocBuffer(self._scores), tirx.AllocBuffer(self._softmax)]
        loop = tirx.For(
            self._task, 0, self._count, tirx.ForKind.PARALLEL,
            tirx.SeqStmt([*buffers, first, middle, second]),
        )  # fmt: skip
        params = [*scores.params[:OUT], *others, *values.params[WEIGHTS:]]
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _product(self, product: AttentionProduct, own: Mapping[int, tuple[Any, Place]]) -> Any:
        """What a task does of a product, whose parameters `own` are buffers of the task; None where
        the kernel has other tasks."""
        w = replace(product.workload, batch=self._count, height=self._rows)
        try:
            function = self._compiles.kernel(w, self._compiles.rule(w)).function
        except WorkloadError:
            return None
        loop = function.body
        parallel = isinstance(loop, tirx.For) and loop.kind == tirx.ForKind.PARALLEL
        if not parallel or int(loop.extent) != self._count:
            return None
        body = _with_variable(loop.body, loop.loop_var, self._task)
        for number, old in enumerate(function.params):
            given = product.params[number], self._place(number, product.moved.get(number))
            new, place = own.get(number, given)
            body = elsewhere(body, old, new, place)
        return body

    def _own(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Of a row and a column in a buffer of the task."""
        return [indices[1] * self._columns + indices[2]]

    def _place(self, number: int, axes: MovedAxes | None) -> Place:
        """Of a number of a task's kernel in the parameter of all heads."""

        def found(indices: Sequence[Any]) -> Sequence[Any]:
            task, row, column = indices
            head, part = tirx.indexdiv(task, self._shares), tirx.indexmod(task, self._shares)
            known = [head, row if number == WEIGHTS else part * self._rows + row, column]
            return known if axes is None else axes.place(known)

        return found

    def _along(self, whole: Any) -> Place:
        """Of a number of all rows in a buffer of the task."""
        begin = tirx.Cast("int64", self._task) * (self._rows * self._columns)

        def found(indices: Sequence[Any]) -> Sequence[Any]:
            place: Any = tirx.const(0, "int64")
            for index, extent in zip(indices, whole.shape, strict=True):
                place = place * extent + index
            return [place - begin]

        return found


def _with_variable(body: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(body, (tirx.Var, lambda var: new if var.same_as(old) else var))
