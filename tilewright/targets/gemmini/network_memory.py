"""Memory plan of a network: the location of its tensors, and how the host writes and reads them.

A tensor is stored as rows of channels. The rows are the pixels of an image (n, c, h, w), or all
leading dimensions of any other tensor. Two tensors share memory only if one is a slice of the
channels of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text
from tilewright.targets.artifact_types import LayerGraph
from tilewright.targets.gemmini.lowering.geometry import (
    MEMORY_BASE,
    MEMORY_BYTES,
    PAGE_BYTES,
    aligned_row,
    round_up,
)
from tilewright.targets.gemmini.lowering.memory_layout import Array
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Scale, Value, from_int8, to_int8
from tilewright.targets.tensor_aliasing import lay_out

Form = Literal["image", "rows", "weights"]
"""Arrangement of a tensor in memory as a two-dimensional array.

- `image`: one row per pixel of a tensor of shape (n, c, h, w).
- `rows`: one row per combination of indices of all dimensions but the last.
- `weights`: the transpose of a matrix that a layer uses as weights.
"""


@dataclass(frozen=True)
class TensorPlace:
    """Location and layout of a tensor in memory.

    Attributes:
        form: layout of the tensor: `image` (one row per pixel), `rows` or `weights`.
        at: address of the first row.
        stride: bytes from the start of one row to the start of the next.
        unfold: rearrangement of image patches into channels that is applied before storing, if any.
    """

    form: Form
    at: int
    stride: int
    unfold: Unfold | None = None

    def pack(self, values: NDArray[np.int8]) -> NDArray[np.int8]:
        """Convert a tensor from its own shape to the two-dimensional form in which it is stored.

        Args:
            values: the tensor.

        Returns:
            int8 array of shape (rows, channels).
        """
        if self.unfold is not None:
            values = self.unfold.data(values)
        if self.form == "image":
            return values.transpose(0, 2, 3, 1).reshape(-1, values.shape[1])
        rows = values.reshape(-1, values.shape[-1])
        return rows.T if self.form == "weights" else rows

    def unpack(self, rows: NDArray[np.int8], shape: tuple[int, ...]) -> NDArray[np.int8]:
        """Convert a tensor from its stored form to its own shape; the inverse of `pack`.

        Args:
            rows: the tensor in memory, shape (rows, channels).
            shape: shape of the result.
        """
        if self.form != "image":
            return rows.reshape(shape)
        n, c, h, w = shape
        return rows.reshape(n, h, w, c).transpose(0, 3, 1, 2)

    def size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of rows and channels with which a tensor is stored, without unfolding.

        Args:
            shape: shape of the tensor.
        """
        if self.form == "image":
            return shape[0] * shape[2] * shape[3], shape[1]
        channels = shape[-1] if shape else 1
        return prod(shape) // channels, channels


@dataclass(frozen=True)
class HostTensor:
    """A tensor that the host and the accelerator exchange.

    The host may hold the tensor as float32 and in another shape. The accelerator always holds int8.

    Attributes:
        name: name of the host's tensor.
        shape: shape of the host's tensor.
        dtype: element type of the host's tensor.
        held: shape of the int8 tensor on the accelerator.
        scale: quantisation scale; required for float tensors.
        place: location in the accelerator's memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    held: tuple[int, ...]
    scale: Scale | None
    place: TensorPlace

    @classmethod
    def for_value(
        cls, outside: Value, inside: Value, scale: Scale | None, place: TensorPlace
    ) -> HostTensor:
        """Build the description of an exchanged tensor from its two sides.

        Args:
            outside: the host's tensor.
            inside: the value on the accelerator that corresponds to it.
            scale: quantisation scale of that value.
            place: location of that value in memory.
        """
        return cls(outside.name, outside.shape, outside.dtype, inside.shape, scale, place)

    def load(self, memory: NDArray[np.uint8], tensor: Array) -> None:
        """Quantise a host tensor if necessary, and write it to its place in accelerator memory.

        Args:
            memory: memory image, shape (bytes,); changed in place.
            tensor: the host tensor.
        """
        rows = self.place.pack(to_int8(tensor, self.scale).reshape(self.held))
        self._rows(memory, len(rows))[:, : rows.shape[1]] = rows

    def store(self, memory: NDArray[np.uint8]) -> Array:
        """Read the tensor from accelerator memory, and convert it to the host's shape and type.

        Args:
            memory: memory image, shape (bytes,).
        """
        count, channels = self.place.size(self.held)
        rows = self._rows(memory, count)[:, :channels].copy()
        values = self.place.unpack(rows, self.held)
        return from_int8(np.ascontiguousarray(values), self.scale, self.dtype).reshape(self.shape)

    def _rows(self, memory: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
        return rows_at(memory, self.place.at, count, self.place.stride)

    def to_json(self) -> dict[str, Json]:
        """Return the description as JSON, for `from_json`."""
        step, zero = self.scale or (None, None)
        place, unfold = self.place, self.place.unfold
        return {
            "name": self.name, "shape": list(self.shape), "dtype": self.dtype,
            "held": list(self.held), "step": step, "zero_point": zero, "form": place.form,
            "at": place.at, "stride": place.stride,
            "unfold": None if unfold is None else unfold.to_json(),
        }  # fmt: skip

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> HostTensor:
        """Build a tensor's description from JSON that `to_json` wrote.

        Raises:
            KeyError: a field is missing.
            ValueError: a value is invalid.
            TypeError: a value has the wrong type.
        """
        form = as_text(values["form"])
        if form not in get_args(Form):
            raise ValueError(f"a tensor has the form {form!r:.40}")
        step, unfold = values["step"], values["unfold"]
        scale = None if step is None else Scale(as_number(step), as_int(values["zero_point"]))
        place = TensorPlace(
            cast(Form, form), as_int(values["at"]), as_int(values["stride"]),
            None if unfold is None else Unfold.from_json(as_object(unfold)),
        )  # fmt: skip
        shape, held = (tuple(map(as_int, as_list(values[name]))) for name in ("shape", "held"))
        return HostTensor(
            as_text(values["name"]), shape, as_text(values["dtype"]), held, scale, place
        )


def rows_at(memory: NDArray[np.uint8], at: int, count: int, stride: int) -> NDArray[np.int8]:
    """Return a writable view of consecutive rows in a memory image.

    Args:
        memory: memory image, shape (bytes,), which begins at the address `MEMORY_BASE`.
        at: address of the first row.
        count: number of rows.
        stride: bytes per row.

    Returns:
        int8 array of shape (count, stride).

    Raises:
        ValueError: the rows exceed the memory image.
    """
    first = at - MEMORY_BASE
    if first < 0 or stride < 1 or first + count * stride > len(memory):
        raise ValueError(f"{count} rows of {stride} bytes at {at:#x} extend beyond the memory")
    return memory[first : first + count * stride].view(np.int8).reshape(count, stride)


class MemoryPlan:
    """Allocator of memory for a network's tensors. Addresses ascend from `MEMORY_BASE`."""

    def __init__(self, graph: LayerGraph, without_gaps: Collection[str] = ()) -> None:
        """Create a plan without allocated memory.

        Args:
            graph: the network.
            without_gaps: names of values whose rows follow one another directly, so that a layer
                can read several rows as one. Rows are whole blocks of 16 channels. Rows of other
                values may be padded further, so that each row can begin with a memory request.
        """
        self._values, self._without_gaps = graph.values, frozenset(without_gaps)
        self._places: dict[tuple[str, Form, Unfold | None], TensorPlace] = {}
        self._groups: dict[str, dict[str, int]] = {}
        for group in lay_out(
            (channel_slice.part, channel_slice.whole, channel_slice.first)
            for channel_slice in graph.slices
        ):
            self._groups |= dict.fromkeys(group, group)
        self.end = MEMORY_BASE

    def room(self, size: int) -> int:
        """Allocate the next free range of memory, in whole pages.

        Args:
            size: number of bytes.

        Returns:
            Address of the range.

        Raises:
            WorkloadError: the memory is exhausted.
        """
        at = self.end
        self.end += round_up(max(size, 1), PAGE_BYTES)
        if self.end > MEMORY_BASE + MEMORY_BYTES:
            raise WorkloadError(
                f"the network needs more than the {MEMORY_BYTES >> 20} MiB of the machine's "
                "memory; keep layers on the CPU with --keep-float, or build parts of the "
                "network"
            )
        return at

    def place(self, name: str, form: Form, unfold: Unfold | None = None) -> TensorPlace:
        """Return the location of a value in memory. Memory is allocated at the first call.

        Args:
            name: name of the value.
            form: layout of the value: `image`, `rows` or `weights`. A value can be stored in
                several layouts, each at its own location.
            unfold: rearrangement of image patches into channels that is applied before storing, if
                any.

        Raises:
            WorkloadError: the memory is exhausted.
        """
        key = (name, form, unfold)
        if key not in self._places:
            self._places[key] = self._allocate_place(name, form, unfold)
        return self._places[key]

    def _row_bytes(self, names: Collection[str], channels: int) -> int:
        """Return the distance in bytes between two rows of a stored value.

        Args:
            names: names of all values that are stored in these rows. Slices of a value share its
                rows.
            channels: number of channels of a row.
        """
        return round_up(channels) if self._without_gaps & set(names) else aligned_row(channels)

    def __contains__(self, key: tuple[str, Form, Unfold | None]) -> bool:
        return key in self._places

    def _allocate_place(self, name: str, form: Form, unfold: Unfold | None) -> TensorPlace:
        shape = self._values[name].shape
        if unfold is not None:
            channels, pixels = unfold.channels(shape[1]), shape[0] * unfold.height * unfold.width
            stride = aligned_row(channels)
            return TensorPlace(form, self.room(pixels * stride), stride, unfold)
        rows, channels = TensorPlace(form, 0, 0).size(shape)
        if form == "weights":
            stride = aligned_row(rows)
            return TensorPlace(form, self.room(round_up(channels) * stride), stride)
        group = self._groups.get(name)
        if group is None:
            stride = self._row_bytes((name,), channels)
            return TensorPlace(form, self.room(rows * stride), stride)
        sizes = {
            member: TensorPlace(form, 0, 0).size(self._values[member].shape)[1] for member in group
        }
        stride = self._row_bytes(
            group, max(first + sizes[member] for member, first in group.items())
        )
        at = self.room(rows * stride)
        for member, first in group.items():
            self._places[member, form, None] = TensorPlace(form, at + first, stride)
        return replace(self._places[name, form, None])
