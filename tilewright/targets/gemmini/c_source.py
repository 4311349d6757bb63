"""Writes programs as C: tables of raw commands, with addresses as offsets from pointers.

The C file needs nothing but the macro `GEMMINI_COMMAND(funct, rs1, rs2)`, whose function code is a
literal, and `GEMMINI_FENCE()`. Without them it takes those of `gemmini.h`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.c_identifiers import CIdentifiers, comment, words_of
from tilewright.targets.gemmini.isa import (
    FENCE,
    LOOP_ADDRESSES_AB,
    LOOP_ADDRESSES_DC,
    MVIN,
    MVIN2,
    MVIN3,
    MVOUT,
)
from tilewright.targets.gemmini.lowering.geometry import ROLES, BlockGeometry
from tilewright.targets.gemmini.lowering.words import CommandTable
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.workload import Workload

_MOVES = (MVIN, MVIN2, MVIN3, MVOUT)
_PAIRS = (LOOP_ADDRESSES_AB, LOOP_ADDRESSES_DC)
_TYPES = {"bias": "int32_t"}

_LAYERS = """\
/* Written by Tilewright for {name}: one function a layer. Compile it with gemmini-rocc-tests.

   Activations are rows of int8 channels, a row a pixel (NHWC). Weights are [group][kernel row]
   [kernel column][input channel][output channel], input channels in whole blocks of 16. See the
   comment at each function for the bytes from a row to the next. Pointers are multiples of 64. */
"""
_HEAD = """\
#include <stddef.h>
#include <stdint.h>

#ifndef GEMMINI_COMMAND
#include "include/gemmini.h"
#define GEMMINI_COMMAND(funct, rs1, rs2) ROCC_INSTRUCTION_RS1_RS2(XCUSTOM_ACC, rs1, rs2, funct)
#define GEMMINI_FENCE() gemmini_fence()
#endif

/* rs1 and rs2 are offsets from the pointers that base1 and base2 number; 0: numbers as they are. */
struct gemmini_word { uint64_t rs1, rs2; uint8_t funct, base1, base2; };

static void gemmini_run(const struct gemmini_word *words, size_t count, const uint64_t *base)
{
  for (size_t n = 0; n < count; n++) {
    uint64_t rs1 = words[n].rs1 + base[words[n].base1], rs2 = words[n].rs2 + base[words[n].base2];
    switch (words[n].funct) {
CASES
    }
  }
}
"""
_FUNCTS = range(15)


def c_file(spec: GemminiSpec, functions: Sequence[str]) -> str:
    """A whole file of functions."""
    machine = CIdentifiers("machine").identify(spec.name)
    return "\n".join([_LAYERS.format(name=machine) + c_runner(), *functions])


def c_runner() -> str:
    """What runs a table of commands."""
    cases = [f"    case {n}: GEMMINI_COMMAND({n}, rs1, rs2); break;" for n in _FUNCTS]
    return _HEAD.replace("CASES", "\n".join([*cases, f"    case {FENCE}: GEMMINI_FENCE(); break;"]))


def c_function(symbol: str, workload: Workload, g: BlockGeometry, program: CommandTable) -> str:
    """Return a function `symbol`, an identifier, that runs a program (n, 3) on the tensors that its
    pointers name."""
    roles = [role for role in ROLES if role in g.addresses]
    bases = np.array([g.addresses[role] for role in roles])
    ends = bases + np.array([g.sizes()[role] for role in roles])
    arguments = ", ".join(
        f"{'' if role == 'output' else 'const '}{_TYPES.get(role, 'int8_t')} *{role}"
        for role in roles
    )
    strides = {
        "data": g.data_stride, "weight": g.weight_stride, "residual": g.residual_stride,
        "output": g.output_stride,
    }  # fmt: skip
    said = ", ".join(f"{role} {size}" for role, size in strides.items() if role in roles)
    return (
        f"/* {comment(str(workload))}\n   {comment(workload.epilogue_text)}\n"
        f"   bytes from a row to the next: {said} */\n"
        f"{c_words(symbol, program, bases, ends)}\n"
        f"void {symbol}({arguments})\n{{\n"
        f"  const uint64_t base[] = {{0, {', '.join(f'(uintptr_t){role}' for role in roles)}}};\n"
        f"  {run_words(symbol)}\n"
        "  GEMMINI_FENCE();\n}\n"
    )


def run_words(symbol: str) -> str:
    """Return the statement that issues the commands of a function."""
    words = words_of(symbol)
    return f"gemmini_run({words}, sizeof {words} / sizeof *{words}, base);"


def c_words(
    symbol: str, program: CommandTable, bases: NDArray[np.int64], ends: NDArray[np.int64]
) -> str:
    """The table of a program (n, 3), whose addresses are offsets from tensors (m,) that begin and
    end there."""
    words = []
    for funct, *operands in program.tolist():
        addressed = (funct in _MOVES or funct in _PAIRS, funct in _PAIRS)
        split = [
            _split(word, bases, ends) if is_address else (word, 0)
            for word, is_address in zip(operands, addressed, strict=True)
        ]
        (rs1, base1), (rs2, base2) = split
        words.append(f"  {{{rs1:#x}, {rs2:#x}, {funct}, {base1}, {base2}}},\n")
    return f"static const struct gemmini_word {words_of(symbol)}[] = {{\n{''.join(words)}}};\n"


def _split(address: int, bases: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int]:
    """An address as an offset and the number of its tensor; 0 and 0 for none."""
    if address == 0:
        return 0, 0
    inside = np.flatnonzero((bases <= address) & (address < ends))
    return address - int(bases[inside[0]]), int(inside[0]) + 1
