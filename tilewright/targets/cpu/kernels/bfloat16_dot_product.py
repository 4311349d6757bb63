"""Adds products of two pairs of bfloat16 to each lane of a vector of float32, by `vdpbf16ps`.

TVM writes code for LLVM without LLVM's type of bfloat16, which the instruction's operands have. So
one function is given to LLVM in its own language. It takes vectors of int32, and LLVM puts its body
in place of each call.

The instruction takes numbers below the smallest normal one for zero, and rounds results of that
size to it. See Intel's manual: VDPBF16PS.
"""

from __future__ import annotations

from typing import Any

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu.kernels.int8_dot_product import lanes_at

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

LANES = 16
SUMS = 24
"""Vector registers for sums, of 32: the others hold a word of each column, and one of the data."""
_NAME = "tilewright_add_bfloat16_products"
_FUNCTION = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define <16 x float> @{_NAME}(<16 x float> %sums, <16 x i32> %data, <16 x i32> %weights) {{
  %some = bitcast <16 x i32> %data to <32 x bfloat>
  %others = bitcast <16 x i32> %weights to <32 x bfloat>
  %found = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %sums, <32 x bfloat> %some, <32 x bfloat> %others)
  ret <16 x float> %found
}}
"""


def registers() -> Any:
    """A buffer of `SUMS` vectors, which `add_words` keeps in registers."""
    return T.alloc_buffer((SUMS * LANES,), "float32", scope="local")


def add_words(
    held: Any, sums: Any, first: int, data: tuple[Any, list[Any]], weights: tuple[Any, list[Any]],
    words: int,
) -> None:  # fmt: skip
    """Adds the products of so many words to rows of `sums`, a buffer (rows, 16 × tiles), from row
    `first` on. `data` is a buffer of uint16 and where each row begins, `weights` one of int32 and
    where each tile of 16 columns does, its words behind one another. `held` is of `registers`:
    rows × tiles ≤ `SUMS`."""
    (values, starts), (packed, tiles) = data, weights
    vectors = [(r, j) for r in range(len(starts)) for j in range(len(tiles))]
    at = {each: LANES * number for number, each in enumerate(vectors)}
    for r, j in vectors:
        value = sums.vload([first + r, LANES * j], f"float32x{LANES}")
        T.buffer_store(held, value, [lanes_at(at[r, j], LANES)])
    with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", _FUNCTION), T.serial(0, words) as k:
        columns = [packed.vload([tile + k * LANES], f"int32x{LANES}") for tile in tiles]
        for r, start in enumerate(starts):
            word = tirx.reinterpret("int32", values.vload([start + 2 * k], "uint16x2"))
            for j, column in enumerate(columns):
                before = held.vload([at[r, j]], f"float32x{LANES}")
                spread = tirx.Broadcast(word, LANES)
                found = tirx.call_extern(f"float32x{LANES}", _NAME, before, spread, column)
                T.buffer_store(held, found, [lanes_at(at[r, j], LANES)])
    for r, j in vectors:
        value = held.vload([at[r, j]], f"float32x{LANES}")
        T.buffer_store(sums, value, [first + r, lanes_at(LANES * j, LANES)])
