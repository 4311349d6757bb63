"""Types for building networks: the graph of layers, the built program, its costs and its checks."""

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
    """A step that the host CPU executes between layers that the accelerator executes.

    Attributes:
        name: name of the step.
        reads: names of the tensors that it reads.
        writes: names of the tensors that it writes.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A network as layers and host steps, in execution order.

    Attributes:
        steps: layers and host steps, in execution order.
        values: all tensors, by name.
        outputs: names of the layer outputs that the host reads at the end.
        loaded_as: maps the name of an int8 value to the host tensor from which the value is loaded.
            The host converts the tensor to int8 while it packs the data.
        stored_as: maps the name of an int8 value to the host tensor as which the value is stored.
            The host converts the value to the type of that tensor while it unpacks the data.
        host_work: names of computations that the host has to do after the last layer, in addition
            to unpacking the outputs.
        slices: values that are stored inside other values.
        inputs: host tensors that the whole network takes, in the order in which a caller passes
            them, including inputs that no step reads. None means the inputs of the layers, in the
            order of their first use.
        results: host tensors that the whole network returns, in order. None means the outputs of
            the layers, in order.
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
        """The layers, in execution order, without the host steps."""
        return tuple(step for step in self.steps if isinstance(step, Layer))


@dataclass(frozen=True)
class Pick:
    """A schedule that was chosen for a layer.

    Attributes:
        space: name of the schedule space.
        config: knob indices, one per knob of the space.
    """

    space: str
    config: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Built:
    """A built network, in the form that a board loads.

    The network is divided into segments: groups of consecutive layers that the accelerator executes
    as one instruction stream, between steps of the host.

    Attributes:
        files: content of the artifact's files, by file name.
        layers: one JSON object per layer, which `Builds.open` reads again and which is shown to
            users. It always has the keys `cycles` (the layer alone), `stream_cycles` (the layer
            within its instruction stream), `roofline_cycles`, `space`, `config` and `knobs`.
        order: steps in execution order, each ("segment", number) or ("host", number).
        memory: JSON description of the memory layout.
        bytes: total size of the board's memory that the program uses, in bytes.
        stream_cycles: cycles of all instruction streams together.
        ports: for each segment, the names of the tensors that it takes from the host, and the names
            of the tensors that it returns to the host.
        why_not_bare: reason why the board's own runtime cannot run the artifact without additional
            software; empty if it can.
        runtime_sha256: digest of the sources of that runtime, which are not part of `files`; empty
            if there is no runtime.
    """

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
    """Simulated times of one segment: consecutive layers that run as one instruction stream.

    Attributes:
        total: cycles of the whole segment.
        layers: cycles per layer, from the end of the previous layer to the end of the layer's last
            instruction.
        report: target-specific details, used for plots.
        microjoules: estimated energy in microjoules; None if the target does not estimate energy.
    """

    total: int
    layers: tuple[int, ...]
    report: object
    microjoules: float | None = None


@dataclass(frozen=True)
class LayerCost:
    """Costs of one layer.

    Attributes:
        cycles: cycles of the layer alone, from its launch to its end.
        dram_bytes: bytes that the layer alone transfers from and to memory, including its
            instructions.
        stream_cycles: cycles of the layer within its instruction stream, as in
            `StreamTimes.layers`.
    """

    cycles: int
    dram_bytes: int
    stream_cycles: int


@dataclass(frozen=True)
class StreamCost:
    """Costs of a network on the accelerator, in total and per layer.

    The totals cover all instruction streams: one stream per group of consecutive layers.

    Attributes:
        cycles: total cycles, counted like `Built.stream_cycles`.
        dram_bytes: bytes that are transferred from and to memory.
        layers: the costs of each layer.
    """

    cycles: int
    dram_bytes: int
    layers: tuple[LayerCost, ...]


class StreamTimer(Protocol):
    """Ability to simulate the cycles of a network without writing an artifact.

    The simulated instruction streams are exactly those that a build would write. Lowered layers are
    cached between calls, so timing several networks that share layers is faster than building each
    of them.
    """

    def cost(self, graph: LayerGraph, schedules: Sequence[Pick]) -> StreamCost:
        """Return the costs of a network with given schedules.

        Args:
            graph: the network. Two layers with the same name, workload and tensors are assumed to
                be identical, so that results can be reused.
            schedules: one schedule per layer, in the order of `graph.layers`.

        Returns:
            Cycles and bytes of the whole network, and of each layer.

        Raises:
            WorkloadError: a board could not load the network.
        """


@dataclass(frozen=True)
class LayerCheck:
    """Result of checking one layer against the integer reference.

    Attributes:
        layer: index of the layer.
        values: number of output values that were compared.
        wrong: number of output values that differ.
    """

    layer: int
    values: int
    wrong: int


@dataclass(frozen=True)
class BorderWork:
    """Amount of work of the host before or after a segment of layers that the accelerator runs.

    Attributes:
        packed: number of elements that are converted between the host's layout and the blocked
            layout.
        unfolded_from: number of elements of the images whose patches are rearranged into channels
            (`targets.im2col`).
        unfolded: size of the rearranged images in bytes.
    """

    packed: int = 0
    unfolded_from: int = 0
    unfolded: int = 0


class ImagesInFlight(Protocol):
    """A program that is loaded with separate buffers for several images.

    Different images can therefore be in different segments of the network at the same time.
    """

    @property
    def dram_bytes(self) -> int:
        """Size of all memory pages that the driver allocates for the program, in bytes."""

    def run(self, place: int, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run one segment for one image.

        Args:
            place: index of the image's buffers, starting at 0.
            segment: index of the segment.
            tensors: input tensors by name, as for `BuiltProgram.run`.

        Returns:
            The output tensors of the segment, by name.
        """


@runtime_checkable
class HoldsImages(Protocol):
    """Interface of a program that can process several images in a pipeline.

    It can be loaded with buffers for several images. Constants are shared by all images; each image
    has activations and instructions of its own.
    """

    def with_room(self, images: int) -> ImagesInFlight:
        """Load the program once more, with buffers for several images.

        Args:
            images: number of images to have buffers for.
        """

    def room_bytes(self, images: int) -> int:
        """Return the memory that the program would need with buffers for several images.

        The program is not loaded for this.

        Args:
            images: number of images to have buffers for.

        Returns:
            Size in bytes, equal to `ImagesInFlight.dram_bytes` of the loaded program.
        """

    def border_work(self) -> Sequence[tuple[BorderWork, BorderWork]]:
        """Return the host's work around each segment, a group of consecutive layers.

        Returns:
            One pair per segment: packing work before the segment, and unpacking work after it.
        """


class BuiltProgram(Protocol):
    """Interface of a built program that is loaded into memory.

    The program consists of segments: groups of consecutive layers that run without the host.
    """

    @property
    def ports(self) -> Sequence[tuple[Sequence[Value], Sequence[Value]]]:
        """Inputs and outputs of each segment, in their shapes and types on the host.

        A segment is a group of consecutive layers that run without the host.
        """

    def run(self, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run one segment, a group of consecutive layers that need no work of the host.

        Args:
            segment: index of the segment.
            tensors: input tensors by name, in the shapes and types of the segment's input ports.

        Returns:
            The output tensors by name, in the shapes and types of the segment's output ports.
        """

    def times(self) -> Sequence[StreamTimes]:
        """Return the simulated times of each segment, a group of consecutive layers."""

    def verify(self, seed: int = 0) -> Iterator[LayerCheck]:
        """Compare the outputs of every layer on random data with the integer reference.

        Each layer is run by itself, with its part of the segment's instruction stream.

        Args:
            seed: seed of the random data.

        Yields:
            One result per layer.
        """

    def c_files(self, header: str) -> tuple[str, str] | None:
        """Write the program as C source code.

        Args:
            header: file name of the header that holds the weights.

        Returns:
            The text of a source file with one function per segment, and the text of the header.
            None if the target cannot write C.
        """
