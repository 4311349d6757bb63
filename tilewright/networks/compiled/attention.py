"""Finds attentions among a network's calls, and writes one function that runs each.

Two batched products with a softmax between them keep the scores of all heads in memory. One
function keeps those of some rows in a cache.

    parallel (heads, shares of their rows)
      scores of some rows        the first product, into a buffer of the task
      softmax of these rows      with what scales or masks it
      product with the values    the second one, out of another buffer of the task

The products are the kernels that the processor has for so many rows, with their rule's schedule.
Those that multiply by tiles copy both operands first. Their tasks are heads, or parts of them:

    parallel (heads, parts of their rows)
      keys and values, copied
      shares of the rows
        scores, softmax, product with the values

The constants were chosen on the Xeon of docs/evidence/cpu.md. `python -m benchmarks.cpu.networks
--networks bert_6_128,bert_2_512,bert_2_1024,vit_tiny` measures them again, with `--precision bf16`
those of tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, IRModule, TensorLoad
from tvm.ir.transform import module_pass

from tilewright.core.errors import WorkloadError
from tilewright.core.tvm_types import (
    Expression,
    For,
    LoopVar,
    Pass,
    Place,
    PrimFunc,
    RelaxExpr,
    RelaxVar,
    Statement,
    TirBuffer,
)
from tilewright.networks.compiled.default_schedules import rows_of_task
from tilewright.networks.compiled.kernel_calls import KERNEL, Rewritten
from tilewright.networks.compiled.operands_in_place import FindPlace, MovedAxes, elsewhere
from tilewright.targets.capabilities import CompilesKernels
from tilewright.targets.workload import Workload

WORTH = 1 << 22
"""Bytes of all scores in float32. With fewer, products one after the other take as long
(measured)."""
CALL_TIR, RESHAPE = "relax.call_tir", "relax.reshape"


class JoinedAttention:
    """Joins attentions of a rewritten network. Afterwards `functions` has what runs an
    attention, by the number of the layer of its second product, and `scores` that number by the one
    of the first."""

    def __init__(self, rewritten: Rewritten, compiles: CompilesKernels) -> None:
        self._rewritten, self._compiles = rewritten, compiles
        self.functions: dict[int, str] = {}
        self.scores: dict[int, int] = {}

    def joining(self, lanes: int) -> Pass:
        """The pass, over a module whose operators are functions already; vectors hold so many
        float32 numbers."""

        def run(module: IRModule, _: object) -> IRModule:
            return self._joined(module, lanes)

        return module_pass(run, opt_level=0, name="TilewrightAttention")

    def _joined(self, module: IRModule, lanes: int) -> IRModule:
        calls = _Calls(module, self._rewritten)
        builder = relax.BlockBuilder(module)
        made: dict[tuple[RelaxExpr, ...], RelaxExpr | None] = {}
        new: dict[RelaxVar, RelaxExpr] = {}
        for var in calls.layers:
            found = calls.attention(var)
            if found is None:
                continue
            if found.functions not in made:
                function = joined_function(
                    found.scores, found.between, found.values, self._compiles, lanes
                )
                if function is not None:
                    name = f"attention_{len(made)}"
                    function = builder.add_func(function.with_attr(KERNEL, 1), name)
                made[found.functions] = function
            if (function := made[found.functions]) is not None:
                new[var] = relax.call_tir(function, relax.Tuple(found.arguments), var.ty)
                number = calls.layers[var]
                self.functions[number] = str(function.name_hint)
                self.scores[calls.layers[found.first]] = number
        return _replaced(builder.get(), new) if new else module


@dataclass(frozen=True, eq=False)
class _Attention:
    """The parts of one attention, the variable that its first product gives, what the joined
    function is given, and what tells that function from others."""

    scores: AttentionProduct
    between: RowsBetween
    values: AttentionProduct
    first: RelaxVar
    arguments: list[RelaxExpr]
    functions: tuple[RelaxExpr, ...]


class _Calls:
    """What `main` calls. `layers` has the numbers of layers by the variables of their results."""

    def __init__(self, module: IRModule, rewritten: Rewritten) -> None:
        self._module = module
        body = module["main"].body
        self._values = {
            binding.var: binding.value for block in body.blocks for binding in block.bindings
        }
        self._readers = Counter(_variables(body.body))
        for value in self._values.values():
            self._readers.update(_variables(value))
        kernels = [var for var, value in self._values.items() if self._is_kernel(value)]
        self.layers = {var: number for number, var in enumerate(kernels)}
        if len(kernels) != len(rewritten.layers):  # calls that nothing needed are gone
            self.layers = {}
        self._about = {
            name: (layer.workload, dict(moved))
            for name, layer, moved in zip(
                rewritten.called, rewritten.layers, rewritten.moved, strict=True
            )
        }

    def attention(self, result: RelaxVar) -> _Attention | None:
        """That whose second product gives `result`; None where something else does."""
        values = self._product(result)
        if values is None:
            return None
        softmax, *_ = given = self._given(result)
        between = self._before(softmax)
        if between is None or self._is_kernel(self._values[between]):
            return None
        others = self._given(between)
        for place, argument in enumerate(others):
            first = self._before(argument)
            scores = None if first is None else self._product(first)
            if scores is not None and _fit(scores, values):
                del others[place]
                called = [self._values[var].args[0] for var in (first, between, result)]
                return _Attention(
                    scores, RowsBetween(self._module[called[1]], place), values, first,
                    [*self._given(first), *others, *given[WEIGHTS:]], tuple(called),
                )  # fmt: skip
        return None

    def _is_kernel(self, value: RelaxExpr) -> bool:
        return _is_call(value) and KERNEL in (self._module[value.args[0]].attrs or {})

    def _given(self, var: RelaxVar) -> list[RelaxExpr]:
        """What the call that gives a variable is given."""
        return list(self._values[var].args[1].fields)

    def _before(self, var: RelaxExpr) -> RelaxVar | None:
        """The call that gives a variable, with another shape perhaps, if nothing else reads it."""
        while (value := self._values.get(var)) is not None and self._readers[var] == 1:
            if _is_call(value):
                return var
            if not (isinstance(value, Call) and value.op.name == RESHAPE):
                return None
            var = value.args[0]
        return None

    def _product(self, var: RelaxVar) -> AttentionProduct | None:
        """A batched product without an epilogue."""
        value = self._values[var]
        if not self._is_kernel(value):
            return None
        workload, moved = self._about[str(value.args[0].name_hint)]
        known = workload.operator == "batch_matmul" and workload.dtype in ("float32", "bfloat16")
        if not known or workload.epilogue:
            return None
        return AttentionProduct(workload, list(self._module[value.args[0]].params), moved)


def _fit(scores: AttentionProduct, values: AttentionProduct) -> bool:
    """Whether the second product may multiply what is made of the first, and should."""
    one, other = scores.workload, values.workload
    made = one.batch, one.height, one.out_channels
    unmoved = OUT not in scores.moved and DATA not in values.moved
    large = one.dtype == "bfloat16" or 4 * one.batch * one.height * one.out_channels > WORTH
    fit = made == (other.batch, other.height, other.in_channels) and one.dtype == other.dtype
    return fit and unmoved and large


def _replaced(module: IRModule, new: dict[RelaxVar, RelaxExpr]) -> IRModule:
    """A module whose `main` has new values of variables, without what nothing calls any more."""
    old = module["main"]
    blocks = [
        type(block)([
            relax.VarBinding(binding.var, new[binding.var]) if binding.var in new else binding
            for binding in block.bindings
        ])
        for block in old.body.blocks
    ]  # fmt: skip
    body = relax.SeqExpr(blocks, old.body.body)
    module["main"] = relax.Function(old.params, body, old.ret_ty, old.is_pure, old.attrs)
    return relax.transform.DeadCodeElimination()(module)


def _is_call(value: RelaxExpr) -> bool:
    return isinstance(value, Call) and value.op.name == CALL_TIR


def _variables(value: RelaxExpr) -> list[RelaxVar]:
    found: list[RelaxVar] = []
    tvm_ffi.structural_walk(value, (relax.Var, found.append))
    return found


# -- the function ------------------------------------------------------------------------------


SCORES = 1 << 19
"""Bytes of the scores of a task: as much as a usual second-level cache."""
SCORES_OF_TILES = 1 << 17
"""The same by tiles. Beside them are copies of the keys, the values and the softmax."""
FEWEST_ROWS = 16
"""Of a task, so that register tiles have work enough for each key that they read."""
MANY = 8
"""Tasks of a thread, of which one more or less hardly counts."""
DATA, WEIGHTS, OUT = range(3)


@dataclass(frozen=True, eq=False)
class AttentionProduct:
    """A kernel that a layer calls: its workload, its parameters (data, weights and result), and
    those of them that have other axes."""

    workload: Workload
    params: Sequence[TirBuffer]
    moved: Mapping[int, MovedAxes]


@dataclass(frozen=True, eq=False)
class RowsBetween:
    """A function over rows of scores, which are its parameter number `scores`."""

    function: PrimFunc
    scores: int


def joined_function(
    scores: AttentionProduct, between: RowsBetween, values: AttentionProduct,
    compiles: CompilesKernels, lanes: int,
) -> PrimFunc | None:  # fmt: skip
    """The function of the parameters of all three, but for the scores; None where they cannot be
    cut into the same tasks."""
    w = scores.workload
    if w.dtype != "float32":
        return _Heads(w, compiles).joined(scores, between, values, lanes)
    for rows in _shares(w):
        found = _Tasks(w, rows, compiles).joined(scores, between, values, lanes)
        if found is not None:
            return found
    return None


def _shares(w: Workload) -> Iterator[int]:
    """Rows of a task, the best first: divisors of a head's whose scores fit, or all."""
    most = max(FEWEST_ROWS, SCORES // (4 * w.out_channels))
    fits = range(min(most, w.height), FEWEST_ROWS - 1, -1)
    yield from (rows for rows in fits if w.height % rows == 0)
    yield w.height


class _Rows:
    """Shares of so many `rows` of a head, the one at hand from row `_first` of head `_head` on."""

    _head: Expression
    _first: Expression

    def __init__(self, scores: Workload, rows: int, compiles: CompilesKernels) -> None:
        self._rows, self._columns, self._compiles = rows, scores.out_channels, compiles
        self._heads, self._height = scores.batch, scores.height
        size = (rows * self._columns,)
        self._scores, self._softmax = (
            tirx.decl_buffer(size, "float32", name) for name in ("scores", "softmax")
        )

    def _parameters(
        self,
        scores: AttentionProduct,
        middle: PrimFunc,
        between: RowsBetween,
        values: AttentionProduct,
    ) -> list[TirBuffer]:
        others = list(middle.params[:-2])
        del others[between.scores]
        return [*scores.params[:OUT], *others, *values.params[WEIGHTS:]]

    def _middle(self, between: RowsBetween, lanes: int) -> PrimFunc | None:
        """What is done to a share's rows between the products, a function; None where it is not by
        rows."""
        whole = self._heads * self._height, self._columns
        return rows_of_task(between.function, lanes, self._rows, whole, between.scores)

    def _between(self, middle: PrimFunc, between: RowsBetween) -> Statement:
        """The same from buffer to buffer of a task."""
        *others, softmax, first = middle.params
        body = _with_variable(middle.body, first, self._row())
        for old, new in ((others[between.scores], self._scores), (softmax, self._softmax)):
            body = elsewhere(body, old, new, self._along(old))
        return body

    def _row(self) -> Expression:
        """The first row of the share at hand among those of all heads."""
        return tirx.Cast("int64", self._head * self._height + self._first)

    def _placed(
        self, product: AttentionProduct, params: Sequence[TirBuffer],
        body: Statement, own: Mapping[int, tuple[TirBuffer, FindPlace]],
    ) -> Statement:  # fmt: skip
        """What a share does of a product whose parameters `own` are buffers of the task."""
        for number, old in enumerate(params):
            given = product.params[number], self._place(number, product.moved.get(number))
            new, place = own.get(number, given)
            body = elsewhere(body, old, new, place)
        return body

    def _own(self, indices: Place) -> Place:
        """Of a row and a column in a buffer of the task."""
        return [indices[1] * self._columns + indices[2]]

    def _place(self, number: int, axes: MovedAxes | None) -> FindPlace:
        """Of a number of a share's kernel in the parameter of all heads."""

        def found(indices: Place) -> Place:
            _, row, column = indices
            known = [self._head, row if number == WEIGHTS else self._first + row, column]
            return known if axes is None else axes.place(known)

        return found

    def _along(self, whole: TirBuffer) -> FindPlace:
        """Of a number of all rows in a buffer of the task."""
        begin = self._row() * self._columns

        def found(indices: Place) -> Place:
            place: Expression = tirx.const(0, "int64")
            for index, extent in zip(indices, whole.shape, strict=True):
                place = place * extent + index
            return [place - begin]

        return found


class _Tasks(_Rows):
    """A share is a task, by kernels that read their operands where they lie."""

    def joined(
        self, scores: AttentionProduct, between: RowsBetween, values: AttentionProduct, lanes: int
    ) -> PrimFunc | None:
        """The function, None where a part has other tasks."""
        task = tirx.Var("task", "int32")
        shares = self._height // self._rows
        self._head = tirx.indexdiv(task, shares)
        self._first = tirx.indexmod(task, shares) * self._rows
        one = self._product(scores, task, {OUT: (self._scores, self._own)})
        other = self._product(values, task, {DATA: (self._softmax, self._own)})
        middle = self._middle(between, lanes)
        if one is None or other is None or middle is None:
            return None
        buffers = [tirx.AllocBuffer(self._scores), tirx.AllocBuffer(self._softmax)]
        loop = tirx.For(
            task, 0, self._heads * shares, tirx.ForKind.PARALLEL,
            tirx.SeqStmt([*buffers, one, self._between(middle, between), other]),
        )  # fmt: skip
        params = self._parameters(scores, middle, between, values)
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _product(
        self,
        product: AttentionProduct,
        task: LoopVar,
        own: Mapping[int, tuple[TirBuffer, FindPlace]],
    ) -> Statement | None:
        """What a task does of a product; None where the kernel has other tasks."""
        count = self._heads * self._height // self._rows
        w = replace(product.workload, batch=count, height=self._rows)
        try:
            function = self._compiles.kernel(w, self._compiles.rule(w)).function
        except WorkloadError:
            return None
        loop = function.body
        parallel = isinstance(loop, tirx.For) and loop.kind == tirx.ForKind.PARALLEL
        if not parallel or int(loop.extent) != count:
            return None
        body = _with_variable(loop.body, loop.loop_var, task)
        return self._placed(product, function.params, body, own)


class _Heads(_Rows):
    """A part of a head is a task, by kernels that copy both operands before they multiply. The last
    share overlaps the one before where they are uneven.

    A task has two shares at least. In a loop all buffers stay alive: TVM would give the memory of
    one to another of its own type, which instructions of tiles cannot take.
    """

    def __init__(self, scores: Workload, compiles: CompilesKernels) -> None:
        shares = -(-4 * scores.height * scores.out_channels // SCORES_OF_TILES)
        self._parts = _parts(scores, compiles.threads)
        self._each = max(2, -(-shares // self._parts))
        super().__init__(scores, -(-scores.height // (self._parts * self._each)), compiles)

    def joined(
        self, scores: AttentionProduct, between: RowsBetween, values: AttentionProduct, lanes: int
    ) -> PrimFunc | None:
        """The function, None where a part is written otherwise."""
        task, share = tirx.Var("task", "int32"), tirx.Var("share", "int32")
        self._head = tirx.indexdiv(task, self._parts)
        first = (tirx.indexmod(task, self._parts) * self._each + share) * self._rows
        self._first = tirx.min(first, self._height - self._rows)
        one = self._product(scores, {OUT: (self._scores, self._own)})
        other = self._product(values, {DATA: (self._softmax, self._own)})
        middle = self._middle(between, lanes)
        if one is None or other is None or middle is None:
            return None
        buffers = [self._scores, self._softmax, *one.buffers, *other.buffers]
        rows = tirx.For(
            share, 0, self._each, tirx.ForKind.SERIAL,
            tirx.SeqStmt([*one.rows, self._between(middle, between), *other.rows]),
        )  # fmt: skip
        loop = tirx.For(
            task, 0, self._heads * self._parts, tirx.ForKind.PARALLEL,
            tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), *one.keys, *other.keys, rows]),
        )  # fmt: skip
        params = self._parameters(scores, middle, between, values)
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _product(
        self, product: AttentionProduct, own: Mapping[int, tuple[TirBuffer, FindPlace]]
    ) -> _CopyingProduct | None:
        """The statements of a product; None where its kernel is written otherwise."""
        w = replace(product.workload, batch=1, height=self._rows)
        try:
            function = self._compiles.kernel(w, self._compiles.rule(w)).function
        except WorkloadError:
            return None
        body = function.body
        parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
        allocated = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
        loops = [part for part in parts if isinstance(part, tirx.For)]
        if len(allocated) + len(loops) != len(parts):
            return None
        keys = [loop for loop in loops if _reads(loop, function.params[WEIGHTS])]
        rows = [loop for loop in loops if not any(loop.same_as(key) for key in keys)]
        if not keys or any(_reads(loop, function.params[DATA]) for loop in keys):
            return None

        def placed(loops: Sequence[For]) -> list[Statement]:
            return [self._placed(product, function.params, _serial(loop), own) for loop in loops]

        return _CopyingProduct([each.buffer for each in allocated], placed(keys), placed(rows))


def _parts(scores: Workload, threads: int) -> int:
    """Of a head, each of which copies all keys: few, but so that threads have equally much to do,
    or many tasks each."""
    heads, most = scores.batch, max(1, scores.height // (2 * FEWEST_ROWS))
    even = (
        parts
        for parts in range(1, most + 1)
        if heads * parts % threads == 0 or heads * parts >= MANY * threads
    )
    return next(even, most)


@dataclass(frozen=True, eq=False)
class _CopyingProduct:
    """The buffers that a product copies its operands to, the loops that copy its weights, which a
    head has once, and those of each share of the rows."""

    buffers: Sequence[TirBuffer]
    keys: Sequence[Statement]
    rows: Sequence[Statement]


def _reads(body: Statement, buffer: TirBuffer) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(
        body, (TensorLoad, lambda load: found.append(load.source.same_as(buffer)))
    )
    return any(found)


def _serial(body: Statement) -> Statement:
    """The same on the thread that runs it."""

    def one(loop: For) -> For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(body, (tirx.For, one))


def _with_variable(body: Statement, old: LoopVar, new: Expression) -> Statement:
    return tvm_ffi.structural_map(body, (tirx.Var, lambda var: new if var.same_as(old) else var))
