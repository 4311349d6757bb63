"""Find concatenations and slices that need no copy, because one tensor is part of another tensor.

In memory, the channel blocks of an image follow one another. Concatenating or slicing channels at
block boundaries therefore only changes addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.core.tvm_types import RelaxExpr
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import ChannelSlice, Value, channel_axis
from tilewright.targets.tensor_aliasing import find_overlap, lay_out

if TYPE_CHECKING:
    from tilewright.networks.relax.bindings import Binding

Shape = tuple[int, ...]


class Slices:
    """Record of the tensors of a network that are part of other tensors in memory.

    Args:
        values: all tensors by name. The caller adds tensors during the extraction.
        host: names of the tensors that no layer writes. The caller adds names during the
            extraction.
        blocks: block sizes of the accelerator.
    """

    def __init__(self, values: Mapping[str, Value], host: Collection[str], blocks: Blocks) -> None:
        self._values = values
        self._host = host
        self._blocks = blocks
        self._made_of: dict[str, tuple[str, ...]] = {}
        self._by: dict[str, list[ChannelSlice]] = {}

    def add_concatenation(self, whole: Value, parts: Iterable[str]) -> bool:
        """Register a tensor as the concatenation of other tensors, if it needs no copy.

        Args:
            whole: the concatenated tensor.
            parts: names of the tensors that are concatenated, in the order of their channels.

        Returns:
            Whether the concatenation was registered.
        """
        names = tuple(parts)
        new, first = [], 0
        for name in names:
            new.append(ChannelSlice(name, whole.name, first))
            shape = self._values[name].shape
            first += shape[channel_axis(shape)]
        return self._note(new, whole, names)

    def add_range(self, part: Value, whole: str, first: int) -> bool:
        """Register a tensor as a range of channels of another tensor, if it needs no copy.

        Args:
            part: the tensor.
            whole: name of the tensor that contains it.
            first: index of the range's first channel in `whole`.

        Returns:
            Whether the range was registered.
        """
        return self._note([ChannelSlice(part.name, whole, first)], part, (whole,))

    def sources(self, names: Iterable[str]) -> set[str]:
        """Return the computed tensors that are needed so that other tensors exist.

        Args:
            names: names of the other tensors.

        Returns:
            The names, in which each registered concatenation or slice is replaced by the tensors of
            which it consists.
        """
        result: set[str] = set()
        for name in names:
            made_of = self._made_of.get(name)
            result |= {name} if made_of is None else self.sources(made_of)
        return result

    def leading_to(self, read: Iterable[str]) -> tuple[ChannelSlice, ...]:
        """Return the registered slices on which tensors depend, directly or indirectly.

        Args:
            read: names of the tensors.
        """
        wanted: set[str] = set()
        waiting = [name for name in read if name in self._made_of]
        while waiting:
            name = waiting.pop()
            if name not in wanted:
                wanted.add(name)
                waiting += [item for item in self._made_of[name] if item in self._made_of]
        return tuple(item for name in self._made_of if name in wanted for item in self._by[name])

    def _note(self, new: list[ChannelSlice], made: Value, of: tuple[str, ...]) -> bool:
        """Register a concatenation or slice if all tensors can then still be placed in memory.

        Args:
            new: one entry per pair of a tensor and the tensor that contains it.
            made: the tensor that the concatenation or slice writes.
            of: names of the tensors that the concatenation or slice reads.

        Returns:
            Whether it was registered.
        """
        if len(set(of)) < len(of) or self.sources(of) & set(self._host):
            return False
        shapes = {name: value.shape for name, value in self._values.items()}
        shapes[made.name] = made.shape
        together = [*(item for made in self._by.values() for item in made), *new]
        touched = {name for item in together for name in (item.part, item.whole)}
        written = touched - self._made_of.keys() - {made.name}
        if not fit(together, shapes, written, self._blocks):
            return False
        self._made_of[made.name], self._by[made.name] = of, new
        return True


def fit(
    slices: Iterable[ChannelSlice], shapes: Mapping[str, Shape], written: Collection[str],
    blocks: Blocks,
) -> bool:  # fmt: skip
    """Return whether all tensors can be placed in memory as the slices require.

    Each tensor needs a single position at a block boundary, and tensors that layers write must not
    overlap.

    Args:
        slices: pairs of a tensor and the tensor that contains it, with the channel at which it
            begins.
        shapes: shape of each tensor, by name.
        written: names of the tensors that layers write.
        blocks: block sizes of the accelerator.
    """
    slices = list(slices)
    block = blocks.out_channels
    if blocks.in_channels != block or any(slice_.first % block for slice_ in slices):
        return False
    if not all(_differ_in_channels(shapes[e.part], shapes[e.whole], blocks) for e in slices):
        return False
    try:
        groups = lay_out((slice_.part, slice_.whole, slice_.first) for slice_ in slices)
    except ValueError:
        return False
    sizes = {name: _whole_blocks(shapes[name], block) for name in written}
    return all(find_overlap(group, sizes) is None for group in groups)


def channels_of(binding: Binding, shape: Shape) -> tuple[int, int] | None:
    """Return the range of channels that a strided slice selects.

    Args:
        binding: the strided slice.
        shape: shape of the tensor that is sliced.

    Returns:
        Index of the first channel and of the channel after the last one. None if the slice is not a
        contiguous range of channels with constant bounds.
    """
    args: Sequence[RelaxExpr] = binding.value.args
    known = [_integers(arg) for arg in args[1:]]
    fields = [numbers for numbers in known if numbers is not None]
    if len(fields) < max(3, len(known)) or len(fields[0]) != 1:
        return None
    axis, begin, end = (field[0] for field in fields[:3])
    if len(fields) > 3 and fields[3] != [1]:
        return None
    if axis % len(shape) != channel_axis(shape):
        return None
    size = shape[axis]
    return begin % size if begin < 0 else begin, min(end % size if end < 0 else end, size)


def _integers(numbers: RelaxExpr) -> list[int] | None:
    """Return the elements of a tuple of integers as a list.

    Args:
        numbers: the tuple as a Relax expression.

    Returns:
        The integers, or None if an element is not constant.
    """
    integers = [_integer(field) for field in numbers.fields]
    known = [number for number in integers if number is not None]
    return known if len(known) == len(integers) else None


def _integer(value: RelaxExpr) -> int | None:
    result = getattr(value, "value", None)
    result = getattr(result, "value", result)
    return int(result) if result is not None else None


def _differ_in_channels(part: Shape, whole: Shape, blocks: Blocks) -> bool:
    """Return whether a tensor can be a range of channels of another tensor, judged by their shapes.

    The shapes may differ only in the number of channels, and the channel blocks of the larger
    tensor must be contiguous in memory.

    Args:
        part: shape of the smaller tensor.
        whole: shape of the larger tensor.
        blocks: block sizes of the accelerator.
    """
    axis = channel_axis(whole)
    if len(part) != len(whole) or (len(whole) == 4 and whole[0] > blocks.batch):
        return False
    return all(a == b for at, (a, b) in enumerate(zip(part, whole, strict=True)) if at != axis)


def _whole_blocks(shape: Shape, block: int) -> int:
    return -(-shape[channel_axis(shape)] // block) * block
