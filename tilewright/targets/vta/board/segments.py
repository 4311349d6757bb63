"""Decides which layers run as one segment, and which tensors the host packs and unpacks around it.

It also finds how long each tensor is in use.
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
"""A tensor with its place in memory: name, `Packing.place`, how it is unfolded."""


@dataclass(eq=False)
class BoardTensor:
    """A packed tensor in memory, in use from step `first` to step `last` (layers and host steps
    count alike). `loaded` and `stored` are the segments before and after which the host packs and
    unpacks it; -1 for none."""

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
    """A layer's program with the tensors it works on, by the names of its regions."""

    program: LayerProgram
    at: int
    tensors: dict[str, BoardTensor]


@dataclass(eq=False)
class StreamRun:
    """The layers of one segment."""

    layers: list[Placed] = field(default_factory=list)
    loads: list[BoardTensor] = field(default_factory=list)
    stores: list[BoardTensor] = field(default_factory=list)


@dataclass(eq=False)
class BoardNetwork:
    """Segments in the order they run with, in between, the host's steps: of an entry (segment,
    host step) one is -1."""

    runs: list[StreamRun]
    order: list[tuple[int, int]]
    tensors: list[BoardTensor]
    inside: list[tuple[BoardTensor, BoardTensor, int]] = field(default_factory=list)
    """Tensors that lie inside others, so many blocks behind their begin."""


def network_of(
    steps: Sequence[LayerProgram | HostStep], values: Mapping[str, Value], outputs: Sequence[str],
    slices: Sequence[ChannelSlice] = (),
) -> BoardNetwork:  # fmt: skip
    """Cut a network into segments: at each step of the host, and where a layer needs a tensor in
    another form than the layer before it left it in. Raises `WorkloadError` for `slices` that do
    not lie in one piece of memory."""
    made = _Maker(values, slices)
    host = 0
    for at, step in enumerate(steps):
        if isinstance(step, LayerProgram):
            made.layer(step, at)
        else:
            made.close()
            for name in step.reads:
                made.store(name)
            made.network.order.append((-1, host))
            host += 1
    made.close()
    for name in outputs:
        made.store(name)
    return made.network


class _Maker:
    """A network as far as it has been cut."""

    def __init__(self, values: Mapping[str, Value], slices: Sequence[ChannelSlice]) -> None:
        self.values = values
        self.touching: dict[str, list[ChannelSlice]] = {}
        for each in slices:
            self.touching.setdefault(each.part, []).append(each)
            self.touching.setdefault(each.whole, []).append(each)
        self.network = BoardNetwork([], [], [])
        self.known: dict[Key, BoardTensor] = {}
        self.made: dict[str, BoardTensor] = {}  # by a layer
        self.open = False
        self.begun = 0

    def layer(self, program: LayerProgram, at: int) -> None:
        """Add a layer, in a new segment if the host has to repack a tensor before it."""
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
            made = self.made.get(name)
            fresh = _key(name, packing, unfold) not in self.known
            if self.open and fresh and made is not None and made.segment == here:
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
        """End the present segment."""
        self.open = False

    def store(self, name: str) -> None:
        """The host unpacks a tensor that a layer made, after its segment."""
        tensor = self.made.get(name)
        if tensor is not None and tensor.stored < 0:
            run = self.network.runs[tensor.segment]
            tensor.stored = tensor.segment
            tensor.last = max(tensor.last, run.layers[-1].at)
            run.stores.append(tensor)

    def _wanted(self, name: str, packing: Packing, unfold: Unfold | None, at: int) -> BoardTensor:
        key = _key(name, packing, unfold)
        found = self.known.get(key)
        if found is None:
            self.store(name)
            here = len(self.network.runs) - 1
            found = BoardTensor(self.values[name], packing, unfold, self.begun, at, loaded=here)
            self.known[key] = found
            self.network.tensors.append(found)
            self.network.runs[-1].loads.append(found)
        found.last = max(found.last, at)
        return found

    def _output(self, program: LayerProgram, at: int) -> BoardTensor:
        name = program.layer.output
        tensor = self._made(name, program.output, at)
        done, waiting = {name}, [tensor]
        while waiting:
            own = waiting.pop()
            for each in self.touching.get(own.value.name, ()):
                known = own.value.name == each.part
                other = each.whole if known else each.part
                if other not in done:
                    done.add(other)
                    waiting.append(self._beside(each, own, known, at))
        return tensor

    def _made(self, name: str, packing: Packing, at: int) -> BoardTensor:
        """A tensor that a layer writes, or the part or whole of one that does."""
        here = len(self.network.runs) - 1
        tensor = self.made.get(name)
        if tensor is None or _key(name, packing, None) not in self.known:
            tensor = BoardTensor(self.values[name], packing, None, at, at)
            self.made[name] = tensor
            self.known[_key(name, packing, None)] = tensor
            self.network.tensors.append(tensor)
        tensor.segment, tensor.last = here, max(tensor.last, at)
        return tensor

    def _beside(self, each: ChannelSlice, own: BoardTensor, is_part: bool, at: int) -> BoardTensor:
        """The tensor on the other side of a slice, which is written with `own`."""
        block, packing = own.packing.block, own.packing
        if packing.batches != 1 or packing.form == "weights" or each.first % block:
            raise WorkloadError(
                f"{each.part} does not lie in one piece of {each.whole}: of an image alone, whole "
                f"blocks of {block} channels do; leave out what joins them"
            )
        shape = self.values[each.whole if is_part else each.part].shape
        blocks = -(-shape[channel_axis(shape)] // block)
        other = self._made(
            each.whole if is_part else each.part, replace(packing, blocks=blocks), at
        )
        pair = (own, other, each.first // block) if is_part else (other, own, each.first // block)
        if not any(pair[0] is a and pair[1] is b for a, b, _ in self.network.inside):
            self.network.inside.append(pair)
        return other


def _key(name: str, packing: Packing, unfold: Unfold | None) -> Key:
    return name, packing.place, unfold
