"""Converts instructions to a readable listing and back, without loss.

    0  LOAD INP  pop=g2l push=l2g sram=0x0 dram=0x2c8 y=9 x=14 stride=14 pad=1,0,1,1
    1  GEMM      pop=l2g push=g2l uop=0:84 loop=14x3 dst=1,0 src=1,1 wgt=0,1
    2  ALU SHR   uop=0:1 loop=1x784 dst=0,1 src=0,1 imm=8
    3  STORE OUT push=s2g sram=0x0 dram=0x400 y=4 x=196 stride=784
    4  FINISH

There is one line per instruction. `pop=` and `push=` name the token queue between two modules:
`l2g` leads from load to compute, `g2l` back, `g2s` from compute to store, and `s2g` back. `prev!`
and `next!` stand for a flag towards a module that does not exist. Pairs are (outer loop, inner
loop). The numbers of `pad=` are top, bottom, left and right. Omitted fields are zero. `rest=` holds
bits that belong to no field, and `WORD` holds a whole instruction with an undefined opcode.
Addresses count elements of the memory type. A comment begins with `#`. The parser ignores the
number at the beginning of a line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.vta.instruction_format import (
    ALU,
    ALU_NAMES,
    FINISH,
    FLAG_NAMES,
    FLAG_QUEUES,
    GEMM,
    LOAD,
    MEMORY_NAMES,
    OPCODE_NAMES,
    QUEUE_NAMES,
    STORE,
    Layout,
    decode,
    encode,
    fields_of,
    layout_of,
    module_of,
)
from tilewright.targets.vta.spec import VtaSpec


class ListingError(TilewrightError):
    """Raised if a line of a listing is not a valid instruction. The message contains the line."""


# Words of a line, and the instruction fields that each stands for
_GROUPS = {
    "sram": ("sram_base",),
    "dram": ("dram_base",),
    "y": ("y_size",),
    "x": ("x_size",),
    "stride": ("x_stride",),
    "pad": ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"),
    "uop": ("uop_bgn", "uop_end"),
    "loop": ("iter_out", "iter_in"),
    "dst": ("dst_factor_out", "dst_factor_in"),
    "src": ("src_factor_out", "src_factor_in"),
    "wgt": ("wgt_factor_out", "wgt_factor_in"),
}
_SEPARATORS = {"uop": ":", "loop": "x"}
_IN_HEX = ("sram", "dram")


def disassemble(insns: NDArray[np.uint64], spec: VtaSpec) -> str:
    """Return the listing of a program, one line per instruction.

    Args:
        insns: instructions, uint64, shape (n, 2).
        spec: the machine.
    """
    lay = layout_of(spec)
    width = len(str(max(len(insns) - 1, 0)))
    words = ((high << 64) | low for low, high in insns.tolist())
    return "".join(f"{n:{width}}  {line_of(word, lay)}\n" for n, word in enumerate(words))


def assemble(text: str, spec: VtaSpec) -> NDArray[np.uint64]:
    """Parse a listing into instructions.

    Args:
        text: the listing.
        spec: the machine.

    Returns:
        Instructions, uint64, shape (n, 2).

    Raises:
        ListingError: a line is invalid. The message contains the line and the reason.
    """
    lay = layout_of(spec)
    words = []
    for number, line in enumerate(text.splitlines(), start=1):
        tokens = line.split("#")[0].split()
        if tokens and tokens[0].isdecimal():
            tokens = tokens[1:]
        if tokens:
            try:
                words.append(_word_of(tokens, lay))
            except ValueError as error:
                raise ListingError(f"line {number} ('{line.strip()}'): {error}") from None
    halves = [(word & (1 << 64) - 1, word >> 64) for word in words]
    return np.array(halves, np.uint64).reshape(-1, 2)


def line_of(word: int, lay: Layout) -> str:
    """Format one instruction as a line of a listing, without its number.

    Args:
        word: the instruction as a 128-bit integer.
        lay: bit positions of the instruction fields.
    """
    values = decode(word, lay)
    opcode = values["opcode"]
    if opcode > ALU:
        return f"WORD {word:#034x}"
    tokens = [_name(values).ljust(9), *_flag_tokens(values)]
    for key, names in _GROUPS.items():
        numbers = [values[name] for name in names if name in values]
        if any(numbers):
            shown = [f"{n:#x}" if key in _IN_HEX else str(n) for n in numbers]
            tokens.append(f"{key}={_SEPARATORS.get(key, ',').join(shown)}")
    if values.get("use_imm"):
        tokens.append(f"imm={values['imm']}")
    elif values.get("imm"):
        tokens.append(f"unused_imm={values['imm']}")
    if values.get("reset_reg") and opcode == ALU:
        tokens.append("reset")
    if values["unused"]:
        tokens.append(f"rest={values['unused']:#x}")
    return " ".join(tokens).rstrip()


def _name(values: dict[str, int]) -> str:
    opcode = values["opcode"]
    name = OPCODE_NAMES[opcode]
    if opcode in (LOAD, STORE):
        memory = values["memory_type"]
        return f"{name} {MEMORY_NAMES[memory] if memory < len(MEMORY_NAMES) else f'MEM{memory}'}"
    if opcode == ALU:
        operation = values["alu_opcode"]
        return f"{name} {ALU_NAMES[operation] if operation < len(ALU_NAMES) else f'OP{operation}'}"
    return f"{name} RESET" if opcode == GEMM and values["reset_reg"] else name


def _flag_tokens(values: dict[str, int]) -> list[str]:
    module = module_of(values["opcode"], values.get("memory_type", 0))
    tokens = []
    for name, queue in zip(FLAG_NAMES, FLAG_QUEUES[module], strict=True):
        if values[name]:
            action, side = name.split("_")
            tokens.append(f"{action}={QUEUE_NAMES[queue] if queue >= 0 else side + '!'}")
    return tokens


def _word_of(tokens: list[str], lay: Layout) -> int:
    """Encode the instruction that a line of a listing describes.

    Args:
        tokens: the words of the line.
        lay: instruction format of the machine.

    Returns:
        The instruction as a 128-bit integer.

    Raises:
        ValueError: the line is not a valid instruction.
    """
    if tokens[0] == "WORD":
        if len(tokens) != 2:
            raise ValueError("WORD needs one 128-bit number")
        return _number(tokens[1], 0, (1 << 128) - 1)
    values, rest = _parse_name(tokens)
    fields = {field.name: field for field in fields_of(values["opcode"], lay)}
    for token in rest:
        key, _, text = token.partition("=")
        if key in ("pop", "push"):
            values[_flag_of(values, key, text)] = 1
        elif key == "rest":
            values["unused"] = _number(text, 0, (1 << 128) - 1)
        elif key == "reset" and "reset_reg" in fields:
            values["reset_reg"] = 1
        elif key in ("imm", "unused_imm") and "imm" in fields:
            values["imm"], values["use_imm"] = _number(text, -32768, 32767), int(key == "imm")
        else:
            names = [name for name in _GROUPS.get(key, ()) if name in fields]
            if not names:
                raise ValueError(f"unknown token '{token}' for {tokens[0]}")
            texts = text.split(_SEPARATORS.get(key, ","))
            if len(texts) != len(names):
                raise ValueError(f"'{token}' needs {len(names)} numbers")
            for name, number in zip(names, texts, strict=True):
                values[name] = _number(number, 0, (1 << fields[name].width) - 1)
    word = encode(values, lay)
    if decode(word, lay)["unused"] != values.get("unused", 0):
        raise ValueError("rest= covers bits that belong to a field")
    return word


def _parse_name(tokens: list[str]) -> tuple[dict[str, int], list[str]]:
    """Parse the instruction's name at the beginning of a line of a listing.

    Args:
        tokens: the words of the line, such as `LOAD`, `INP`, `y=9`.

    Returns:
        The field values that the name determines, such as the opcode, and the remaining tokens.
    """
    if tokens[0] not in OPCODE_NAMES:
        raise ValueError(f"unknown instruction '{tokens[0]}'; known: {', '.join(OPCODE_NAMES)}")
    opcode = OPCODE_NAMES.index(tokens[0])
    if opcode == FINISH:
        return {"opcode": opcode}, tokens[1:]
    if opcode == GEMM:
        reset = tokens[1:2] == ["RESET"]
        return {"opcode": opcode, "reset_reg": int(reset)}, tokens[1 + reset :]
    names, prefix, key = (
        (ALU_NAMES, "OP", "alu_opcode") if opcode == ALU else (MEMORY_NAMES, "MEM", "memory_type")
    )
    kind = tokens[1] if len(tokens) > 1 else ""
    if kind in names:
        return {"opcode": opcode, key: names.index(kind)}, tokens[2:]
    if kind.startswith(prefix):
        return {"opcode": opcode, key: _number(kind[len(prefix) :], 0, 7)}, tokens[2:]
    raise ValueError(f"{tokens[0]} needs one of {', '.join(names)} before its fields")


def _flag_of(values: dict[str, int], action: str, side: str) -> str:
    """Return the name of the dependency flag that a token such as `pop=l2g` sets.

    Args:
        values: fields of the instruction so far, which determine the module that executes it.
        action: "pop" or "push".
        side: name of the token queue.

    Raises:
        ValueError: the module is not connected to the queue.
    """
    module = module_of(values["opcode"], values.get("memory_type", 0))
    for name, queue in zip(FLAG_NAMES, FLAG_QUEUES[module], strict=True):
        if name.startswith(action) and (
            (queue >= 0 and QUEUE_NAMES[queue] == side)
            or (queue < 0 and name == f"{action}_{side.removesuffix('!')}")
        ):
            return name
    raise ValueError(f"'{action}={side}' is not a queue of this instruction's module")


def _number(text: str, lowest: int, highest: int) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if not lowest <= value <= highest:
        raise ValueError(f"{text} is outside of {lowest} to {highest}")
    return value
