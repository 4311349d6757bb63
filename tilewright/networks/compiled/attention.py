"""Fuse each attention of a network into one function.

An attention consists of two batched matrix products with a softmax in between. If separate
functions compute it, the scores (the results of the first product) of all heads are stored in
memory. The fused function processes only some rows of a head at a time, so that their scores stay
in the cache:

    parallel over (heads, shares of the rows)
      scores of the rows        first product, into a buffer of the task
      softmax of the rows       including scaling and masks
      product with the values   second product, from another buffer of the task

Both products use the kernels of the processor for this number of rows, with their rule schedules
(schedules that are chosen without measurements). Kernels that use matrix-tile instructions (AMX)
first copy both operands. For these kernels, a task is a whole head or a large part of one, so that
the keys and values are copied only once per task:

    parallel over (heads, parts of the rows)
      copy keys and values
      for each share of the rows
        scores, softmax, product with the values

The constants were chosen on the Xeon described in docs/evidence/cpu.md. `python -m
benchmarks.cpu.networks --networks bert_6_128,bert_2_512,bert_2_1024,vit_tiny` measures them again;
add `--precision bf16` for tile instructions.
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
from tilewright.networks.compiled.operands_in_place import FindPlace, MovedAxes, redirect_accesses
from tilewright.targets.capabilities import CompilesKernels
from tilewright.targets.workload import Workload

WORTH = 1 << 22
"""Total size in bytes of the float32 scores above which a fused attention is worthwhile. For
smaller scores, separate matrix products are as fast (measured)."""
CALL_TIR, RESHAPE = "relax.call_tir", "relax.reshape"


class JoinedAttention:
    """Find attention in a rewritten network and create a pass that fuses it.

    Args:
        rewritten: the network, rewritten so that its layers call kernels.
        compiles: generator of kernels for the processor.

    Attributes:
        functions: name of the fused function, by layer number of the attention's second product.
            The pass fills this dictionary.
        scores: layer number of the second product, by layer number of the first product. The pass
            fills this dictionary.
    """

    def __init__(self, rewritten: Rewritten, compiles: CompilesKernels) -> None:
        self._rewritten, self._compiles = rewritten, compiles
        self.functions: dict[int, str] = {}
        self.scores: dict[int, int] = {}

    def make_pass(self, lanes: int) -> Pass:
        """Return a module pass that replaces each attention by a call of one fused function.

        The pass expects that the operators have already been lowered to TensorIR functions.

        Args:
            lanes: number of float32 values per vector.
        """

        def run(module: IRModule, _: object) -> IRModule:
            return self._join_attention(module, lanes)

        return module_pass(run, opt_level=0, name="TilewrightAttention")

    def _join_attention(self, module: IRModule, lanes: int) -> IRModule:
        calls = _Calls(module, self._rewritten)
        builder = relax.BlockBuilder(module)
        fused_functions: dict[tuple[RelaxExpr, ...], RelaxExpr | None] = {}
        new: dict[RelaxVar, RelaxExpr] = {}
        for var in calls.layers:
            attention = calls.attention(var)
            if attention is None:
                continue
            if attention.functions not in fused_functions:
                function = joined_function(
                    attention.scores, attention.between, attention.values, self._compiles, lanes
                )
                if function is not None:
                    name = f"attention_{len(fused_functions)}"
                    function = builder.add_func(function.with_attr(KERNEL, 1), name)
                fused_functions[attention.functions] = function
            if (function := fused_functions[attention.functions]) is not None:
                new[var] = relax.call_tir(function, relax.Tuple(attention.arguments), var.ty)
                number = calls.layers[var]
                self.functions[number] = str(function.name_hint)
                self.scores[calls.layers[attention.first]] = number
        return _replace_values(builder.get(), new) if new else module


@dataclass(frozen=True, eq=False)
class _Attention:
    """The calls of a network that together compute one attention.

    Attributes:
        scores: the first product.
        between: the function between the products, which contains the softmax.
        values: the second product.
        first: variable of the first product's result.
        arguments: arguments of the fused function.
        functions: the three called functions. Attentions with equal functions share a fused
            function.
    """

    scores: AttentionProduct
    between: RowsBetween
    values: AttentionProduct
    first: RelaxVar
    arguments: list[RelaxExpr]
    functions: tuple[RelaxExpr, ...]


class _Calls:
    """The function calls in a module's `main`.

    Args:
        module: the module, whose operators are TensorIR functions.
        rewritten: the network with kernel calls from which the module was compiled.

    Attributes:
        layers: layer number of each kernel call, by variable of its result.
    """

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
        # Unused calls were removed, so that numbers no longer match layers.
        if len(kernels) != len(rewritten.layers):
            self.layers = {}
        self._about = {
            name: (layer.workload, dict(moved))
            for name, layer, moved in zip(
                rewritten.called, rewritten.layers, rewritten.moved, strict=True
            )
        }

    def attention(self, result: RelaxVar) -> _Attention | None:
        """Return the attention whose second product writes a variable.

        Args:
            result: the variable.

        Returns:
            The attention, or None if the variable is not the result of one that is worth fusing.
        """
        values = self._product(result)
        if values is None:
            return None
        softmax, *_ = arguments = self._arguments(result)
        between = self._writing_call(softmax)
        if between is None or self._is_kernel(self._values[between]):
            return None
        other_arguments = self._arguments(between)
        for index, argument in enumerate(other_arguments):
            first = self._writing_call(argument)
            scores = None if first is None else self._product(first)
            if scores is not None and _fit(scores, values):
                del other_arguments[index]
                called = [self._values[var].args[0] for var in (first, between, result)]
                return _Attention(
                    scores, RowsBetween(self._module[called[1]], index), values, first,
                    [*self._arguments(first), *other_arguments, *arguments[WEIGHTS:]],
                    tuple(called),
                )  # fmt: skip
        return None

    def _is_kernel(self, value: RelaxExpr) -> bool:
        return _is_call(value) and KERNEL in (self._module[value.args[0]].attrs or {})

    def _arguments(self, var: RelaxVar) -> list[RelaxExpr]:
        """Return the arguments of the function call that writes a variable."""
        return list(self._values[var].args[1].fields)

    def _writing_call(self, var: RelaxExpr) -> RelaxVar | None:
        """Return the result variable of the function call that computes a value.

        Reshapes between the call and the value are skipped.

        Args:
            var: variable of the value.

        Returns:
            The variable that the call writes. None if an operator other than a call or a reshape
            computes the value, or if a value on the path has several readers.
        """
        while (value := self._values.get(var)) is not None and self._readers[var] == 1:
            if _is_call(value):
                return var
            if not (isinstance(value, Call) and value.op.name == RESHAPE):
                return None
            var = value.args[0]
        return None

    def _product(self, var: RelaxVar) -> AttentionProduct | None:
        """Return the batched matrix product that writes a variable.

        Returns:
            The product. None if the variable is written by another function, or by a product with
            an epilogue (fused post-operations).
        """
        value = self._values[var]
        if not self._is_kernel(value):
            return None
        workload, moved = self._about[str(value.args[0].name_hint)]
        known = workload.operator == "batch_matmul" and workload.dtype in ("float32", "bfloat16")
        if not known or workload.epilogue:
            return None
        return AttentionProduct(workload, list(self._module[value.args[0]].params), moved)


def _fit(scores: AttentionProduct, values: AttentionProduct) -> bool:
    """Return whether two products form an attention whose fusion is possible and worthwhile.

    Args:
        scores: the product that computes the attention scores.
        values: the product of the softmax result with the values.
    """
    first, second = scores.workload, values.workload
    first_shape = first.batch, first.height, first.out_channels
    unmoved = OUT not in scores.moved and DATA not in values.moved
    large = first.dtype == "bfloat16" or 4 * first.batch * first.height * first.out_channels > WORTH
    fit = (
        first_shape == (second.batch, second.height, second.in_channels)
        and first.dtype == second.dtype
    )
    return fit and unmoved and large


def _replace_values(module: IRModule, new: dict[RelaxVar, RelaxExpr]) -> IRModule:
    """Replace the values of variables in a module's `main`.

    Args:
        module: the module, which is changed. Functions that are no longer called are removed.
        new: the new values by variable.

    Returns:
        The changed module.
    """
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
    names: list[RelaxVar] = []
    tvm_ffi.structural_walk(value, (relax.Var, names.append))
    return names


# -- the function ------------------------------------------------------------------------------


SCORES = 1 << 19
"""Maximum size in bytes of the scores of one task, about the size of a second-level cache."""
SCORES_OF_TILES = 1 << 17
"""Maximum size in bytes of the scores that are computed at a time with tile instructions. It is
smaller than `SCORES`, because the cache must also hold copies of the keys, the values and the
softmax."""
FEWEST_ROWS = 16
"""Minimum number of rows per task. With fewer rows, a loaded key would be used by less than a full
register tile."""
MANY = 8
"""Number of tasks per thread from which on it hardly matters whether all threads get the same
number of tasks."""
DATA, WEIGHTS, OUT = range(3)
"""Indices of the parameters of a matrix product: data, weights and output."""


@dataclass(frozen=True, eq=False)
class AttentionProduct:
    """A kernel call that computes one of the two products of an attention.

    Attributes:
        workload: workload of the kernel.
        params: parameters of the kernel: data, weights and output.
        moved: permutation of each parameter whose axes are in a different order in the network, by
            parameter number.
    """

    workload: Workload
    params: Sequence[TirBuffer]
    moved: Mapping[int, MovedAxes]


@dataclass(frozen=True, eq=False)
class RowsBetween:
    """The function between the two products, which operates on rows of scores.

    Attributes:
        function: the TensorIR function.
        scores: number of the parameter that receives the scores.
    """

    function: PrimFunc
    scores: int


def joined_function(
    scores: AttentionProduct, between: RowsBetween, values: AttentionProduct,
    compiles: CompilesKernels, lanes: int,
) -> PrimFunc | None:  # fmt: skip
    """Build the fused function for an attention.

    Args:
        scores: the first product.
        between: the function between the products.
        values: the second product.
        compiles: generator of kernels for the processor.
        lanes: number of float32 values per vector.

    Returns:
        A function that has the parameters of all three parts, except for the scores. None if the
        three parts cannot be divided into the same tasks.
    """
    w = scores.workload
    if w.dtype != "float32":
        return _Heads(w, compiles).build_function(scores, between, values, lanes)
    for rows in _shares(w):
        function = _Tasks(w, rows, compiles).build_function(scores, between, values, lanes)
        if function is not None:
            return function
    return None


def _shares(w: Workload) -> Iterator[int]:
    """Yield possible numbers of rows per task, from the best to the worst.

    The candidates are divisors of the number of rows, in descending order from the largest number
    of rows whose scores fit into the cache. The last candidate is the number of all rows.

    Args:
        w: workload of the product that computes the scores.
    """
    most = max(FEWEST_ROWS, SCORES // (4 * w.out_channels))
    fits = range(min(most, w.height), FEWEST_ROWS - 1, -1)
    yield from (rows for rows in fits if w.height % rows == 0)
    yield w.height


class _Rows:
    """Base class of builders of a fused attention that processes `rows` rows of a head at a time.

    Before statements are built, subclasses set the index of the current head (`_head`) and of the
    first row that is processed (`_first`).

    Args:
        scores: workload of the first product.
        rows: number of rows that are processed at a time.
        compiles: generator of kernels for the processor.
    """

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
        middle_params = list(middle.params[:-2])
        del middle_params[between.scores]
        return [*scores.params[:OUT], *middle_params, *values.params[WEIGHTS:]]

    def _middle(self, between: RowsBetween, lanes: int) -> PrimFunc | None:
        """Return the function between the two products, restricted to the rows of a task.

        Args:
            between: the function, which contains the softmax.
            lanes: number of float32 values per vector.

        Returns:
            The function for `rows` rows, with the index of the first row as a parameter. None if a
            row of the result depends on other rows of the scores.
        """
        whole = self._heads * self._height, self._columns
        return rows_of_task(between.function, lanes, self._rows, whole, between.scores)

    def _middle_statements(self, middle: PrimFunc, between: RowsBetween) -> Statement:
        """Return the statements between the products, which operate on the buffers of a task.

        Args:
            middle: the function that `_middle` returned.
            between: the function from which it was derived.
        """
        *middle_params, softmax, first = middle.params
        body = _with_variable(middle.body, first, self._row())
        for old, new in ((middle_params[between.scores], self._scores), (softmax, self._softmax)):
            body = redirect_accesses(body, old, new, self._map_indices(old))
        return body

    def _row(self) -> Expression:
        """Return the current first row's index among the rows of all heads."""
        return tirx.Cast("int64", self._head * self._height + self._first)

    def _place_product(
        self, product: AttentionProduct, params: Sequence[TirBuffer],
        body: Statement, task_buffers: Mapping[int, tuple[TirBuffer, FindPlace]],
    ) -> Statement:  # fmt: skip
        """Return a kernel's statements, rewritten to use the fused function's buffers.

        Args:
            product: the product that the kernel computes.
            params: parameters of the kernel, as they occur in `body`.
            body: statements of the kernel.
            task_buffers: for some parameter numbers, the buffer of the task that replaces the
                parameter and a function that maps its indices. The other parameters are replaced by
                the tensors of all heads.
        """
        for number, old in enumerate(params):
            default = product.params[number], self._place(number, product.moved.get(number))
            new, place = task_buffers.get(number, default)
            body = redirect_accesses(body, old, new, place)
        return body

    def _flat_index(self, indices: Place) -> Place:
        """Convert indices (head, row, column) to the index in a task's 1-D buffer."""
        return [indices[1] * self._columns + indices[2]]

    def _place(self, number: int, axes: MovedAxes | None) -> FindPlace:
        """Return a function that maps a kernel parameter's indices to the tensor of all heads.

        Args:
            number: number of the parameter.
            axes: permutation of the tensor's axes, or None if the tensor has the parameter's axes.
        """

        def find_place(indices: Place) -> Place:
            _, row, column = indices
            known = [self._head, row if number == WEIGHTS else self._first + row, column]
            return known if axes is None else axes.place(known)

        return find_place

    def _map_indices(self, whole: TirBuffer) -> FindPlace:
        """Return a function that maps indices in a tensor of all rows to a task's buffer.

        Args:
            whole: buffer of the tensor of all rows. The buffer of the task is one-dimensional.
        """
        begin = self._row() * self._columns

        def find_place(indices: Place) -> Place:
            place: Expression = tirx.const(0, "int64")
            for index, extent in zip(indices, whole.shape, strict=True):
                place = place * extent + index
            return [place - begin]

        return find_place


class _Tasks(_Rows):
    """Builder of a fused attention for kernels that do not copy their operands.

    Each task of the fused function computes one share of the rows of one head.
    """

    def build_function(
        self, scores: AttentionProduct, between: RowsBetween, values: AttentionProduct, lanes: int
    ) -> PrimFunc | None:
        """Build the fused function.

        Args:
            scores: the first product.
            between: the function between the products, which contains the softmax.
            values: the second product.
            lanes: number of float32 values per vector.

        Returns:
            The function, or None if one of the three parts cannot be divided into the same tasks.
        """
        task = tirx.Var("task", "int32")
        shares = self._height // self._rows
        self._head = tirx.indexdiv(task, shares)
        self._first = tirx.indexmod(task, shares) * self._rows
        first_product = self._product(scores, task, {OUT: (self._scores, self._flat_index)})
        second_product = self._product(values, task, {DATA: (self._softmax, self._flat_index)})
        middle = self._middle(between, lanes)
        if first_product is None or second_product is None or middle is None:
            return None
        buffers = [tirx.AllocBuffer(self._scores), tirx.AllocBuffer(self._softmax)]
        loop = tirx.For(
            task, 0, self._heads * shares, tirx.ForKind.PARALLEL,
            tirx.SeqStmt(
                [*buffers, first_product, self._middle_statements(middle, between), second_product]
            ),
        )  # fmt: skip
        params = self._parameters(scores, middle, between, values)
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _product(
        self,
        product: AttentionProduct,
        task: LoopVar,
        task_buffers: Mapping[int, tuple[TirBuffer, FindPlace]],
    ) -> Statement | None:
        """Return the statements of one task of a product.

        Args:
            product: the product.
            task: variable of the task's number.
            task_buffers: for some parameter numbers, the buffer of the task that replaces the
                parameter and a function that maps its indices.

        Returns:
            The statements, or None if the kernel is not divided into the same tasks.
        """
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
        return self._place_product(product, function.params, body, task_buffers)


class _Heads(_Rows):
    """Builder of a fused attention for kernels that copy their operands.

    Each task of the fused function computes a whole head or a part of one, in several shares of
    rows. If the rows cannot be divided evenly, the last share overlaps the share before it. A task
    has at least two shares, so that its buffers are used inside a loop. Otherwise, TVM would reuse
    the memory of one buffer for another buffer of the same type, which tile instructions do not
    allow.
    """

    def __init__(self, scores: Workload, compiles: CompilesKernels) -> None:
        shares = -(-4 * scores.height * scores.out_channels // SCORES_OF_TILES)
        self._parts = _parts(scores, compiles.threads)
        # At least two shares, so that TVM does not reuse the memory of a buffer (see above).
        self._each = max(2, -(-shares // self._parts))
        super().__init__(scores, -(-scores.height // (self._parts * self._each)), compiles)

    def build_function(
        self, scores: AttentionProduct, between: RowsBetween, values: AttentionProduct, lanes: int
    ) -> PrimFunc | None:
        """Build the fused function.

        Args:
            scores: the first product.
            between: the function between the products, which contains the softmax.
            values: the second product.
            lanes: number of float32 values per vector.

        Returns:
            The function, or None if a kernel has an unexpected form.
        """
        task, share = tirx.Var("task", "int32"), tirx.Var("share", "int32")
        self._head = tirx.indexdiv(task, self._parts)
        first = (tirx.indexmod(task, self._parts) * self._each + share) * self._rows
        self._first = tirx.min(first, self._height - self._rows)
        first_part = self._product(scores, {OUT: (self._scores, self._flat_index)})
        second_part = self._product(values, {DATA: (self._softmax, self._flat_index)})
        middle = self._middle(between, lanes)
        if first_part is None or second_part is None or middle is None:
            return None
        buffers = [self._scores, self._softmax, *first_part.buffers, *second_part.buffers]
        rows = tirx.For(
            share, 0, self._each, tirx.ForKind.SERIAL,
            tirx.SeqStmt(
                [*first_part.rows, self._middle_statements(middle, between), *second_part.rows]
            ),
        )  # fmt: skip
        loop = tirx.For(
            task, 0, self._heads * self._parts, tirx.ForKind.PARALLEL,
            tirx.SeqStmt(
                [*map(tirx.AllocBuffer, buffers), *first_part.keys, *second_part.keys, rows]
            ),
        )  # fmt: skip
        params = self._parameters(scores, middle, between, values)
        return tirx.PrimFunc(params, loop).with_attr("s_tir", True)

    def _product(
        self, product: AttentionProduct, task_buffers: Mapping[int, tuple[TirBuffer, FindPlace]]
    ) -> _CopyingProduct | None:
        """Return the statements of a product, or None if its kernel has an unexpected form.

        Args:
            product: the product.
            task_buffers: for some parameter numbers, the buffer of the task that replaces the
                parameter and a function that maps its indices.
        """
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
            return [
                self._place_product(product, function.params, _serial(loop), task_buffers)
                for loop in loops
            ]

        return _CopyingProduct([alloc.buffer for alloc in allocated], placed(keys), placed(rows))


def _parts(scores: Workload, threads: int) -> int:
    """Return the number of parts into which the rows of each head are divided.

    Each part copies all keys, so the number of parts is as small as possible. It is large enough
    that all threads get the same number of tasks, or that each thread gets many tasks.

    Args:
        scores: workload of the first product.
        threads: number of threads.
    """
    heads, most = scores.batch, max(1, scores.height // (2 * FEWEST_ROWS))
    even = (
        parts
        for parts in range(1, most + 1)
        if heads * parts % threads == 0 or heads * parts >= MANY * threads
    )
    return next(even, most)


@dataclass(frozen=True, eq=False)
class _CopyingProduct:
    """Statements of a product whose kernel copies its operands before it multiplies them.

    Attributes:
        buffers: buffers for the copies.
        keys: loops that copy the second operand. They run once per task.
        rows: loops that copy and multiply the rows of the first operand. They run once per share of
            rows.
    """

    buffers: Sequence[TirBuffer]
    keys: Sequence[Statement]
    rows: Sequence[Statement]


def _reads(body: Statement, buffer: TirBuffer) -> bool:
    matches: list[bool] = []
    tvm_ffi.structural_walk(
        body, (TensorLoad, lambda load: matches.append(load.source.same_as(buffer)))
    )
    return any(matches)


def _serial(body: Statement) -> Statement:
    """Return the statement with its parallel loops replaced by serial loops."""

    def one(loop: For) -> For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(body, (tirx.For, one))


def _with_variable(body: Statement, old: LoopVar, new: Expression) -> Statement:
    return tvm_ffi.structural_map(body, (tirx.Var, lambda var: new if var.same_as(old) else var))
