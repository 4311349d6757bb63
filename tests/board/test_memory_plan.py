"""Tests a board program's memory plan: live tensors never overlap, and few bytes are used."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.targets.layer import Value
from tilewright.targets.vta.board import layouts
from tilewright.targets.vta.board.layouts import Packing, pack, unpack
from tilewright.targets.vta.board.memory_plan import Filled, arenas_of
from tilewright.targets.vta.board.program import MAX_BUFFER_BYTES
from tilewright.targets.vta.board.segments import BoardNetwork, BoardTensor
from tilewright.targets.vta.spec import VtaSpec

PYNQ = VtaSpec.load("vta-pynq").machine
PAIRED = VtaSpec.from_mapping({"LOG_BATCH": 1, "LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 14,
                               "LOG_WGT_BUFF_SIZE": 15,
                               "LOG_ACC_BUFF_SIZE": 16}).machine  # fmt: skip


def tensor(name: str, elements: int, first: int, last: int, weights: bool = False) -> BoardTensor:
    packing = Packing("weights" if weights else "image", 1, elements, 1, 1, PYNQ.block_in)
    return BoardTensor(Value(name, (1, elements)), packing, None, first, last)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 9), st.integers(0, 4), st.booleans()),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_tensors_in_use_share_no_byte(rows: list[tuple[int, int, int, bool]]) -> None:
    tensors = [
        tensor(str(k), size, first, first + more, weights)
        for k, (size, first, more, weights) in enumerate(rows)
    ]
    arenas = arenas_of(BoardNetwork([], [], tensors), PYNQ, {})
    spans = []
    for item in tensors:
        arena, at = arenas.places[id(item)]
        size = item.packing.bytes(PYNQ)
        assert at % item.packing.element_bytes(PYNQ) == 0
        assert at + size <= arenas.sizes[arena] <= MAX_BUFFER_BYTES
        spans.append((item, arena, at, at + size))
    for (one, a, begin, end), (other, b, start, stop) in combinations(spans, 2):
        together = one.first <= other.last and other.first <= one.last
        assert not together or a != b or end <= start or stop <= begin
    at_once = max(
        sum(t.packing.bytes(PYNQ) for t in tensors if t.first <= step <= t.last)
        for step in range(15)
    )
    assert at_once <= sum(arenas.sizes) <= sum(t.packing.bytes(PYNQ) + 256 for t in tensors)


def test_a_chain_takes_the_memory_of_its_largest_pair() -> None:
    sizes = (100, 300, 200, 300, 50)
    chain = [tensor(str(k), size, k, k + 1) for k, size in enumerate(sizes)]
    arenas = arenas_of(BoardNetwork([], [], chain), PYNQ, {})
    assert arenas.sizes == [500 * PYNQ.inp_bytes]


def test_what_does_not_fit_one_buffer_goes_to_the_next() -> None:
    half = MAX_BUFFER_BYTES // PYNQ.inp_bytes // 2 + 1
    arenas = arenas_of(
        BoardNetwork([], [], [tensor(str(k), half, 0, 1) for k in range(3)]), PYNQ, {}
    )
    assert arenas.sizes == [half * PYNQ.inp_bytes] * 3


def test_constants_fill_buffers_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.targets.vta.board.memory_plan.MAX_BUFFER_BYTES", 1024)
    filled = Filled("constants")
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 256, size, np.uint8) for size in (256, 64, 2560, 768)]
    placed = [filled.store(item, 64 if len(item) == 64 else 256) for item in (*data, data[0])]
    assert placed[0] == placed[-1]
    content, buffers = filled.content(), filled.buffers()
    assert max(buffer.bytes for buffer in buffers) <= 1024
    for array, pieces in zip(data, placed, strict=False):
        parts = []
        for piece in pieces:
            at = buffers[piece.buffer].offset + piece.offset
            parts.append(content[at : at + piece.last - piece.first])
            assert piece.offset % (64 if len(array) == 64 else 256) == 0
        assert np.array_equal(np.concatenate(parts), array)


SHAPES = {
    "image": ((1, 20, 5, 7), lambda m: layouts.Packing("image", 1, -(-20 // m.block_in), 5, 7,
                                                     m.block_in)),
    "batch": ((3, 20, 5, 7), lambda m: layouts.Packing("image", -(-3 // m.batch),
                                                     -(-20 // m.block_in), 5, 7, m.block_in)),
    "column": ((1, 13, 20), lambda m: layouts.Packing("column", 1, -(-20 // m.block_in),
                                                    -(-13 // m.batch), 1, m.block_in)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "machine"), product(SHAPES, [PYNQ, PAIRED]))
def test_what_is_packed_is_unpacked(name: str, machine: object) -> None:
    shape, packing_of = SHAPES[name]
    m = PYNQ if machine is PYNQ else PAIRED
    packing = packing_of(m)
    values = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    packed = pack(packing, m, values)
    assert packed.nbytes == packing.bytes(m)
    assert np.array_equal(unpack(packing, m, packed, shape), values)
    assert np.count_nonzero(packed) == np.count_nonzero(values)
