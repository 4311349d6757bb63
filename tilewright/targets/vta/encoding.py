"""Defines what fits into the words of a VTA: the fields of a micro-op and of an instruction."""

from __future__ import annotations

from collections.abc import Mapping

INSTRUCTION_BITS = 128
LOOP_FIELD_BITS = 14  # iter_out, iter_in
INSTRUCTION_HEAD_BITS = 8  # opcode, four dependency flags, reset_reg


def scratchpad_problems(
    element_bits: Mapping[str, int], depth_logs: tuple[int, int, int, int]
) -> list[str]:
    """Elements that are no whole bytes; scratchpads (uop, input, weight, accumulator) of 2^log
    elements that hold too few or that no address reaches."""
    problems = []
    for name, bits in element_bits.items():
        if bits % 8:
            problems.append(f"one {name} element is {bits} bits, no whole number of bytes")
    names = ("uop", "input", "weight", "accumulator")
    for name, log_depth in zip(names, depth_logs, strict=True):
        if log_depth < 1:
            problems.append(
                f"the {name} scratchpad would hold 2^{log_depth} elements; "
                f"enlarge its LOG_*_BUFF_SIZE"
            )
        if log_depth > 16:
            problems.append(
                f"the {name} scratchpad would hold 2^{log_depth} elements, but sram_base has "
                f"16 bits; shrink its LOG_*_BUFF_SIZE"
            )
    return problems


def word_problems(
    u: int, i: int, w: int, a: int, inp_f: int, wgt_f: int, acc_f: int, uop_bits: int
) -> list[str]:
    """Field sums that do not fit: the micro-op word, then the GEMM and ALU instruction."""
    problems = []
    src = max(a, i)
    if a + src + w > uop_bits:
        problems.append(
            f"a micro-op needs a + max(a,i) + w = {a} + {src} + {w} = {a + src + w} bits, but has "
            f"{uop_bits}; shrink LOG_ACC/INP/WGT_BUFF_SIZE or set LOG_UOP_WIDTH to 6"
        )
    loops = [u, u + 1, LOOP_FIELD_BITS, LOOP_FIELD_BITS]
    gemm = [*loops, acc_f, acc_f, inp_f, inp_f, wgt_f, wgt_f]
    alu = [*loops, acc_f, acc_f, acc_f, acc_f, 3, 1, 16]
    for name, fields in (("GEMM", gemm), ("ALU", alu)):
        if field_end(fields) > INSTRUCTION_BITS:
            first = " + ".join(map(str, [INSTRUCTION_HEAD_BITS, *loops]))
            second = " + ".join(map(str, fields[4:]))
            problems.append(
                f"the {name} instruction's factor fields need {second} = {sum(fields[4:])} bits, "
                f"but its second word has 64 (the first word holds {first}); "
                "shrink the scratchpads or raise LOG_*_FACTOR_RESTRICT"
            )
    return problems


def field_end(widths: list[int], start: int = INSTRUCTION_HEAD_BITS) -> int:
    """The bit after the last field when fields are placed upward and none straddles bit 64."""
    position = start
    for width in widths:
        if position < 64 < position + width:
            position = 64
        position += width
    return position
