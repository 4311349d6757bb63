"""Simulated board: memory as the driver allocates it, and bit-exact execution of segments.

A segment is a sequence of layers that runs as one instruction stream. Several images can be in
progress at the same time. They share the constants and micro-ops, which are read-only. Each image
has its own activations and its own instructions, because relocated LOAD and STORE instructions
contain addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.layer import from_int8, to_int8
from tilewright.targets.vta.board.layouts import Packing, pack, unpack
from tilewright.targets.vta.board.program import BoardProgram, Buffer, Port, ProgramStep, Segment
from tilewright.targets.vta.board.program_check import packed_shape
from tilewright.targets.vta.board.relocate import relocated
from tilewright.targets.vta.functional.session import SimulationSession
from tilewright.targets.vta.instruction_format import Words, element_bytes
from tilewright.targets.vta.program import FIRST_ADDRESS
from tilewright.targets.vta.spec import VtaSpec

PAGE_BYTES = 4096
INSTRUCTION_BYTES = 16


class DeviceAddresses:
    """Addresses of a program in memory.

    The buffers follow one another from `FIRST_ADDRESS`, each on its own pages, and the instructions
    of each segment come after them.

    Attributes:
        program: the program.
        addresses: byte address of each buffer, shape (buffers,).
        insn_addresses: byte address of each segment's instructions, shape (segments,).
        bytes: size of the whole memory in bytes.
        data_bytes: size of the buffers in bytes.
        insns: instructions with addresses, shape (n, 2).
    """

    def __init__(self, program: BoardProgram) -> None:
        self.program = program
        sizes = [buffer.bytes for buffer in program.buffers]
        sizes += [segment.count * INSTRUCTION_BYTES for segment in program.segments]
        pages = [-(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES for size in sizes]
        begins = [FIRST_ADDRESS, *(FIRST_ADDRESS + end for end in accumulate(pages))]
        count = len(program.buffers)
        self.addresses = np.array(begins[:count], np.int64)
        self.insn_addresses = np.array(begins[count:-1], np.int64)
        self.bytes = begins[-1] - FIRST_ADDRESS
        self.data_bytes = begins[count] - FIRST_ADDRESS
        element = element_bytes(program.spec.machine)
        self.insns: Words = relocated(program.insns, program.relocations, self.addresses, element)


class Device(DeviceAddresses):
    """Board program that is loaded into simulated memory and can be run there."""

    def __init__(self, program: BoardProgram) -> None:
        super().__init__(program)
        # Instructions are not part of the memory image; the simulator takes them as a separate
        # array.
        self._dram = np.zeros(self.data_bytes, np.uint8)
        for buffer, address in zip(program.buffers, self.addresses.tolist(), strict=True):
            if buffer.kind != "activations":
                content = program.uops if buffer.kind == "uops" else program.constants
                part = content[buffer.offset : buffer.offset + buffer.bytes]
                self._at(address, len(part))[:] = part
        self._session = SimulationSession(program.spec)

    def run(
        self, step: int, tensors: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """Run a segment, including the packing of its inputs and the unpacking of its outputs.

        Args:
            step: index of the step. A step is a segment with the tensors that the host packs and
                unpacks.
            tensors: inputs by name, in the shapes and types of their ports.

        Returns:
            Outputs by name, in the shapes and types of their ports.

        Raises:
            FunctionalError: the program is invalid, or does not finish.
        """
        todo = self.program.steps[step]
        for port in todo.loads:
            packed = pack_port(port, self.program.spec, tensors[port.name])
            memory = self.memory(port.buffer, port.offset, packed.nbytes)
            memory[:] = packed.view(np.uint8)
        segment = self.program.segments[todo.segment]
        insns = self.insns[segment.first : segment.first + segment.count]
        self.execute(insns)
        return {port.name: self._stored(port) for port in todo.stores}

    def execute(
        self, insns: Words, tokens: tuple[int, int, int, int] = (0, 0, 0, 0)
    ) -> tuple[int, int, int, int]:
        """Run instructions on the simulated memory.

        Args:
            insns: instructions with addresses, uint64, shape (n, 2).
            tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.

        Returns:
            The number of tokens that are left in each of these queues.

        Raises:
            FunctionalError: the program is invalid, or does not finish.
        """
        return self._session.run(insns, self._dram, FIRST_ADDRESS, tokens)

    def memory(self, buffer: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return a writable view of a part of a buffer.

        Args:
            buffer: index of the buffer.
            offset: position of the first byte in the buffer.
            size: number of bytes.

        Returns:
            uint8 array of shape (size,).
        """
        return self._at(int(self.addresses[buffer]) + offset, size)

    def _stored(self, port: Port) -> NDArray[np.generic]:
        spec = self.program.spec
        size = packing_of(port, spec, load=False).bytes(spec.machine)
        raw = self.memory(port.buffer, port.offset, size).view(np.int8)
        return unpack_port(port, spec, raw)

    def _at(self, address: int, size: int) -> NDArray[np.uint8]:
        first = address - FIRST_ADDRESS
        return self._dram[first : first + size]


def packing_of(port: Port, spec: VtaSpec, *, load: bool) -> Packing:
    """Return the memory layout of a port, which is a tensor that the host and a segment exchange.

    Tensors that the accelerator loads are stored in blocks of input channels. Tensors that it
    stores are in blocks of output channels.

    Args:
        port: the port.
        spec: the machine.
        load: True if the accelerator loads the tensor, False if it stores the tensor.
    """
    shape = packed_shape(port, spec, load=load)
    if port.form == "image":
        batches, blocks, height, width, _, block = shape
        return Packing("image", batches, blocks, height, width, block)
    if port.form == "column":
        blocks, rows, _, block = shape
        return Packing("column", 1, blocks, rows, 1, block)
    row_blocks, blocks, _, block = shape
    return Packing("weights", row_blocks, blocks, 1, 1, block)


def pack_port(port: Port, spec: VtaSpec, tensor: NDArray[np.generic]) -> NDArray[np.int8]:
    """Convert a host tensor to the memory layout of a port that the accelerator loads.

    Args:
        port: the port.
        spec: the machine.
        tensor: array in the port's shape. Floats are quantised with the port's scale.

    Returns:
        int8 array of shape (bytes,).
    """
    values = to_int8(tensor, port.scale).reshape(port.shape)
    if port.unfold is not None:
        values = port.unfold.data(values)
    return pack(packing_of(port, spec, load=True), spec.machine, values)


def unpack_port(port: Port, spec: VtaSpec, raw: NDArray[np.int8]) -> NDArray[np.generic]:
    """Convert a tensor from the memory layout of a port that the accelerator stores.

    Args:
        port: the port.
        spec: the machine.
        raw: int8 values in memory, shape (bytes,).

    Returns:
        Array in the port's shape and type. Floats are step · (value − zero point) in float32; uint8
        values are the stored values plus 128.
    """
    # copied because the unpacked array may be a view of the memory, which the next run overwrites
    values = unpack(packing_of(port, spec, load=False), spec.machine, raw, port.shape).copy()
    return from_int8(values, port.scale, port.dtype)


class VtaImages:
    """Program on a simulated board with separate activation buffers for several images in progress.

    It implements the protocol `targets.artifact_types.ImagesInFlight`.
    """

    def __init__(self, program: BoardProgram, images: int) -> None:
        self._steps = len(program.steps)
        self._device = Device(replicated(program, images))

    @property
    def dram_bytes(self) -> int:
        """Size of all memory pages that the driver allocates, in bytes."""
        return self._device.bytes

    def run(
        self, place: int, segment: int, tensors: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """Run one segment for one of the images in progress.

        Args:
            place: index of the image's buffers, starting at 0.
            segment: index of the segment.
            tensors: inputs by name, in the shapes and types of their ports.

        Returns:
            Outputs by name, in the shapes and types of their ports.
        """
        return self._device.run(place * self._steps + segment, tensors)


def replicated(program: BoardProgram, images: int) -> BoardProgram:
    """Return a program that has separate activation buffers for each of several images.

    For every image, the program contains a copy of the steps, segments and instructions. Step k of
    image i has the index i · steps + k; segments and instructions are numbered in the same way. The
    activation buffers of one image follow those of the previous image.

    Args:
        program: the program for one image.
        images: number of images.
    """
    shared = [buffer for buffer in program.buffers if buffer.kind != "activations"]
    per_image = [at for at, buffer in enumerate(program.buffers) if buffer.kind == "activations"]
    buffers: list[Buffer] = list(shared)
    segments: list[Segment] = []
    steps: list[ProgramStep] = []
    relocations = []
    kept = [at for at, buffer in enumerate(program.buffers) if buffer.kind != "activations"]
    for image in range(images):
        moved = np.zeros(len(program.buffers), np.uint32)
        moved[kept] = np.arange(len(kept))
        moved[per_image] = len(buffers) + np.arange(len(per_image))
        buffers += [
            replace(program.buffers[at], name=f"{program.buffers[at].name}.{image}")
            for at in per_image
        ]
        rows = program.relocations.copy()
        rows["instruction"] += image * len(program.insns)
        rows["buffer"] = moved[rows["buffer"]]
        relocations.append(rows)
        segments += [
            Segment(image * len(program.insns) + segment.first, segment.count)
            for segment in program.segments
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
    """Return the memory in bytes that a program with buffers for several images needs.

    The program is the result of `replicated`. Each buffer occupies whole pages.

    Args:
        program: the program for one image.
        images: number of images.
    """
    shared = sum(_pages(item.bytes) for item in program.buffers if item.kind != "activations")
    per_image = sum(_pages(item.bytes) for item in program.buffers if item.kind == "activations")
    per_image += sum(_pages(item.count * INSTRUCTION_BYTES) for item in program.segments)
    return shared + images * per_image


def _pages(size: int) -> int:
    return -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES
