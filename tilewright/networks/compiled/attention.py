"""Joins the two products of an attention, and the softmax between them, to one function.

    parallel (heads, shares of their rows)
      scores of some rows        the first product, into a buffer of the task
      softmax of these rows      with what scales or masks it
      product with the values    the second one, out of that buffer

Scores of all heads and rows are never in memory. Those of a task stay in a cache. The products are
the kernels that the same processor has for so many rows, with their rule's schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, IRModule, TensorLoad
from tvm.ir.transform import module_pass

from tilewright.core.errors import WorkloadError
from tilewright.networks.compiled.default_schedules import rows_of_task
from tilewright.networks.compiled.rewrite import KERNEL, Rewritten
from tilewright.networks.compiled.transposed_operands import MovedAxes
from tilewright.targets.capabilities import CompilesKernels
from tilewright.targets.workload import Workload

WORTH = 1 << 20
"""Bytes of all scores, above which they leave the second cache between the products."""
SCORES = 1 << 18
"""Bytes of the scores of a task: half of a usual second-level cache."""
FEWEST_ROWS = 16
"""Of a task, so that register tiles have work enough for each key that they read."""
CALL_TIR, RESHAPE = "relax.call_tir", "relax.reshape"

Place = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class _Product:
    """A kernel that a layer calls: its workload, parameters, and those with other axes."""

    workload: Workload
    params: Sequence[Any]
    moved: Mapping[int, MovedAxes]

    def place(self, number: int, rows: int, blocks: int) -> Place:
        """Where an index (task, row or depth, column) of a task's kernel is in a parameter: of the
        data and the result with `blocks` shares of `rows` a head, of the weights with none."""
        axes = self.moved.get(number)

        def found(indices: Sequence[Any]) -> Sequence[Any]:
            task, row, column = indices
            if number == WEIGHTS:
                known = [tirx.indexdiv(task, blocks), row, column]
            else:
                first = tirx.indexmod(task, blocks) * rows
                known = [tirx.indexdiv(task, blocks), first + row, column]
            return known if axes is None else axes.place(known)

        return found


DATA, WEIGHTS, OUT = range(3)


@dataclass(frozen=True, eq=False)
class _Attention:
    """The calls of one attention, the last of which gives its result."""

    scores: Any
    softmax: Any
    values: Any


class JoinedAttention:
    """A pass that joins attentions of a rewritten network. Afterwards `functions` has what runs an
    attention, by the number of the layer of its second product, and `scores` that number by the one
    of the first."""

    def __init__(self, rewritten: Rewritten, compiles: CompilesKernels, lanes: int) -> None:
        self._rewritten, self._compiles, self._lanes = rewritten, compiles, lanes
        self.functions: dict[int, str] = {}
        self.scores: dict[int, int] = {}

    def transform(self) -> Any:
        """The pass, over a module whose operators are functions already."""
        return module_pass(self._run, opt_level=0, name="TilewrightAttention")

    def _run(self, module: IRModule, _: Any) -> IRModule:
        made = _Joining(module, self._rewritten, self._compiles, self._lanes)
        self.functions, self.scores = made.functions, made.scores
        return made.module


class _Joining:
    """One run of the pass."""

    def __init__(
        self, module: IRModule, rewritten: Rewritten, compiles: CompilesKernels, lanes: int
    ) -> None:
        self.module = module
        self.functions, self.scores = dict[int, str](), dict[int, int]()
        self._compiles, self._lanes = compiles, lanes
        self._values = {
            binding.var: binding.value
            for block in module["main"].body.blocks for binding in block.bindings
        }  # fmt: skip
        self._readers: dict[Any, int] = {}
        for value in self._values.values():
            for var in _variables(value):
                self._readers[var] = self._readers.get(var, 0) + 1
        for var in _variables(module["main"].body.body):
            self._readers[var] = self._readers.get(var, 0) + 1
        kernels = [var for var, value in self._values.items() if self._is_kernel(value)]
        self._layer = {var: number for number, var in enumerate(kernels)}
        self._about = {
            name: (layer.workload, moved)
            for name, layer, moved in zip(
                rewritten.called, rewritten.layers, rewritten.moved, strict=True
            )
        }
        self._made: dict[tuple[Any, Any, Any], Any] = {}
        if len(kernels) == len(rewritten.layers):
            self._join()

    def _join(self) -> None:
        builder = _Calls(self.module)
        for var, value in self._values.items():
            found = self._attention(var) if self._is_kernel(value) else None
            if found is None:
                continue
            calls = [self._values[each] for each in (found.scores, found.softmax, found.values)]
            key = tuple(call.args[0] for call in calls)
            if key not in self._made:
                function = self._joined(found)
                if function is not None:
                    name = "_".join(["attention", str(len(self._made))])
                    function = builder.add(function.with_attrs({KERNEL: 1}), name)
                self._made[key] = function  # type: ignore[index]
            function = self._made[key]  # type: ignore[index]
            if function is None:
                continue
            builder.replace(var, function, self._arguments(found))
            last = self._layer[var]
            self.functions[last] = str(function.name_hint)
            self.scores[self._layer[found.scores]] = last
        if self.functions:
            self.module = builder.module()

    def _is_kernel(self, value: Any) -> bool:
        return _is_call(value) and KERNEL in (self.module[value.args[0]].attrs or {})

    def _attention(self, result: Any) -> _Attention | None:
        """That whose second product gives `result`; None where another way leads there."""
        values = self._product(result)
        softmax = self._before(self._values[result].args[1].fields[DATA])
        if values is None or softmax is None or self._is_kernel(self._values[softmax]):
            return None
        for argument in self._values[softmax].args[1].fields:
            scores = self._before(argument)
            if scores is not None and self._is_kernel(self._values[scores]):
                first = self._product(scores)
                if first is not None and self._fit(first, values):
                    return _Attention(scores, softmax, result)
        return None

    def _before(self, var: Any) -> Any:
        """The call that gives a variable, with another shape perhaps, if nothing else reads it."""
        while True:
            value = self._values.get(var)
            if value is None or self._readers[var] != 1:
                return None
            if _is_call(value):
                return var
            if not (isinstance(value, Call) and value.op.name == RESHAPE):
                return None
            var = value.args[0]

    def _leads_to(self, var: Any, wanted: Any) -> bool:
        found = self._before(var)
        return found is not None and bool(found.same_as(wanted))

    def _product(self, var: Any) -> _Product | None:
        function = self._values[var].args[0]
        workload, moved = self._about[str(function.name_hint)]
        if workload.operator != "batch_matmul" or workload.dtype != "float32" or workload.epilogue:
            return None
        return _Product(workload, list(self.module[function].params), dict(moved))

    @staticmethod
    def _fit(scores: _Product, values: _Product) -> bool:
        one, other = scores.workload, values.workload
        alike = (one.batch, one.height, one.out_channels)
        size = 4 * one.batch * one.height * one.out_channels
        unmoved = OUT not in scores.moved and DATA not in values.moved
        return alike == (other.batch, other.height, other.in_channels) and size > WORTH and unmoved

    def _arguments(self, found: _Attention) -> list[Any]:
        scores, softmax, values = (
            list(self._values[var].args[1].fields)
            for var in (found.scores, found.softmax, found.values)
        )
        others = [var for var in softmax if not self._leads_to(var, found.scores)]
        return [*scores, *others, *values[1:]]

    def _joined(self, found: _Attention) -> Any:
        """The function, None where the parts cannot be cut into the same tasks."""
        scores, values = self._product(found.scores), self._product(found.values)
        if scores is None or values is None:
            return None
        for rows in _shares(scores.workload):
            bodies = self._bodies(found, scores, values, rows)
            if bodies is not None:
                return bodies
        return None

    def _bodies(self, found: _Attention, scores: _Product, values: _Product, rows: int) -> Any:
        w = scores.workload
        blocks, columns = w.height // rows, w.out_channels
        tasks = w.batch * blocks
        task = tirx.Var("task", "int32")
        size = rows * columns
        made, soft = (tirx.decl_buffer((size,), "float32", name) for name in ("scores", "soft"))

        def inside(indices: Sequence[Any]) -> Sequence[Any]:
            return [indices[1] * columns + indices[2]]

        first = self._task(scores, tasks, rows, task, {
            DATA: (scores.params[DATA], scores.place(DATA, rows, blocks)),
            WEIGHTS: (scores.params[WEIGHTS], scores.place(WEIGHTS, rows, blocks)),
            OUT: (made, inside),
        })  # fmt: skip
        second = self._task(values, tasks, rows, task, {
            DATA: (soft, inside),
            WEIGHTS: (values.params[WEIGHTS], values.place(WEIGHTS, rows, blocks)),
            OUT: (values.params[OUT], values.place(OUT, rows, blocks)),
        })  # fmt: skip
        call = self._values[found.softmax]
        between = rows_of_task(self.module[call.args[0]], self._lanes, rows, w.height * w.batch)
        if first is None or second is None or between is None:
            return None
        *given, of_softmax, index = between.params
        (place,) = (
            number for number, var in enumerate(call.args[1].fields)
            if self._leads_to(var, found.scores)
        )  # fmt: skip
        body = tvm_ffi.structural_map(
            between.body,
            (tirx.Var, lambda var: tirx.Cast("int64", task) if var.same_as(index) else var),
        )

        def along(old: Any) -> Place:
            def linear(indices: Sequence[Any]) -> Sequence[Any]:
                found: Any = tirx.const(0, "int64")
                for index, extent in zip(indices, old.shape, strict=True):
                    found = found * extent + index
                return [found - tirx.Cast("int64", task) * size]

            return linear

        for old, new in ((given[place], made), (of_softmax, soft)):
            body = _elsewhere(body, old, new, along(old))
        others = [param for number, param in enumerate(given) if number != place]
        whole = tirx.SeqStmt([tirx.AllocBuffer(made), tirx.AllocBuffer(soft), first, body, second])
        loop = tirx.For(task, 0, tasks, tirx.ForKind.PARALLEL, whole)
        params = [*scores.params[:OUT], *others, *values.params[WEIGHTS:]]
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _task(
        self, product: _Product, tasks: int, rows: int, task: Any,
        places: Mapping[int, tuple[Any, Place]],
    ) -> Any:  # fmt: skip
        """What the task of that number does of a product; None where a kernel has other tasks."""
        w = replace(product.workload, batch=tasks, height=rows)
        try:
            function = self._compiles.kernel(w, self._compiles.rule(w)).function
        except WorkloadError:
            return None
        loop = function.body
        parallel = isinstance(loop, tirx.For) and loop.kind == tirx.ForKind.PARALLEL
        if not parallel or int(loop.extent) != tasks:
            return None
        body = tvm_ffi.structural_map(
            loop.body, (tirx.Var, lambda var: task if var.same_as(loop.loop_var) else var)
        )
        for number, (new, place) in places.items():
            body = _elsewhere(body, function.params[number], new, place)
        return body


class _Calls:
    """A module while calls in its `main` are replaced."""

    def __init__(self, module: IRModule) -> None:
        self._builder = relax.BlockBuilder(module)
        self._new: dict[Any, tuple[Any, Sequence[Any]]] = {}

    def add(self, function: Any, name: str) -> Any:
        """A function by that name."""
        return self._builder.add_func(function, name)

    def replace(self, var: Any, function: Any, arguments: Sequence[Any]) -> None:
        """Let `function` give a variable."""
        self._new[var] = function, arguments

    def module(self) -> IRModule:
        """Without what nothing calls any more."""
        module = self._builder.get()
        old = module["main"]
        blocks = [
            type(block)([self._binding(binding) for binding in block.bindings])
            for block in old.body.blocks
        ]
        body = relax.SeqExpr(blocks, old.body.body)
        module["main"] = relax.Function(old.params, body, old.ret_ty, old.is_pure, old.attrs)
        return relax.transform.DeadCodeElimination()(module)

    def _binding(self, binding: Any) -> Any:
        if binding.var not in self._new:
            return binding
        function, arguments = self._new[binding.var]
        call = relax.call_tir(function, relax.Tuple(arguments), binding.var.ty)
        return relax.VarBinding(binding.var, call)


def _shares(w: Workload) -> Iterator[int]:
    """Rows of a task, the best first: divisors of a head's whose scores fit."""
    most = max(FEWEST_ROWS, SCORES // (4 * w.out_channels))
    fits = [rows for rows in range(1, w.height + 1) if w.height % rows == 0]
    yield from sorted((rows for rows in fits if FEWEST_ROWS <= rows <= most), reverse=True)
    yield w.height


def _elsewhere(body: Any, old: Any, new: Any, place: Place) -> Any:
    """A body that finds a buffer's numbers in another one, at a `place` of their indices."""

    def load(found: Any) -> Any:
        if not found.source.same_as(old):
            return found
        return tirx.BufferLoad(new, list(place(found.indices)))

    def store(found: Any) -> Any:
        if not found.buffer.same_as(old):
            return found
        return tirx.BufferStore(new, found.value, list(place(found.indices)))

    return tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])


def _is_call(value: Any) -> bool:
    return isinstance(value, Call) and value.op.name == CALL_TIR


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (relax.Var, found.append))
    return found
