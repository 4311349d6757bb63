"""One-layer board programs, assembled by hand from a lowered layer, with their expected outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Scale
from tilewright.targets.vta.board.program import (
    RELOCATION,
    BoardProgram,
    Buffer,
    Port,
    PortForm,
    ProgramStep,
    Segment,
    crossing,
)
from tilewright.targets.vta.instruction_format import ACC, INP, LOAD, OUT, STORE, UOP, WGT
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import PAGE_BYTES
from tilewright.targets.vta.lowering.tensor_packing import (
    Tensors,
    pack_image,
    random_tensors,
    reference,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload, parse_workload

BIASED = "bias, >> 7, min 127, max -128"
HEAD, GAP = 4096, 256
"""Number of bytes before the input activations, and between input and output."""


@dataclass(frozen=True, eq=False)
class Made:
    """A program with an input and its expected output, both int8 in the shape of the model."""

    program: BoardProgram
    data: NDArray[np.int8]
    expected: NDArray[np.int8]


def one_layer(
    text: str, spec: VtaSpec, *, epilogue: str = BIASED, unfold: tuple[int, int] | None = None
) -> Made:
    """Lower a workload on random data with the first valid schedule of the extended space.

    `unfold` gives the factors by which the layer's input is rearranged.
    """
    plain = parse_workload(text, epilogue)
    tensors = random_tensors(plain, spec.machine, 0)
    expected = reference(plain, spec.machine, tensors)
    fold = Unfold.for_patches(plain, *unfold) if unfold else None
    workload, packed = plain, tensors
    if fold:
        workload = fold.workload(plain)
        packed = {
            **tensors, "data": fold.data(tensors["data"]), "weight": fold.weight(tensors["weight"])
        }  # fmt: skip
    return Made(
        _program(workload, spec, packed, plain, fold),
        tensors["data"].astype(np.int8),
        expected.astype(np.int8),
    )


def with_ports(made: Made, data: Scale, out: Scale, dtype: str = "float32") -> BoardProgram:
    """Return the program with another data type and other scales for its inputs and outputs."""
    step = made.program.steps[0]
    loads = tuple(replace(port, dtype=dtype, scale=data) for port in step.loads)
    stores = tuple(replace(port, dtype=dtype, scale=out) for port in step.stores)
    return with_steps(made.program, ProgramStep(0, loads, stores))


def with_steps(program: BoardProgram, *steps: ProgramStep) -> BoardProgram:
    """Return the program with other steps, whose ports all become inputs and outputs."""
    inputs, outputs = crossing(steps)
    return replace(program, steps=steps, inputs=inputs, outputs=outputs)


def _program(
    workload: Workload, spec: VtaSpec, tensors: Tensors, plain: Workload, fold: Unfold | None
) -> BoardProgram:
    lowering = Lowering.for_workload(workload, spec, "extended")
    geo, m = lowering.geometry, lowering.machine
    insns, uops = _first_program(lowering)
    image = pack_image(workload, m, geo, tensors, uops)

    def cut(base: int, element: int, size: int) -> NDArray[np.uint8]:
        at = base * element - PAGE_BYTES
        return image[at : at + size]

    words = cut(geo.uop_base, m.uop_bytes, len(uops) * m.uop_bytes)
    weights = cut(geo.wgt_base, m.wgt_bytes, geo.wgt_bytes)
    bias = cut(geo.bias_base, m.acc_bytes, geo.bias_bytes)
    out_at = HEAD + geo.inp_bytes + GAP
    buffers = [
        Buffer("uops", "uops", words.size),
        Buffer("weights", "constants", weights.size, bias.size),
        Buffer("bias", "constants", bias.size),
        Buffer("tensors", "activations", out_at + geo.out_bytes),
    ]
    places = {
        UOP: (geo.uop_base, 0, 0), WGT: (geo.wgt_base, 1, 0), ACC: (geo.bias_base, 2, 0),
        INP: (geo.inp_base, 3, HEAD // m.inp_bytes), OUT: (geo.out_base, 3, out_at // m.out_bytes),
    }  # fmt: skip
    insns, relocations = _without_addresses(insns, places)
    form: PortForm = "column" if geo.column else "image"
    w = plain
    in_shape: tuple[int, ...] = (w.batch, w.in_channels, w.height, w.width)
    out_shape: tuple[int, ...] = (w.batch, w.out_channels, w.out_height, w.out_width)
    if w.operator == "dense":
        in_shape, out_shape = in_shape[:2], out_shape[:2]
    step = ProgramStep(
        0, (Port("data", in_shape, "int8", Scale(1.0), form, 3, HEAD, fold),),
        (Port("out", out_shape, "int8", Scale(1.0), form, 3, out_at),),
    )  # fmt: skip
    return BoardProgram(
        spec, insns, relocations, words, np.concatenate([bias, weights]), buffers,
        [Segment(0, len(insns))], [step], *crossing([step]),
    )  # fmt: skip


def _first_program(lowering: Lowering) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    for flat in range(lowering.space.size):
        values = lowering.space.values(lowering.space.unravel(np.array([flat])))[0]
        code, insns, uops, _ = lowering.program(values)
        if code == 0:
            return insns, uops
    raise AssertionError("no schedule fits")


def _without_addresses(
    insns: NDArray[np.uint64], places: dict[int, tuple[int, int, int]]
) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
    """Replace addresses in instructions by buffer offsets, and return the relocations.

    `places` maps each memory type to the base address used by lowering, the buffer, and the offset
    in the buffer.
    """
    insns = insns.copy()
    rows = []
    for at, (low, high) in enumerate(insns.tolist()):
        if low & 7 not in (LOAD, STORE) or not high >> 16 & 0xFFFF:
            continue
        memory = low >> 7 & 7
        base, buffer, offset = places[memory]
        offset += (low >> 26 & 0xFFFFFFFF) - base
        insns[at, 0] = low & ~(0xFFFFFFFF << 26) | offset << 26
        rows.append((at, memory, buffer, offset))
    return insns, np.array(rows, RELOCATION)
