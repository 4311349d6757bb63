"""C source code of Gemmini programs: a file with one function per layer, or a built network.

Each function issues a table of raw commands. The C file needs only two macros:
`GEMMINI_COMMAND(funct, rs1, rs2)`, whose function code is a literal, and `GEMMINI_FENCE()`. If the
including project does not define them, the file uses the macros of `gemmini.h`.

The tables do not contain absolute addresses. Every address is stored as an offset from a pointer,
which the generated function adds when it issues the command.

The C file of a network has one function per segment (a sequence of layers without work of the host
in between), and a header with the constants. All tensors are stored in one block of memory, which
the caller provides. The caller is also responsible for the host's work between segments. For each
segment, a comment lists the tensors that it takes and returns, and where they are stored.

Names of tensors, layers and machines come from untrusted models and artifacts. A name with a
backslash, a line break or the end of a comment could become code in the generated file. A name is
therefore always converted to an identifier first, even in comments and file names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.isa import (
    FENCE,
    LOOP_ADDRESSES_AB,
    LOOP_ADDRESSES_DC,
    MVIN,
    MVIN2,
    MVIN3,
    MVOUT,
)
from tilewright.targets.gemmini.lowering.command_encoding import CommandTable
from tilewright.targets.gemmini.lowering.geometry import (
    MEMORY_BASE,
    PAGE_BYTES,
    ROLES,
    BlockGeometry,
)
from tilewright.targets.gemmini.network_memory import HostTensor
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.workload import Workload

LONGEST = 40
"""Maximum number of characters that are taken from a name of the caller. C99 guarantees that the
first 63 characters of an identifier are significant, and a prefix, a number and a suffix are added
to the name."""
_FALLBACK = "unnamed"
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
# Characters that are replaced in a C comment, so that a name cannot end it.
_NO_COMMENT = re.compile(r"[^A-Za-z0-9_ .,:=<>|&+-]")
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|main|register|restrict|return|short|signed|sizeof|static|struct|switch|"
    "typedef|union|unsigned|void|volatile|while|asm|typeof|bool|true|false|nullptr|constexpr|"
    "thread_local|alignas|alignof|static_assert|typeof_unqual"
)
_OWN = re.compile(r"_|[0-9]|gemmini|GEMMINI|.*_t$")
"""Matches names that C or the generated file itself may define: certain beginnings, and the ending
`_t`. A name of the caller that matches gets a prefix."""
_MOVES = (MVIN, MVIN2, MVIN3, MVOUT)
_PAIRS = (LOOP_ADDRESSES_AB, LOOP_ADDRESSES_DC)
_TYPES = {"bias": "int32_t"}
_LAYERS = """\
/* Written by Tilewright for {name}: one function per layer. Compile it with gemmini-rocc-tests.

   Activations are rows of int8 channels, one row per pixel (NHWC). Weights are [group][kernel row]
   [kernel column][input channel][output channel], input channels in whole blocks of 16. See the
   comment at each function for the bytes from one row to the next. Pointers are multiples of 64. */
"""
_HEAD = """\
#include <stddef.h>
#include <stdint.h>

#ifndef GEMMINI_COMMAND
#include "include/gemmini.h"
#define GEMMINI_COMMAND(funct, rs1, rs2) ROCC_INSTRUCTION_RS1_RS2(XCUSTOM_ACC, rs1, rs2, funct)
#define GEMMINI_FENCE() gemmini_fence()
#endif

/* rs1 and rs2 are offsets from the pointers that base1 and base2 number; 0: plain numbers. */
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
# A case for each function code of the accelerator's commands.
_FUNCTS = range(15)
NUMBERS_A_LINE = 24
_NETWORK_HEAD = """\
/* Written by Tilewright for NAME: one function per segment, to be called in order. Compile it with
   gemmini-rocc-tests.

   `memory` has GEMMINI_NETWORK_BYTES bytes and begins at a multiple of PAGE. Call
   gemmini_network_load once: it writes all constants. Tensors are rows of int8 in memory. In the
   form "image", a row is a pixel (NHWC); in the form "rows", it is the last dimension. A float
   tensor is its int8 values times a step. */
#include <string.h>
"""


class CIdentifiers:
    """Converter from arbitrary names to C identifiers that are unique within one C file."""

    def __init__(self, prefix: str) -> None:
        """Create a converter without any identifiers.

        Args:
            prefix: prefix for names that are not valid identifiers, such as `1x1` or `int`.
        """
        self._prefix = prefix
        self._by_name: dict[str, str] = {}
        self._taken: set[str] = set()

    def identify(self, name: str) -> str:
        """Return the identifier of a name. The same name always gets the same identifier."""
        if name not in self._by_name:
            self._by_name[name] = self.create(name)
        return self._by_name[name]

    def create(self, name: str) -> str:
        """Return a new identifier that resembles a name.

        A number is appended if needed, so that neither the identifier nor the name of its command
        table (see `words_of`) is used twice.

        Args:
            name: any text.
        """
        plain = _NO_IDENTIFIER.sub("_", name)[:LONGEST]
        if not plain or _RESERVED.fullmatch(plain) or _OWN.match(plain):
            plain = f"{self._prefix}_{plain.strip('_') or _FALLBACK}"
        identifier, number = plain, 1
        while {identifier, words_of(identifier)} & self._taken:
            number += 1
            identifier = f"{plain}_{number}"
        self._taken.update((identifier, words_of(identifier)))
        return identifier


def words_of(identifier: str) -> str:
    """Return the name of the C table that holds the commands of a function.

    Args:
        identifier: name of the function.
    """
    return f"{identifier}_words"


def comment(text: str) -> str:
    """Replace all characters of a text that are unsafe in a C comment by underscores.

    Unsafe are characters that could end the comment, line breaks, backslashes, and the question
    marks of trigraphs. This function is meant for descriptions, such as that of a workload. Names
    are converted by `CIdentifiers` instead.
    """
    return _NO_COMMENT.sub("_", text)


def is_header_name(name: str) -> bool:
    """Return whether every C compiler accepts `#include "name"` for this file name."""
    return re.fullmatch(r"[A-Za-z0-9_.+=, -]{1,200}", name) is not None


def c_file(spec: GemminiSpec, functions: Sequence[str]) -> str:
    """Return the complete C file of several layers.

    Args:
        spec: the machine, which a comment names.
        functions: C source of the functions, one per layer.
    """
    machine = CIdentifiers("machine").identify(spec.name)
    return "\n".join([_LAYERS.format(name=machine) + c_runner(), *functions])


def c_runner() -> str:
    """Return the C code that all generated files share: macros, command type, and `gemmini_run`.

    The function `gemmini_run` issues the commands of a table.
    """
    cases = [f"    case {n}: GEMMINI_COMMAND({n}, rs1, rs2); break;" for n in _FUNCTS]
    return _HEAD.replace("CASES", "\n".join([*cases, f"    case {FENCE}: GEMMINI_FENCE(); break;"]))


def c_function(symbol: str, workload: Workload, g: BlockGeometry, program: CommandTable) -> str:
    """Return a C function that runs a layer's program on the tensors that are passed as pointers.

    Args:
        symbol: name of the function, a valid identifier.
        workload: the workload, which is described in a comment.
        g: geometry of the workload, with the addresses of its tensors.
        program: commands, shape (n, 3) with the columns function code, first and second operand.
    """
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
    strides_text = ", ".join(f"{role} {size}" for role, size in strides.items() if role in roles)
    return (
        f"/* {comment(str(workload))}\n   {comment(workload.epilogue_text)}\n"
        f"   bytes from one row to the next: {strides_text} */\n"
        f"{c_words(symbol, program, bases, ends)}\n"
        f"void {symbol}({arguments})\n{{\n"
        f"  const uint64_t base[] = {{0, {', '.join(f'(uintptr_t){role}' for role in roles)}}};\n"
        f"  {run_words(symbol)}\n"
        "  GEMMINI_FENCE();\n}\n"
    )


def run_words(symbol: str) -> str:
    """Return the C statement that issues the command table of a function.

    Args:
        symbol: name of the function.
    """
    words = words_of(symbol)
    return f"gemmini_run({words}, sizeof {words} / sizeof *{words}, base);"


def c_words(
    symbol: str, program: CommandTable, bases: NDArray[np.int64], ends: NDArray[np.int64]
) -> str:
    """Return a program as a C table, in which addresses are offsets from the start of a tensor.

    Args:
        symbol: name of the function that the table belongs to.
        program: commands, shape (n, 3) with the columns function code, first and second operand.
        bases: start addresses of the tensors, shape (tensors,).
        ends: end addresses of the tensors, shape (tensors,).
    """
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
    """Split a memory address into an offset within a tensor and the number of that tensor.

    Args:
        address: address in bytes; 0 is the null address.
        bases: first address of each tensor, shape (tensors,).
        ends: address after each tensor, shape (tensors,).

    Returns:
        Offset in bytes and 1-based number of the tensor; (0, 0) for the null address.
    """
    if address == 0:
        return 0, 0
    inside = np.flatnonzero((bases <= address) & (address < ends))
    return address - int(bases[inside[0]]), int(inside[0]) + 1


@dataclass(frozen=True)
class SegmentCommands:
    """A segment of a network: layers that run without work of the host in between.

    Attributes:
        commands: commands of the segment, shape (n, 3).
        loads: tensors that the host writes to memory before the segment runs.
        stores: tensors that the host reads from memory after the segment has run.
    """

    commands: CommandTable
    loads: Sequence[HostTensor]
    stores: Sequence[HostTensor]


def c_network(
    spec: GemminiSpec, memory_bytes: int, constants: Sequence[tuple[int, bytes]],
    segments: Sequence[SegmentCommands], header: str,
) -> tuple[str, str]:  # fmt: skip
    """Return the C file of a network and its header.

    Args:
        spec: the machine, which a comment names.
        memory_bytes: size of the memory that the caller provides.
        constants: address and content of each constant.
        segments: commands and host tensors of each segment.
        header: file name of the header, which the C file includes.

    Returns:
        Content of the C file and content of the header.

    Raises:
        TilewrightError: the file name is not valid in an `#include` directive.
    """
    if not is_header_name(header):
        raise TilewrightError(
            f"C cannot include a file named {header!r:.80}; name the file with letters, digits, "
            "'_', '-' and '.'"
        )
    names = CIdentifiers("tensor")
    machine = CIdentifiers("machine").identify(spec.name)
    head = _NETWORK_HEAD.replace("NAME", machine).replace("PAGE", str(PAGE_BYTES))
    parts = [
        head + c_runner() + f'\n#include "{header}"\n',
        f"#define GEMMINI_NETWORK_BYTES {memory_bytes}\n",
        "void gemmini_network_load(int8_t *memory)\n{\n"
        "  const int8_t *from = gemmini_constants;\n"
        "  const size_t count = sizeof gemmini_pieces / sizeof *gemmini_pieces;\n"
        "  for (size_t n = 0; n < count; from += gemmini_pieces[n++].bytes)\n"
        "    memcpy(memory + gemmini_pieces[n].at, from, gemmini_pieces[n].bytes);\n}\n",
        *(_function(n, segment, memory_bytes, names) for n, segment in enumerate(segments)),
    ]
    return "\n".join(parts), _constants(constants)


def _function(number: int, segment: SegmentCommands, memory_bytes: int, names: CIdentifiers) -> str:
    symbol, begin = f"gemmini_segment_{number}", np.array([MEMORY_BASE])
    lines = [
        f"   {verb} {_tensor(tensor, names)}"
        for verb, tensors in (("takes", segment.loads), ("gives", segment.stores))
        for tensor in tensors
    ]
    words = c_words(symbol, segment.commands, begin, begin + memory_bytes)
    return (
        f"{words}\n/* Segment {number}:\n" + "\n".join(lines) + " */\n"
        f"void {symbol}(int8_t *memory)\n{{\n"
        "  const uint64_t base[] = {0, (uintptr_t)memory};\n"
        f"  {run_words(symbol)}\n"
        "}\n"
    )


def _tensor(tensor: HostTensor, names: CIdentifiers) -> str:
    """Describe a tensor in one line of a comment: shape, type and location in memory."""
    place, scale = tensor.place, tensor.scale
    shape = "x".join(map(str, tensor.held)) or "1"
    step = "" if scale is None else f", step {scale.step!r}, zero {scale.zero_point}"
    unfolded = "" if place.unfold is None else ", unfolded: a row has all channels under a window"
    return (
        f"{names.identify(tensor.name)}: {shape} as {place.form} at byte {place.at - MEMORY_BASE}, "
        f"{place.stride} from one row to the next{step}{unfolded}"
    )


def _constants(constants: Sequence[tuple[int, bytes]]) -> str:
    """Return the header: the bytes of all constants, and each constant's location in memory."""
    values = np.frombuffer(b"".join(data for _, data in constants), np.int8).tolist()
    lines = [
        ",".join(map(str, values[at : at + NUMBERS_A_LINE]))
        for at in range(0, len(values), NUMBERS_A_LINE)
    ]
    pieces = ", ".join(f"{{{at - MEMORY_BASE}, {len(data)}}}" for at, data in constants)
    return (
        "/* Written by Tilewright: weights and biases, and their places in memory. */\n"
        "static const int8_t gemmini_constants[] = {\n" + ",\n".join(lines) + "\n};\n"
        f"static const struct {{ size_t at, bytes; }} gemmini_pieces[] = {{{pieces}}};\n"
    )
