"""Divides a network into segments: sequences of layers that each run as one instruction stream.

The module also determines which tensors the host packs before a segment and unpacks after it, and
during which steps each tensor is in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core.errors import WorkloadError
from tilewright.targets.artifact_types import HostStep
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import ChannelSlice, Value, channel_axis
from tilewright.targets.vta.board.layer_program import LayerProgram
from tilewright.targets.vta.board.layouts import Packing

Key = tuple[str, tuple[int, ...], Unfold | None]
"""Identity of a tensor in memory: its name, its position in the packed layout (`Packing.place`),
and how it is unfolded (im2col), if at all."""


@dataclass(eq=False)
class BoardTensor:
    """Packed tensor in memory, with the range of steps in which it is in use.

    A step is one layer or one step of the host; steps are numbered in execution order.

    Attributes:
        value: the tensor.
        packing: memory layout of the tensor.
        unfold: rearrangement before packing, if any.
        first: first step in which the tensor is in use.
        last: last step in which the tensor is in use.
        loaded: index of the segment before which the host packs the tensor; -1 if the host does not
            pack it.
        stored: index of the segment after which the host unpacks the tensor; -1 if the host does
            not unpack it.
        segment: index of the segment that last wrote the tensor; -1 for none.
    """

    value: Value
    packing: Packing
    unfold: Unfold | None
    first: int
    last: int
    loaded: int = -1
    stored: int = -1
    segment: int = -1


@dataclass(eq=False)
class Placed:
    """A layer's program with the tensors in memory that it accesses.

    Attributes:
        program: the lowered layer.
        at: index of the layer in the network; layers and host steps are counted together.
        tensors: the tensors by region name, such as "data" and "output".
    """

    program: LayerProgram
    at: int
    tensors: dict[str, BoardTensor]


@dataclass(eq=False)
class StreamRun:
    """The layers of one segment, which run as one instruction stream, and the segment's tensors.

    Attributes:
        layers: the layers, in execution order.
        loads: tensors that the host packs before the segment.
        stores: tensors that the host unpacks after the segment.
    """

    layers: list[Placed] = field(default_factory=list)
    loads: list[BoardTensor] = field(default_factory=list)
    stores: list[BoardTensor] = field(default_factory=list)


@dataclass(eq=False)
class BoardNetwork:
    """Network that is divided into segments, each of which runs as one instruction stream.

    Attributes:
        runs: the segments.
        order: (segment, host step) in execution order; one of the two indices is -1.
        tensors: all tensors.
        inside: (part, whole, blocks) for each tensor that is stored inside another tensor; `blocks`
            is the offset of the part in blocks of channels.
    """

    runs: list[StreamRun]
    order: list[tuple[int, int]]
    tensors: list[BoardTensor]
    inside: list[tuple[BoardTensor, BoardTensor, int]] = field(default_factory=list)


def network_of(
    steps: Sequence[LayerProgram | HostStep], values: Mapping[str, Value], outputs: Sequence[str],
    slices: Sequence[ChannelSlice] = (),
) -> BoardNetwork:  # fmt: skip
    """Divide a network into segments.

    A new segment begins after each host step, and wherever a layer needs a tensor in a different
    layout from the one that the previous layer wrote.

    Args:
        steps: lowered layers and host steps, in order.
        values: all tensors, by name.
        outputs: names of the network's outputs.
        slices: tensors that are ranges of other tensors' channels.

    Raises:
        WorkloadError: a range of channels is not contiguous in memory.
    """
    maker = _Maker(values, slices)
    host = 0
    for at, step in enumerate(steps):
        if isinstance(step, LayerProgram):
            maker.layer(step, at)
        else:
            maker.close()
            for name in step.reads:
                maker.store(name)
            maker.network.order.append((-1, host))
            host += 1
    maker.close()
    for name in outputs:
        maker.store(name)
    return maker.network


class _Maker:
    """Builder that divides a network into segments; layers are added in execution order."""

    def __init__(self, values: Mapping[str, Value], slices: Sequence[ChannelSlice]) -> None:
        self.values = values
        self.touching: dict[str, list[ChannelSlice]] = {}
        for channel_slice in slices:
            self.touching.setdefault(channel_slice.part, []).append(channel_slice)
            self.touching.setdefault(channel_slice.whole, []).append(channel_slice)
        self.network = BoardNetwork([], [], [])
        self.known: dict[Key, BoardTensor] = {}
        self.made: dict[str, BoardTensor] = {}  # tensors that a layer writes, by name
        self.open = False
        self.begun = 0

    def layer(self, program: LayerProgram, at: int) -> None:
        """Append a layer to the current segment, which runs as one instruction stream.

        A new segment begins if no segment is open, or if the host first has to repack a tensor that
        the current segment writes.

        Args:
            program: the lowered layer.
            at: index of the layer in the network; layers and host steps are counted together.
        """
        layer = program.layer
        wanted = [("data", layer.data, program.data, layer.unfold)]
        if layer.residual is not None:
            wanted.append(("residual", layer.residual, program.residual, None))
        if layer.shortcut is not None:
            wanted.append(("shortcut", layer.shortcut.data, program.shortcut, None))
        if layer.weight_from is not None:
            wanted.append(("weights", layer.weight_from, program.packed_weights, None))
        here = len(self.network.runs) - 1
        for _, name, packing, unfold in wanted:
            existing = self.made.get(name)
            fresh = _key(name, packing, unfold) not in self.known
            if self.open and fresh and existing is not None and existing.segment == here:
                self.close()
        if not self.open:
            self.network.runs.append(StreamRun())
            self.network.order.append((len(self.network.runs) - 1, -1))
            self.open, self.begun = True, at
        tensors = {
            role: self._wanted(name, packing, unfold, at) for role, name, packing, unfold in wanted
        }
        tensors["output"] = self._output(program, at)
        self.network.runs[-1].layers.append(Placed(program, at, tensors))

    def close(self) -> None:
        """End the current segment; the next layer begins a new segment."""
        self.open = False

    def store(self, name: str) -> None:
        """Let the host unpack a tensor after the segment of layers that writes it.

        Nothing changes if no layer writes the tensor, or if the host already unpacks it.

        Args:
            name: name of the tensor.
        """
        tensor = self.made.get(name)
        if tensor is not None and tensor.stored < 0:
            run = self.network.runs[tensor.segment]
            tensor.stored = tensor.segment
            tensor.last = max(tensor.last, run.layers[-1].at)
            run.stores.append(tensor)

    def _wanted(self, name: str, packing: Packing, unfold: Unfold | None, at: int) -> BoardTensor:
        key = _key(name, packing, unfold)
        tensor = self.known.get(key)
        if tensor is None:
            self.store(name)
            here = len(self.network.runs) - 1
            tensor = BoardTensor(self.values[name], packing, unfold, self.begun, at, loaded=here)
            self.known[key] = tensor
            self.network.tensors.append(tensor)
            self.network.runs[-1].loads.append(tensor)
        tensor.last = max(tensor.last, at)
        return tensor

    def _output(self, program: LayerProgram, at: int) -> BoardTensor:
        name = program.layer.output
        tensor = self._made(name, program.output, at)
        done, waiting = {name}, [tensor]
        while waiting:
            current = waiting.pop()
            for channel_slice in self.touching.get(current.value.name, ()):
                is_part = current.value.name == channel_slice.part
                other = channel_slice.whole if is_part else channel_slice.part
                if other not in done:
                    done.add(other)
                    waiting.append(self._beside(channel_slice, current, is_part, at))
        return tensor

    def _made(self, name: str, packing: Packing, at: int) -> BoardTensor:
        """Record that the current segment writes a tensor, and return the tensor.

        A layer may also write the tensor by writing another tensor that contains it or is a part of
        it.

        Args:
            name: name of the tensor.
            packing: memory layout in which the layer writes the tensor.
            at: index of the layer in the network.
        """
        here = len(self.network.runs) - 1
        tensor = self.made.get(name)
        if tensor is None or _key(name, packing, None) not in self.known:
            tensor = BoardTensor(self.values[name], packing, None, at, at)
            self.made[name] = tensor
            self.known[_key(name, packing, None)] = tensor
            self.network.tensors.append(tensor)
        tensor.segment, tensor.last = here, max(tensor.last, at)
        return tensor

    def _beside(
        self, cut: ChannelSlice, tensor: BoardTensor, is_part: bool, at: int
    ) -> BoardTensor:
        """Record that a layer that writes one tensor of a slice also writes the other tensor.

        A slice relates two tensors: the whole, and a part that is a range of the whole's channels.

        Args:
            cut: the slice.
            tensor: the tensor that the layer writes.
            is_part: whether `tensor` is the part.
            at: index of the layer in the network.

        Returns:
            The other tensor of the slice.

        Raises:
            WorkloadError: the part is not contiguous in memory.
        """
        block, packing = tensor.packing.block, tensor.packing
        if packing.batches != 1 or packing.form == "weights" or cut.first % block:
            raise WorkloadError(
                f"{cut.part} is not contiguous in {cut.whole}: only whole blocks of {block} "
                "channels of a single image are; export the model without the operators "
                "that join them"
            )
        shape = self.values[cut.whole if is_part else cut.part].shape
        blocks = -(-shape[channel_axis(shape)] // block)
        other = self._made(
            cut.whole if is_part else cut.part,
            replace(packing, blocks=blocks),
            at,
        )
        pair = (
            (tensor, other, cut.first // block) if is_part else (other, tensor, cut.first // block)
        )
        if not any(pair[0] is a and pair[1] is b for a, b, _ in self.network.inside):
            self.network.inside.append(pair)
        return other


def _key(name: str, packing: Packing, unfold: Unfold | None) -> Key:
    return name, packing.place, unfold
