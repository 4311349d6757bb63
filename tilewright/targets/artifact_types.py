"""Defines the types of a network of layers on its way to a board: programs and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.targets.layer import ChannelSlice, Layer, Value

Tensors = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class HostStep:
    """Work of the host between layers: the tensors it takes and gives, by name."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """Layers and the host's steps between them, in order. `values` are all tensors by name.

    `loaded_as` gives, for an int8 value that the host makes of another tensor as it packs it, that
    tensor; `stored_as`, for one that the host gives out, the tensor it becomes as it is unpacked.
    `outputs` names the values of layers that the host reads in the end, `host_work` what it then
    has to do beside unpacking them. `slices` are the values that lie inside others.
    `inputs` and `results` are the tensors of the host that the whole network takes and gives, in
    the order in which a caller passes them, those that nothing reads among them; None: what layers
    take and give, in the order of first use.
    """

    steps: tuple[Layer | HostStep, ...]
    values: Mapping[str, Value]
    outputs: tuple[str, ...]
    loaded_as: Mapping[str, Value]
    stored_as: Mapping[str, Value]
    host_work: tuple[str, ...] = ()
    slices: tuple[ChannelSlice, ...] = ()
    inputs: tuple[Value, ...] | None = None
    results: tuple[Value, ...] | None = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """In order."""
        return tuple(step for step in self.steps if isinstance(step, Layer))


@dataclass(frozen=True)
class Pick:
    """A schedule: the name of a space and a row of knob indices there."""

    space: str
    config: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Built:
    """What a board loads. `files` by name. `layers` has an entry a layer, for the target's own use
    and for people: always `cycles` of the layer by itself and `stream_cycles` of it in its stream,
    `roofline_cycles`, `space`, `config` and `knobs`. `order` are the steps as they run: ("segment",
    number) or ("host", number). `memory` says what lies where, `bytes` how much there is. `ports`
    are the tensors that a segment takes from the host and gives to it. `why_not_bare` says why a
    board's own runtime cannot run it alone; empty if it can. `runtime_sha256` is the digest of that
    runtime's sources, which are not part of it; empty if there is none."""

    files: Mapping[str, bytes]
    layers: Sequence[Mapping[str, Json]]
    order: Sequence[tuple[str, int]]
    memory: Mapping[str, Json]
    bytes: int
    stream_cycles: int
    ports: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
    why_not_bare: str
    runtime_sha256: str = ""


@dataclass(frozen=True, eq=False)
class StreamTimes:
    """Cycles of one segment, and of each of its layers: from where the layer before it ended to the
    end of its own last instruction. `report` is the target's own, for pictures. `microjoules` is an
    estimate; None where the target knows none."""

    total: int
    layers: tuple[int, ...]
    report: object
    microjoules: float | None = None


@dataclass(frozen=True)
class LayerCost:
    """Of a layer by itself: cycles from launch to the end, and bytes that it moves from and to
    memory, its instructions among them. `stream_cycles` is what it takes in its stream, as in
    `StreamTimes.layers`."""

    cycles: int
    dram_bytes: int
    stream_cycles: int


@dataclass(frozen=True)
class StreamCost:
    """Of all streams of a network, counted as `Built.stream_cycles`, and of each layer."""

    cycles: int
    dram_bytes: int
    layers: tuple[LayerCost, ...]


class StreamTimer(Protocol):
    """Times networks of layers that have many in common, as they would be built."""

    def cost(self, graph: LayerGraph, schedules: Sequence[Pick]) -> StreamCost:
        """One schedule a layer, in the order of the graph. Layers of one name, workload and tensors
        are taken to be the same. Raises `WorkloadError` for what no board could load."""


@dataclass(frozen=True)
class LayerCheck:
    """How many of a layer's output values differ from the integer reference."""

    layer: int
    values: int
    wrong: int


@dataclass(frozen=True)
class BorderWork:
    """What the host does before or after a segment: elements of tensors that it brings into blocks
    or back; and, of images whose patches become channels, their elements and the bytes made."""

    packed: int = 0
    unfolded_from: int = 0
    unfolded: int = 0


class ImagesInFlight(Protocol):
    """A program in memory that has room for several images at once."""

    @property
    def dram_bytes(self) -> int:
        """All pages that the driver hands out."""

    def run(self, place: int, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run a segment for the image in a place, from 0 on; as `BuiltProgram.run`."""


@runtime_checkable
class HoldsImages(Protocol):
    """A program that can be loaded with room for several images. Segments share what is constant;
    each image has activations and instructions of its own."""

    def with_room(self, images: int) -> ImagesInFlight:
        """Load it anew, for so many images at once."""

    def room_bytes(self, images: int) -> int:
        """`ImagesInFlight.dram_bytes`, without loading."""

    def border_work(self) -> Sequence[tuple[BorderWork, BorderWork]]:
        """Of each segment, what the host packs before it and unpacks after it."""


class BuiltProgram(Protocol):
    """A program in memory."""

    @property
    def ports(self) -> Sequence[tuple[Sequence[Value], Sequence[Value]]]:
        """Of each segment the tensors that it takes from the host, and those that it gives to it,
        in the shapes and types that the host has them in."""

    def run(self, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run a segment on what its ports take; gives what they give, arrays by name in the shape
        of the port."""

    def times(self) -> Sequence[StreamTimes]:
        """Of each segment."""

    def verify(self, seed: int = 0) -> Iterator[LayerCheck]:
        """Every layer's part of its stream on random data, against plain integer arithmetic."""

    def c_files(self, header: str) -> tuple[str, str] | None:
        """Write the program as C.

        Args:
            header: the file name of the header with the weights.

        Returns:
            A file with one function per segment, and the header. None if the target has no C form.
        """
