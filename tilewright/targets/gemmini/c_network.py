"""Writes a built network as C: a function a segment, and a header of its constants.

All tensors lie in one piece of memory, which the caller provides. Work of the host between segments
is the caller's too: comments say which tensors a segment takes and gives, and where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.board.memory import HostTensor
from tilewright.targets.gemmini.c_identifiers import CIdentifiers, is_header_name
from tilewright.targets.gemmini.c_source import c_runner, c_words, run_words
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE, PAGE_BYTES
from tilewright.targets.gemmini.lowering.words import CommandTable
from tilewright.targets.gemmini.spec import GemminiSpec

NUMBERS_A_LINE = 24
_HEAD = """\
/* Written by Tilewright for NAME: one function a segment, to be called in order. Compile it with
   gemmini-rocc-tests.

   `memory` has GEMMINI_NETWORK_BYTES bytes and begins at a multiple of PAGE. Call
   gemmini_network_load once: it writes all constants. Tensors are rows of int8 in memory. Of the
   form "image" a row is a pixel (NHWC), of "rows" the last dimension. A float tensor is its int8
   values times a step. */
#include <string.h>
"""


@dataclass(frozen=True)
class SegmentCommands:
    """Commands (n, 3), and the tensors of the host that they take and give."""

    commands: CommandTable
    loads: Sequence[HostTensor]
    stores: Sequence[HostTensor]


def c_network(
    spec: GemminiSpec, memory_bytes: int, constants: Sequence[tuple[int, bytes]],
    segments: Sequence[SegmentCommands], header: str,
) -> tuple[str, str]:  # fmt: skip
    """Return the C file, and the header of that name, which it includes. `constants` by address.
    Raises `TilewrightError` for a name that C cannot include."""
    if not is_header_name(header):
        raise TilewrightError(
            f"C cannot include a file named {header!r:.80}; name the file with letters, digits, "
            "'_', '-' and '.'"
        )
    names = CIdentifiers("tensor")
    machine = CIdentifiers("machine").identify(spec.name)
    head = _HEAD.replace("NAME", machine).replace("PAGE", str(PAGE_BYTES))
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
    said = [
        f"   {verb} {_tensor(tensor, names)}"
        for verb, tensors in (("takes", segment.loads), ("gives", segment.stores))
        for tensor in tensors
    ]
    words = c_words(symbol, segment.commands, begin, begin + memory_bytes)
    return (
        f"{words}\n/* Segment {number}:\n" + "\n".join(said) + " */\n"
        f"void {symbol}(int8_t *memory)\n{{\n"
        "  const uint64_t base[] = {0, (uintptr_t)memory};\n"
        f"  {run_words(symbol)}\n"
        "}\n"
    )


def _tensor(tensor: HostTensor, names: CIdentifiers) -> str:
    """Return a line about a tensor: shape, type, and where it lies."""
    place, scale = tensor.place, tensor.scale
    shape = "x".join(map(str, tensor.held)) or "1"
    step = "" if scale is None else f", step {scale.step!r}, zero {scale.zero_point}"
    unfolded = "" if place.unfold is None else ", unfolded: a row has all channels under a window"
    return (
        f"{names.identify(tensor.name)}: {shape} as {place.form} at byte {place.at - MEMORY_BASE}, "
        f"{place.stride} from a row to the next{step}{unfolded}"
    )


def _constants(constants: Sequence[tuple[int, bytes]]) -> str:
    """A header: all bytes, and where each piece of them goes."""
    values = np.frombuffer(b"".join(data for _, data in constants), np.int8).tolist()
    lines = [
        ",".join(map(str, values[at : at + NUMBERS_A_LINE]))
        for at in range(0, len(values), NUMBERS_A_LINE)
    ]
    pieces = ", ".join(f"{{{at - MEMORY_BASE}, {len(data)}}}" for at, data in constants)
    return (
        "/* Written by Tilewright: weights and biases, and where they lie in memory. */\n"
        "static const int8_t gemmini_constants[] = {\n" + ",\n".join(lines) + "\n};\n"
        f"static const struct {{ size_t at, bytes; }} gemmini_pieces[] = {{{pieces}}};\n"
    )
