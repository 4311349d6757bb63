"""Tests how a tile's last epilogue and last weights are split into pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewright.targets.vta.lowering.tile_instructions import epilogue_piece, last_part
from tilewright.targets.vta.spec import VtaSpec

MACHINES = {name: VtaSpec.load(name).machine for name in ("vta-pynq", "huge")}


def cut(name: str, operations: int, tail: int, cos: int, rows: int) -> list[tuple[int, int, int]]:
    """Return (total rows, first block, first row) of each piece in the order of emission."""
    pieces, c0, r0 = [], 0, 0
    while c0 < cos:
        pc, pr = epilogue_piece(MACHINES[name], operations, tail, len(pieces), cos, rows, c0, r0)
        assert pc >= 1
        assert 1 <= pr <= rows - r0
        assert pr == rows or pc == 1
        pieces.append((pc * pr, c0, r0))
        r0 += pr
        if r0 == rows:
            c0, r0 = c0 + pc, 0
    assert c0 == cos
    return pieces


@given(
    st.sampled_from(sorted(MACHINES)), st.integers(0, 5), st.sampled_from([1, 8]),
    st.integers(1, 64), st.integers(1, 56),
)  # fmt: skip
def test_pieces_cover_a_tile_once(
    name: str, operations: int, tail: int, cos: int, rows: int
) -> None:
    pieces = cut(name, operations, tail, cos, rows)
    assert sum(size for size, _, _ in pieces) == cos * rows
    if tail == 1 or operations == 0:
        assert len(pieces) == 1


def test_pieces_shrink_only_where_a_store_is_faster_than_the_epilogue() -> None:
    assert [size for size, _, _ in cut("huge", 3, 8, 4, 14)] == [28, 14, 10, 4]
    assert [size for size, _, _ in cut("vta-pynq", 3, 8, 16, 14)] == [28] * 8
    assert [size for size, _, _ in cut("huge", 1, 8, 4, 14)] == [14] * 4


@given(st.integers(1, 400), st.integers(2, 128))
def test_the_last_weights_come_in_parts_that_shrink_towards_the_end(pixels: int, more: int) -> None:
    beats = pixels + more
    sizes = [last_part(left, 0, pixels, beats) for left in range(1, 400)]
    assert min(sizes) >= 1
    assert (np.diff(sizes) >= 0).all()
    busy = last_part(400, 10**6, pixels, beats)  # much other work: smallest parts
    assert busy == min(*sizes, busy)
