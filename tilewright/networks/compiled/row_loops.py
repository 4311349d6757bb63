"""Writes the loops of functions that reduce rows, such as softmax, layer normalisation and means.

A function has nests of loops that reduce a row to a number, that map a row, and that map such
numbers. All that is done to a row is done while it is in the cache:

    parallel shares of the rows
      rows
        a row in vectors                    every nest that waits for no number of the row
        partial results                     reduced to one number
        and so on

Any length is read in whole vectors, narrower ones where a row is shorter. The last of them overlaps
the one before: a map computes some values twice, a reduction leaves out the lanes that it had.

The numbers of chains and shares were chosen on the Xeon of docs/evidence/cpu.md. `python -m
benchmarks.cpu.networks --networks convnext_t,bert_6_128,mixer_s16` measures networks with many such
functions.
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
"""Partial results of a reduction, in vectors, since each waits for the one before."""
SHARES = 64
"""Of the rows, at most: enough that no thread waits long for the others."""
REDUCED = 2
"""TVM's number of an axis that is reduced; 0 is an axis of the result."""
Node = TypeVar("Node")
COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


class NoRows(Exception):
    """A function is no chain of nests over the same rows."""


@dataclass(frozen=True, eq=False)
class RowStore:
    """`buffer[indices] = value`; in a reduction the combination with what is there, which begins as
    `initial`. `combiner` makes the expression of two numbers combined."""

    buffer: TirBuffer
    indices: Place
    value: Expression
    combiner: Combiner | None = None
    initial: Expression | None = None

    def combine(self, first: Expression, second: Expression) -> Expression:
        """Return the combination of two numbers of a reduction."""
        assert self.combiner is not None, "only a reduction combines"
        return self.combiner(first, second)


@dataclass(frozen=True, eq=False)
class RowNest:
    """A nest of loops: the variables of rows, those along a row (none where it maps numbers of
    rows), and what it stores."""

    outer: Sequence[LoopVar]
    inner: Sequence[LoopVar]
    stores: Sequence[RowStore]

    @property
    def reduces(self) -> bool:
        """A row to a number."""
        return self.stores[0].combiner is not None

    @property
    def maps(self) -> bool:
        """A row to a row."""
        return bool(self.inner) and not self.reduces

    @property
    def loads(self) -> list[BufferLoad]:
        """What it reads."""
        return [load for store in self.stores for load in _found(store.value, TensorLoad)]


@dataclass(frozen=True)
class Rows:
    """The sizes of rows and of what is along a row. The last `joined` axes of a row lie one behind
    the other wherever they are read."""

    outer: Sequence[int]
    inner: Sequence[int]
    joined: int

    @property
    def run(self) -> int:
        """Numbers that lie one behind the other."""
        return math.prod(self.inner[-self.joined :])


def by_rows(
    function: PrimFunc, blocks: Sequence[SBlock], lanes: int, worth_threads: int
) -> PrimFunc:
    """The function of these blocks as loops over rows, in vectors of `lanes` numbers, and with
    threads where it has `worth_threads` steps. Raises `NoRows`."""
    return _writer(function, blocks, lanes).written(worth_threads)


def by_task(
    function: PrimFunc,
    blocks: Sequence[SBlock],
    lanes: int,
    rows: int,
    whole: tuple[int, int],
    read: int,
) -> PrimFunc:
    """The same for some rows of the `whole` (rows, numbers of a row), the last parameter first. Of
    the parameter number `read`, a row reads itself alone. Raises `NoRows`."""
    return _writer(function, blocks, lanes).written_for_task(rows, whole, read)


def _writer(function: PrimFunc, blocks: Sequence[SBlock], lanes: int) -> _Writer:
    if not all(isinstance(parameter.ty, tirx.BufferType) for parameter in function.params):
        raise NoRows
    outer, inner = _row_sizes(blocks)
    nests = [_nest(block, outer, inner) for block in blocks]
    _check_places(nests)
    rows = Rows(outer, inner, _joined(nests, inner))
    return _Writer(function, nests, rows, lanes)


def _row_sizes(blocks: Sequence[SBlock]) -> tuple[list[int], list[int]]:
    """The sizes of rows and along a row, without axes of one place."""
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
    initial = {each.buffer: each.value for each in _statements(block.init)}
    stores = []
    for each in _statements(block.body):
        if isinstance(each, tirx.Bind):
            known[each.var] = _with(each.value, known)
        elif isinstance(each, tirx.BufferStore):
            indices = [_with(index, known) for index in each.indices]
            store = RowStore(each.buffer, indices, _with(each.value, known))
            stores.append(_reduction(store, initial) if any(reduces) else store)
        else:
            raise NoRows
    variables = [axis.var for axis in axes]
    made = RowNest(variables[: len(outer)], variables[len(outer) :], stores)
    if any(load.source.same_as(store.buffer) for load in made.loads for store in stores):
        raise NoRows
    return made


def _statements(body: Statement | None) -> Sequence[Statement]:
    if body is None:
        return []
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _reduction(store: RowStore, initial: Mapping[TirBuffer, Expression]) -> RowStore:
    """Of a value that combines what is there with another one."""
    value = store.value
    combiner: Combiner | None = None
    if (chosen := chosen_with_nan(value)) is not None:
        first, second, choose = chosen
        combiner = partial(keep_nan, choose=choose)
    elif isinstance(value, COMBINERS):
        first, second, combiner = value.a, value.b, type(value)
    if combiner is None or store.buffer not in initial:
        raise NoRows
    for itself, other in ((first, second), (second, first)):
        if isinstance(itself, TensorLoad) and itself.source.same_as(store.buffer):
            begin = initial[store.buffer]
            return RowStore(store.buffer, store.indices, other, combiner, begin)
    raise NoRows


def _check_places(nests: Sequence[RowNest]) -> None:
    """Raise `NoRows` where a row needs what is made of another row, or of another place in it."""
    maps: dict[TirBuffer, bool] = {}
    for nest in nests:
        for load in nest.loads:
            if load.source in maps:
                _check_place(load.indices, nest, maps[load.source])
        for store in nest.stores:
            maps[store.buffer] = nest.maps
            _check_place(store.indices, nest, nest.maps)


def _check_place(indices: Place, nest: RowNest, along: bool) -> None:
    wanted = [*nest.outer, *nest.inner] if along else nest.outer
    found = [index for index in indices if not isinstance(index, tirx.IntImm)]
    if len(found) != len(wanted) or not all(map(_same, found, wanted)):
        raise NoRows


def _same(one: LoopVar, other: LoopVar) -> bool:
    return bool(one.same_as(other))


def _joined(nests: Sequence[RowNest], inner: Sequence[int]) -> int:
    """How many axes of a row lie one behind the other. Raises `NoRows` where not even the
    last one does."""
    for joined in range(len(inner), 0, -1):
        if all(_lie_together(nest, joined) for nest in nests if nest.inner):
            return joined
    raise NoRows


def _lie_together(nest: RowNest, joined: int) -> bool:
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
    """How often an expression has a variable."""
    return sum(map(var.same_as, _found(expression, tirx.Var)))


def _found(expression: Expression, kind: type[Node]) -> list[Node]:
    """The parts of an expression that are of a kind."""
    found: list[Node] = []
    tvm_ffi.structural_walk(expression, (kind, found.append))
    return found


def _with(expression: Expression, known: Mapping[LoopVar, Expression]) -> Expression:
    """An expression of other variables."""
    return tvm_ffi.structural_map(expression, (tirx.Var, lambda var: known.get(var, var)))


def _index(value: int) -> Expression:
    return tirx.const(value, "int64")


@dataclass(frozen=True)
class _Piece:
    """A vector of a row: it begins at `start`, and its first `known` lanes were read before. It is
    combined with the partial result number `chain`."""

    start: Expression
    known: int
    chain: int


class _Writer:
    """The function while it is being written."""

    def __init__(
        self, function: PrimFunc, nests: Sequence[RowNest], rows: Rows, lanes: int
    ) -> None:
        self._given, self._nests, self._rows = list(function.params), nests, rows
        while lanes > rows.run:
            lanes //= 2
        self._lanes, self._chains = lanes, min(CHAINS, rows.run // lanes)
        self._row: Place = ()
        self._own: dict[TirBuffer, TirBuffer] = {}  # buffers of one row, by those of all rows
        self._flat: dict[TirBuffer, TirBuffer] = {}  # parameters with one axis

    def written(self, worth_threads: int) -> PrimFunc:
        """The function."""
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
        """The function of some rows of the `whole`, of which each reads its own of a parameter."""
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
            self._row = _places(row, self._rows.outer)
            for step in _steps(self._nests):
                if step[0].inner:
                    self._write_along(step)
                else:
                    for store in step[0].stores:
                        self._store(step[0], store, self._value(step[0], store))

    def _allocate(self) -> None:
        """Buffers of one row, and views of the parameters."""
        for nest in self._nests:
            shape = math.prod(self._rows.inner) if nest.maps else 1
            scope = "global" if nest.maps else "local"
            for store in nest.stores:
                if not any(map(store.buffer.same_as, self._given)):
                    own = T.alloc_buffer((shape,), store.buffer.dtype, scope=scope)
                    self._own[store.buffer] = own
        for given in self._given if self._rows.joined > 1 else ():
            size = math.prod(map(int, given.shape))
            self._flat[given] = T.decl_buffer((_index(size),), given.dtype, data=given.data)

    def _write_along(self, nests: Sequence[RowNest]) -> None:
        """One pass over a row."""
        # What maps a row has work enough between two sums, and no registers for several.
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
                    self._store(nest, store, self._whole(store, partial[store]))

    def _pieces(self, chains: int) -> Iterator[_Piece]:
        """The vectors of a run; what is written before the next one is taken is in its loop."""
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
        """What a nest does to a piece of a row."""
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
        """A partial result of nothing."""
        result = T.alloc_buffer((self._lanes,), store.buffer.dtype, scope="local")
        with T.vectorized(_index(0), _index(self._lanes)) as lane:
            T.buffer_store(result, store.initial, [lane])
        return result

    def _whole(self, store: RowStore, partial: Sequence[TirBuffer]) -> Expression:
        """The number that partial results make together."""
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
        """What a nest stores, at a place along the row: indices of its axes, the last of those that
        are joined."""
        known = self._known(nest, at)

        def placed(load: BufferLoad) -> Expression:
            return tirx.BufferLoad(*self._placed(load.source, load.indices, at))

        variables = (tirx.Var, lambda var: known.get(var, var))
        return tvm_ffi.structural_map(store.value, [variables, (TensorLoad, placed)])

    def _store(self, nest: RowNest, store: RowStore, value: Expression, at: Place = ()) -> None:
        known = self._known(nest, at)
        indices = [_with(index, known) for index in store.indices]
        buffer, place = self._placed(store.buffer, indices, at)
        T.buffer_store(buffer, value, place)

    def _known(self, nest: RowNest, at: Place) -> dict[LoopVar, Expression]:
        """Indices by variables. Of axes that are joined, the last has it all."""
        if not at:
            return dict(zip(nest.outer, self._row, strict=True))
        *places, run = at
        along = [*places, *[_index(0)] * (self._rows.joined - 1), run]
        return dict(zip([*nest.outer, *nest.inner], [*self._row, *along], strict=True))

    def _placed(self, buffer: TirBuffer, indices: Place, at: Place) -> tuple[TirBuffer, Place]:
        """Where a number of a buffer of all rows is: the buffer and its indices there."""
        own = self._own.get(buffer)
        if own is not None:
            sizes = [*self._rows.inner[: -self._rows.joined], self._rows.run]
            return own, [_linear(at, sizes) if int(own.shape[0]) > 1 else _index(0)]
        if buffer in self._flat:
            return self._flat[buffer], [_linear(indices, list(map(int, buffer.shape)))]
        return buffer, indices


def _linear(indices: Place, sizes: Sequence[int]) -> Expression:
    """The place of a number in a buffer of such sizes."""
    place = _index(0)
    for index, size in zip(indices, sizes, strict=True):
        place = place * size + index
    return place


def _places(index: Expression, sizes: Sequence[int]) -> list[Expression]:
    """The indices that one stands for, the last fastest."""
    found = []
    for size in reversed(sizes):
        found.append(tirx.indexmod(index, size))
        index = tirx.indexdiv(index, size)
    return found[::-1]


def _steps(nests: Sequence[RowNest]) -> list[list[RowNest]]:
    """Nests that are computed in one pass: none needs what a row is reduced to in it."""
    steps: list[list[RowNest]] = []
    for nest in nests:
        read = [load.source for load in nest.loads]
        last = steps[-1] if steps else []
        made = [s.buffer for each in last if each.reduces for s in each.stores]
        apart = any(one.same_as(other) for one in read for other in made)
        if last and last[0].inner and nest.inner and not apart:
            last.append(nest)
        else:
            steps.append([nest])
    return steps
