"""Leaves out what a scheduled convolution would multiply by zeros of its padding.

A kernel whose taps are far apart reads little but padding near the border. With a dilation of 18,
on 32 × 32 pixels, that is three fifths of all products. A register tile leaves out a tap that
stands wholly in the padding.
"""

from __future__ import annotations

from typing import Any

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
s_tir = lazy_module("tvm.s_tir")
tvm_ffi = lazy_module("tvm_ffi")

REDUCED = 4
"""Axes of the sums: input channels, kernel rows, kernel columns, channels of a block."""


def skips(w: Workload) -> bool:
    """Whether taps may stand wholly in the padding."""
    return max(w.dilation_h, w.dilation_w) > 1 and max(w.pad_top, w.pad_left) > 1


def skipping(function: Any, w: Workload, tile: tuple[int, int]) -> Any:
    """The function of `targets.cpu.kernels.direct`, whose register tiles are of `tile` (rows,
    columns)."""

    def loop(found: Any) -> Any:
        if str(found.loop_var.name) != "kw":
            return found
        place = _place_of_tile(found)
        if place is None:
            return found
        y, x, kh, kw = place
        row = y * w.stride_h + kh * w.dilation_h - w.pad_top
        column = x * w.stride_w + kw * w.dilation_w - w.pad_left
        inside = tirx.all(
            row + (tile[0] - 1) * w.stride_h >= 0, row < w.height,
            column + (tile[1] - 1) * w.stride_w >= 0, column < w.width,
        )  # fmt: skip
        return tirx.For(
            found.loop_var, found.min, found.extent, found.kind,
            tirx.IfThenElse(inside, found.body, None), found.thread_binding, found.annotations,
        )  # fmt: skip

    body = tvm_ffi.structural_map(function.body, (tirx.For, loop))
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(function.attrs)


def _place_of_tile(loop: Any) -> tuple[Any, Any, Any, Any] | None:
    """Of the products within a loop over kernel columns: the first row and column of the tile, the
    row and column of the kernel; None for a loop without products."""
    inner, node = list[Any](), loop.body
    while isinstance(node, tirx.For):
        inner.append(node.loop_var)
        node = node.body
    if not isinstance(node, s_tir.SBlockRealize) or str(node.block.name_hint) != "part_update":
        return None

    def first(found: Any) -> Any:
        return tirx.const(0, "int32") if any(map(found.same_as, inner)) else found

    values = list(node.iter_values)
    y, x, _ = values[-REDUCED - 3 : -REDUCED]
    _, kh, kw, _ = values[-REDUCED:]
    y, x = (tvm_ffi.structural_map(each, (tirx.Var, first)) for each in (y, x))
    return y, x, kh, kw
