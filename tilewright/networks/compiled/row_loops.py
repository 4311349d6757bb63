"""Rewrite functions that reduce rows, such as softmax, layer normalisation and means.

A row is the part of a tensor along the reduced axes. Such a function consists of loop nests of
three kinds: a nest reduces each row to one number, maps each row to another row, or maps the
numbers. The rewritten function performs all steps on a row while the row is in the cache:

    parallel loop over shares of the rows
      loop over the rows of a share
        first loop over the row, in vectors     all nests that need no reduced number of the row
        combine the partial results             into one number per reduction
        next loop over the row, and so on

Rows of any length are read in whole vectors. Rows that are shorter than a vector use narrower
vectors. If the length is not a multiple of the vector length, the last vector overlaps the vector
before it. A map then computes some values twice, and a reduction ignores the lanes that were
already read.

The number of partial results per reduction and the number of shares were chosen on the Xeon
described in docs/evidence/cpu.md. `python -m benchmarks.cpu.networks --networks
convnext_t,bert_6_128,mixer_s16` measures networks with many such functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.tvm_types import (
    BufferLoad,
    Combiner,
    Expression,
    IterVar,
    LoopVar,
    Place,
    PrimFunc,
    SBlock,
    Statement,
    TirBuffer,
)
from tilewright.networks.relax.nan_propagation import chosen_with_nan, keep_nan

CHAINS = 4
"""Number of vectors that hold partial results of a reduction. An operation has to wait for the
previous operation on the same vector, so several vectors are used in turn."""
SHARES = 64
"""Maximum number of shares into which the rows are divided for parallel execution. This many shares
ensure that no thread waits long for the others."""
REDUCED = 2
"""TVM's code for a reduction axis. The code for an axis of the result is 0."""
Node = TypeVar("Node")
COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)
"""TensorIR operations that may combine the values of a reduction."""


class NoRows(Exception):
    """Raised if a function cannot be rewritten to compute row by row.

    All of its loop nests must run over the same rows.
    """


@dataclass(frozen=True, eq=False)
class RowStore:
    """An assignment `buffer[indices] = value` in a loop nest.

    In a reduction, the value is combined with the number that is already stored.

    Attributes:
        buffer: the buffer that is written.
        indices: indices of the written element.
        value: the assigned value. In a reduction, it is the value that is combined with the stored
            number.
        combiner: for a reduction, the function that returns the expression of two combined numbers,
            for example their sum; otherwise None.
        initial: initial value of a reduction.
    """

    buffer: TirBuffer
    indices: Place
    value: Expression
    combiner: Combiner | None = None
    initial: Expression | None = None

    def combine(self, first: Expression, second: Expression) -> Expression:
        """Return the expression that combines two numbers of a reduction."""
        assert self.combiner is not None, "only a reduction combines"
        return self.combiner(first, second)


@dataclass(frozen=True, eq=False)
class RowNest:
    """A loop nest over rows.

    Attributes:
        outer: loop variables that select the row.
        inner: loop variables along the row. They are empty if the nest computes one number per row
            from other numbers of the row.
        stores: the stores in the body of the nest.
    """

    outer: Sequence[LoopVar]
    inner: Sequence[LoopVar]
    stores: Sequence[RowStore]

    @property
    def reduces(self) -> bool:
        """True if the nest reduces each row to one number."""
        return self.stores[0].combiner is not None

    @property
    def maps(self) -> bool:
        """True if the nest computes a row from rows, element by element."""
        return bool(self.inner) and not self.reduces

    @property
    def loads(self) -> list[BufferLoad]:
        """All loads in the body of the nest."""
        return [load for store in self.stores for load in _parts_of_type(store.value, TensorLoad)]


@dataclass(frozen=True)
class Rows:
    """Sizes of the rows that a function reduces.

    Attributes:
        outer: sizes of the axes that select a row.
        inner: sizes of the axes along a row.
        joined: number of axes at the end of a row that are contiguous in memory for all loads. They
            are iterated by a single loop.
    """

    outer: Sequence[int]
    inner: Sequence[int]
    joined: int

    @property
    def run(self) -> int:
        """Number of contiguous elements of a row."""
        return math.prod(self.inner[-self.joined :])


def by_rows(
    function: PrimFunc, blocks: Sequence[SBlock], lanes: int, worth_threads: int
) -> PrimFunc:
    """Rewrite a function so that it computes its rows one after another.

    Args:
        function: the TensorIR function.
        blocks: its TensorIR blocks, in order.
        lanes: number of elements per vector.
        worth_threads: number of elements from which the rows are divided between threads.

    Raises:
        NoRows: the function does not reduce rows, or its loop nests have different rows.
    """
    return _writer(function, blocks, lanes).build_function(worth_threads)


def by_task(
    function: PrimFunc,
    blocks: Sequence[SBlock],
    lanes: int,
    rows: int,
    whole: tuple[int, int],
    read: int,
) -> PrimFunc:
    """Rewrite a function so that it computes only some of its rows, for one task.

    The index of the first row becomes an additional parameter.

    Args:
        function: function over all rows.
        blocks: its TensorIR blocks, in order.
        lanes: number of elements per vector.
        rows: number of rows per task.
        whole: total number of rows, and number of elements per row.
        read: number of the parameter that is divided by rows. Each row of the result may depend
            only on the same row of this parameter.

    Raises:
        NoRows: the function does not reduce rows, or its loop nests have different rows.
    """
    return _writer(function, blocks, lanes).written_for_task(rows, whole, read)


def _writer(function: PrimFunc, blocks: Sequence[SBlock], lanes: int) -> _Writer:
    if not all(isinstance(parameter.ty, tirx.BufferType) for parameter in function.params):
        raise NoRows
    outer, inner = _row_sizes(blocks)
    nests = [_nest(block, outer, inner) for block in blocks]
    _check_places(nests)
    rows = Rows(outer, inner, _joined_axes(nests, inner))
    return _Writer(function, nests, rows, lanes)


def _row_sizes(blocks: Sequence[SBlock]) -> tuple[list[int], list[int]]:
    """Return the sizes of the axes that select a row, and of the axes along a row.

    The sizes are read from the first block that is a reduction. Axes of size 1 are left out.

    Args:
        blocks: TensorIR blocks of the function, one per loop nest.

    Raises:
        NoRows: no block is a reduction.
    """
    for block in blocks:
        axes = [(_size(axis), int(axis.iter_type)) for axis in block.iter_vars if _size(axis) > 1]
        inner = [size for size, kind in axes if kind == REDUCED]
        if inner:
            return [size for size, kind in axes if kind != REDUCED], inner
    raise NoRows


def _size(axis: IterVar) -> int:
    return int(axis.dom.extent)


def _nest(block: SBlock, outer: Sequence[int], inner: Sequence[int]) -> RowNest:
    axes = [axis for axis in block.iter_vars if _size(axis) > 1]
    if any(str(axis.var.ty.dtype) != "int64" for axis in axes):
        raise NoRows
    sizes, kinds = [_size(axis) for axis in axes], {int(axis.iter_type) for axis in axes}
    reduces = [int(axis.iter_type) == REDUCED for axis in axes]
    along = sizes == [*outer, *inner]
    if not along and sizes != outer:
        raise NoRows
    if any(reduces) and reduces != [False] * len(outer) + [True] * len(inner):
        raise NoRows
    if not kinds <= {0, REDUCED}:
        raise NoRows
    known = {axis.var: _index(0) for axis in block.iter_vars if _size(axis) == 1}
    initial = {statement.buffer: statement.value for statement in _statements(block.init)}
    stores = []
    for statement in _statements(block.body):
        if isinstance(statement, tirx.Bind):
            known[statement.var] = _substitute(statement.value, known)
        elif isinstance(statement, tirx.BufferStore):
            indices = [_substitute(index, known) for index in statement.indices]
            store = RowStore(statement.buffer, indices, _substitute(statement.value, known))
            stores.append(_reduction(store, initial) if any(reduces) else store)
        else:
            raise NoRows
    variables = [axis.var for axis in axes]
    nest = RowNest(variables[: len(outer)], variables[len(outer) :], stores)
    if any(load.source.same_as(store.buffer) for load in nest.loads for store in stores):
        raise NoRows
    return nest


def _statements(body: Statement | None) -> Sequence[Statement]:
    if body is None:
        return []
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _reduction(store: RowStore, initial: Mapping[TirBuffer, Expression]) -> RowStore:
    """Convert the assignment in a reduction to a `RowStore` with a combining function.

    Args:
        store: the assignment, whose value combines the stored number with another value.
        initial: initial value of each buffer.

    Returns:
        The same assignment, with the other value and the function that combines both.

    Raises:
        NoRows: the value is not such a combination, or the buffer has no initial value.
    """
    value = store.value
    combiner: Combiner | None = None
    if (chosen := chosen_with_nan(value)) is not None:
        first, second, choose = chosen
        combiner = partial(keep_nan, choose=choose)
    elif isinstance(value, COMBINERS):
        first, second, combiner = value.a, value.b, type(value)
    if combiner is None or store.buffer not in initial:
        raise NoRows
    for accumulated, other in ((first, second), (second, first)):
        if isinstance(accumulated, TensorLoad) and accumulated.source.same_as(store.buffer):
            begin = initial[store.buffer]
            return RowStore(store.buffer, store.indices, other, combiner, begin)
    raise NoRows


def _check_places(nests: Sequence[RowNest]) -> None:
    """Check that each nest accesses results of nests only at its own row and position in the row.

    The inputs of the function may be read at any place.

    Args:
        nests: the loop nests over rows, in order.

    Raises:
        NoRows: a nest accesses a result at another row or position.
    """
    maps: dict[TirBuffer, bool] = {}
    for nest in nests:
        for load in nest.loads:
            if load.source in maps:
                _check_place(load.indices, nest, maps[load.source])
        for store in nest.stores:
            maps[store.buffer] = nest.maps
            _check_place(store.indices, nest, nest.maps)


def _check_place(indices: Place, nest: RowNest, along: bool) -> None:
    expected = [*nest.outer, *nest.inner] if along else nest.outer
    variable_indices = [index for index in indices if not isinstance(index, tirx.IntImm)]
    if len(variable_indices) != len(expected) or not all(map(_same, variable_indices, expected)):
        raise NoRows


def _same(one: LoopVar, other: LoopVar) -> bool:
    return bool(one.same_as(other))


def _joined_axes(nests: Sequence[RowNest], inner: Sequence[int]) -> int:
    """Return the number of axes at the end of a row that are contiguous in memory for all loads.

    Args:
        nests: the loop nests over rows.
        inner: sizes of the axes along a row.

    Raises:
        NoRows: not even the last axis is contiguous.
    """
    for joined in range(len(inner), 0, -1):
        if all(_lie_together(nest, joined) for nest in nests if nest.inner):
            return joined
    raise NoRows


def _lie_together(nest: RowNest, joined: int) -> bool:
    """Return whether the last axes of a row are contiguous in memory for all loads of a nest.

    Args:
        nest: the loop nest.
        joined: number of axes.
    """
    variables, in_places = nest.inner[-joined:], 0
    for load in nest.loads:
        used = [index for index in load.indices if any(_uses(index, var) for var in variables)]
        if not used:
            continue
        last = [i for i, size in zip(load.indices, load.source.shape, strict=True) if int(size) > 1]
        if len(used) != joined or not all(map(_same, last[-joined:], variables)):
            return False
        in_places += joined
    everywhere = sum(_uses(store.value, var) for store in nest.stores for var in variables)
    return joined == 1 or in_places == everywhere


def _uses(expression: Expression, var: LoopVar) -> int:
    """Return how often a variable occurs in an expression."""
    return sum(map(var.same_as, _parts_of_type(expression, tirx.Var)))


def _parts_of_type(expression: Expression, kind: type[Node]) -> list[Node]:
    """Return all subexpressions of an expression that have the given type."""
    parts: list[Node] = []
    tvm_ffi.structural_walk(expression, (kind, parts.append))
    return parts


def _substitute(expression: Expression, known: Mapping[LoopVar, Expression]) -> Expression:
    """Return an expression in which variables are replaced by other expressions."""
    return tvm_ffi.structural_map(expression, (tirx.Var, lambda var: known.get(var, var)))


def _index(value: int) -> Expression:
    return tirx.const(value, "int64")


@dataclass(frozen=True)
class _Piece:
    """A vector of consecutive elements of a row.

    Attributes:
        start: index of the first element.
        known: number of lanes at the start that an earlier vector has already read.
        chain: number of the partial result with which a reduction combines the vector.
    """

    start: Expression
    known: int
    chain: int


class _Writer:
    """Builder of a function that computes rows one after another.

    Args:
        function: the function to rewrite.
        nests: its loop nests over rows, in order.
        rows: sizes of the rows.
        lanes: largest number of elements per vector. It is halved until a vector fits into a row.
    """

    def __init__(
        self, function: PrimFunc, nests: Sequence[RowNest], rows: Rows, lanes: int
    ) -> None:
        self._given, self._nests, self._rows = list(function.params), nests, rows
        while lanes > rows.run:
            lanes //= 2
        self._lanes, self._chains = lanes, min(CHAINS, rows.run // lanes)
        self._row: Place = ()
        self._row_buffers: dict[
            TirBuffer, TirBuffer
        ] = {}  # buffer of one row, by the buffer of all rows
        self._flat: dict[TirBuffer, TirBuffer] = {}  # parameters with one axis

    def build_function(self, worth_threads: int) -> PrimFunc:
        """Build the function for all rows.

        Args:
            worth_threads: number of elements from which the rows are divided between threads.

        Returns:
            A function with the parameters of the original function.
        """
        count = math.prod(self._rows.outer)
        threads = count > 1 and count * math.prod(self._rows.inner) >= worth_threads
        shares = min(count, SHARES) if threads else 1
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("main")
            for parameter in self._given:
                T.arg(str(parameter.name), parameter)
            if threads:
                with T.parallel(_index(0), _index(shares)) as share:
                    begin, end = (tirx.indexdiv(s * count, shares) for s in (share, share + 1))
                    self._write_rows(begin, end)
            else:
                self._write_rows(_index(0), _index(count))
        return builder.get()

    def written_for_task(self, rows: int, whole: tuple[int, int], read: int) -> PrimFunc:
        """Build the function that computes the rows of one task.

        The function has the original parameters, with their full shapes, followed by an int64
        parameter `first`. It computes the rows from `first` to `first + rows - 1`.

        Args:
            rows: number of rows per task.
            whole: total number of rows, and number of elements per row.
            read: index of a parameter that each row may read only at its own row and element.

        Raises:
            NoRows: the rows have other sizes or joined axes, or the parameter is read at another
                place.
        """
        sizes = math.prod(self._rows.outer), math.prod(self._rows.inner)
        if sizes != whole or self._rows.joined > 1:
            raise NoRows
        for nest in self._nests:
            for load in nest.loads:
                if load.source.same_as(self._given[read]):
                    _check_place(load.indices, nest, True)
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("main")
            for parameter in self._given:
                T.arg(str(parameter.name), parameter)
            first = T.arg("first", tirx.Var("first", "int64"))
            self._write_rows(first, first + rows)
        return builder.get()

    def _write_rows(self, begin: Expression, end: Expression) -> None:
        self._allocate()
        with T.serial(begin, end) as row:
            self._row = _split_index(row, self._rows.outer)
            for step in _steps(self._nests):
                if step[0].inner:
                    self._write_along(step)
                else:
                    for store in step[0].stores:
                        self._store(step[0], store, self._value(step[0], store))

    def _allocate(self) -> None:
        """Allocate buffers for the intermediate results of one row.

        If several axes of a row are iterated by one loop, the parameters are also declared as
        one-dimensional buffers.
        """
        for nest in self._nests:
            shape = math.prod(self._rows.inner) if nest.maps else 1
            scope = "global" if nest.maps else "local"
            for store in nest.stores:
                if not any(map(store.buffer.same_as, self._given)):
                    row_buffer = T.alloc_buffer((shape,), store.buffer.dtype, scope=scope)
                    self._row_buffers[store.buffer] = row_buffer
        for parameter in self._given if self._rows.joined > 1 else ():
            size = math.prod(map(int, parameter.shape))
            self._flat[parameter] = T.decl_buffer(
                (_index(size),), parameter.dtype, data=parameter.data
            )

    def _write_along(self, nests: Sequence[RowNest]) -> None:
        """Emit one loop over a row that computes several nests in its body.

        Args:
            nests: the nests. The loop is followed by statements that store the result of each
                reduction among them.
        """
        # Only reductions use several chains: elementwise work hides the latency, and needs the
        # registers.
        chains = self._chains if all(nest.reduces for nest in nests) else 1
        partial = {
            store: [self._begin(store) for _ in range(chains)]
            for nest in nests for store in nest.stores if nest.reduces
        }  # fmt: skip
        with ExitStack() as loops:
            sizes = self._rows.inner[: -self._rows.joined]
            places = [loops.enter_context(T.serial(_index(0), _index(size))) for size in sizes]
            for piece in self._pieces(chains):
                for nest in nests:
                    self._write_piece(nest, places, piece, partial)
        for nest in nests:
            for store in nest.stores:
                if nest.reduces:
                    self._store(nest, store, self._combine_partial(store, partial[store]))

    def _pieces(self, chains: int) -> Iterator[_Piece]:
        """Yield the vectors of a row, emitting the loop over them.

        Code that the caller emits before it asks for the next vector becomes part of the loop body.

        Args:
            chains: number of partial results per reduction.
        """
        run, lanes = self._rows.run, self._lanes
        turns = run // (lanes * chains)
        with T.serial(_index(0), _index(turns)) as turn:
            for chain in range(chains):
                yield _Piece((turn * chains + chain) * lanes, 0, chain)
        for vector in range(turns * chains, run // lanes):
            yield _Piece(_index(vector * lanes), 0, vector % chains)
        if run % lanes:
            yield _Piece(_index(run - lanes), lanes - run % lanes, chains - 1)

    def _write_piece(
        self,
        nest: RowNest,
        places: Place,
        piece: _Piece,
        partial: Mapping[RowStore, Sequence[TirBuffer]],
    ) -> None:
        """Emit the statements with which a nest computes one vector of a row.

        Args:
            nest: the nest.
            places: indices along the axes of the row that are not joined.
            piece: the vector.
            partial: for each reduction of the nest, the buffers of its partial results, one per
                chain.
        """
        for store in nest.stores:
            with T.vectorized(_index(0), _index(self._lanes)) as lane:
                at = (*places, piece.start + lane)
                value = self._value(nest, store, at)
                if nest.maps:
                    self._store(nest, store, value, at)
                    continue
                if piece.known:
                    value = tirx.Select(lane >= piece.known, value, store.initial)
                result = partial[store][piece.chain]
                T.buffer_store(result, store.combine(result[lane], value), [lane])

    def _begin(self, store: RowStore) -> TirBuffer:
        """Allocate a vector for a reduction's partial result, filled with the initial value.

        Args:
            store: the reduction's assignment.

        Returns:
            The buffer, of shape (lanes,).
        """
        result = T.alloc_buffer((self._lanes,), store.buffer.dtype, scope="local")
        with T.vectorized(_index(0), _index(self._lanes)) as lane:
            T.buffer_store(result, store.initial, [lane])
        return result

    def _combine_partial(self, store: RowStore, partial: Sequence[TirBuffer]) -> Expression:
        """Emit the statements that combine a reduction's partial results into one number.

        Args:
            store: the reduction's assignment, which defines how two numbers are combined.
            partial: buffers of the partial results, each of shape (lanes,).

        Returns:
            The expression of the number.
        """
        first = partial[0]
        for other in partial[1:]:
            with T.vectorized(_index(0), _index(self._lanes)) as lane:
                T.buffer_store(first, store.combine(first[lane], other[lane]), [lane])
        half = self._lanes // 2
        while half:
            with T.vectorized(_index(0), _index(half)) as lane:
                T.buffer_store(first, store.combine(first[lane], first[lane + half]), [lane])
            half //= 2
        return first[_index(0)]

    def _value(self, nest: RowNest, store: RowStore, at: Place = ()) -> Expression:
        """Return the expression of the value that a nest assigns at a position along the row.

        Args:
            nest: the nest.
            store: one of its assignments.
            at: indices of the position along the row. The last index covers all axes that are
                contiguous in memory.
        """
        known = self._loop_values(nest, at)

        def placed(load: BufferLoad) -> Expression:
            return tirx.BufferLoad(*self._storage_place(load.source, load.indices, at))

        variables = (tirx.Var, lambda var: known.get(var, var))
        return tvm_ffi.structural_map(store.value, [variables, (TensorLoad, placed)])

    def _store(self, nest: RowNest, store: RowStore, value: Expression, at: Place = ()) -> None:
        known = self._loop_values(nest, at)
        indices = [_substitute(index, known) for index in store.indices]
        buffer, place = self._storage_place(store.buffer, indices, at)
        T.buffer_store(buffer, value, place)

    def _loop_values(self, nest: RowNest, at: Place) -> dict[LoopVar, Expression]:
        """Return the values that a nest's loop variables have at a position along the row.

        If several axes are iterated by one loop, the last of them gets the whole index and the
        others get 0.

        Args:
            nest: the nest.
            at: indices of the position along the row.

        Returns:
            Value of each loop variable.
        """
        if not at:
            return dict(zip(nest.outer, self._row, strict=True))
        *places, run = at
        along = [*places, *[_index(0)] * (self._rows.joined - 1), run]
        return dict(zip([*nest.outer, *nest.inner], [*self._row, *along], strict=True))

    def _storage_place(
        self, buffer: TirBuffer, indices: Place, at: Place
    ) -> tuple[TirBuffer, Place]:
        """Return the buffer and the indices at which the new function stores an element.

        Args:
            buffer: buffer of all rows in the original function.
            indices: indices of the element in this buffer.
            at: indices of the element along the row.
        """
        row_buffer = self._row_buffers.get(buffer)
        if row_buffer is not None:
            sizes = [*self._rows.inner[: -self._rows.joined], self._rows.run]
            return row_buffer, [_linear(at, sizes) if int(row_buffer.shape[0]) > 1 else _index(0)]
        if buffer in self._flat:
            return self._flat[buffer], [_linear(indices, list(map(int, buffer.shape)))]
        return buffer, indices


def _linear(indices: Place, sizes: Sequence[int]) -> Expression:
    """Return the linear index of an element in a buffer.

    Args:
        indices: index along each axis.
        sizes: size of each axis.
    """
    place = _index(0)
    for index, size in zip(indices, sizes, strict=True):
        place = place * size + index
    return place


def _split_index(index: Expression, sizes: Sequence[int]) -> list[Expression]:
    """Convert a linear index to one index per axis. The last axis varies fastest.

    Args:
        index: the linear index.
        sizes: size of each axis.
    """
    indices = []
    for size in reversed(sizes):
        indices.append(tirx.indexmod(index, size))
        index = tirx.indexdiv(index, size)
    return indices[::-1]


def _steps(nests: Sequence[RowNest]) -> list[list[RowNest]]:
    """Group loop nests into steps, each of which becomes one loop over a row.

    A nest that reads the result of a reduction over the row comes in a later step than the
    reduction. A nest that computes one number per row, without a loop over the row, forms a step of
    its own.

    Args:
        nests: the loop nests, in order.
    """
    steps: list[list[RowNest]] = []
    for nest in nests:
        read = [load.source for load in nest.loads]
        last = steps[-1] if steps else []
        reduced = [s.buffer for earlier in last if earlier.reduces for s in earlier.stores]
        depends = any(one.same_as(other) for one in read for other in reduced)
        if last and last[0].inner and nest.inner and not depends:
            last.append(nest)
        else:
            steps.append([nest])
    return steps
