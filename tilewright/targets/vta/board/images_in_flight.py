"""Gives a program room for several images at once, so that segments of one run between another's.

Constants and micro-ops are read only, and shared. Each image has activations of its own, and
instructions that lead there: relocated, a LOAD or STORE holds an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.board.device import INSTRUCTION_BYTES, PAGE_BYTES, Device
from tilewright.targets.vta.board.program import BoardProgram, Buffer, ProgramStep, Segment


class VtaImages:
    """Keeps `targets.artifact_types.ImagesInFlight` on a simulated board."""

    def __init__(self, program: BoardProgram, images: int) -> None:
        self._steps = len(program.steps)
        self._device = Device(replicated(program, images))

    @property
    def dram_bytes(self) -> int:
        """All pages that the driver hands out."""
        return self._device.bytes

    def run(
        self, place: int, segment: int, tensors: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """As `Device.run`."""
        return self._device.run(place * self._steps + segment, tensors)


def replicated(program: BoardProgram, images: int) -> BoardProgram:
    """The program for so many images: step k of image i is step i · steps + k, and so are segments
    and instructions. Buffers of activations follow one another, image by image."""
    shared = [buffer for buffer in program.buffers if buffer.kind != "activations"]
    own = [at for at, buffer in enumerate(program.buffers) if buffer.kind == "activations"]
    buffers: list[Buffer] = list(shared)
    segments: list[Segment] = []
    steps: list[ProgramStep] = []
    relocations = []
    kept = [at for at, buffer in enumerate(program.buffers) if buffer.kind != "activations"]
    for image in range(images):
        moved = np.zeros(len(program.buffers), np.uint32)
        moved[kept] = np.arange(len(kept))
        moved[own] = len(buffers) + np.arange(len(own))
        buffers += [
            replace(program.buffers[at], name=f"{program.buffers[at].name}.{image}") for at in own
        ]
        rows = program.relocations.copy()
        rows["instruction"] += image * len(program.insns)
        rows["buffer"] = moved[rows["buffer"]]
        relocations.append(rows)
        segments += [
            Segment(image * len(program.insns) + each.first, each.count)
            for each in program.segments
        ]
        for step in program.steps:
            loads, stores = (
                tuple(replace(port, buffer=int(moved[port.buffer])) for port in ports)
                for ports in (step.loads, step.stores)
            )
            steps.append(ProgramStep(image * len(program.segments) + step.segment, loads, stores))
    return replace(
        program, insns=np.tile(program.insns, (images, 1)),
        relocations=np.concatenate(relocations), buffers=buffers, segments=segments, steps=steps,
    )  # fmt: skip


def room_bytes(program: BoardProgram, images: int) -> int:
    """The pages of `replicated`."""
    shared = sum(_pages(each.bytes) for each in program.buffers if each.kind != "activations")
    own = sum(_pages(each.bytes) for each in program.buffers if each.kind == "activations")
    own += sum(_pages(each.count * INSTRUCTION_BYTES) for each in program.segments)
    return shared + images * own


def _pages(size: int) -> int:
    return -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES
