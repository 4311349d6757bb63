"""Let kernels read and write tensors in place that the network would otherwise rearrange first.

Permuted axes: attention splits the columns of a dense layer into heads and moves the heads axis to
the front. After the products, it moves the axis back. Both steps copy all data. The kernel of a
batched product can access the unpermuted tensor instead.

Frames of volumes: to compute a window along the depth axis of a volume, `networks.onnx.volumes`
gathers the frames under the window into one image. Each frame is therefore copied once per tap
(position in the window). A kernel that copies its data into a padded buffer anyway can read each
block of channels directly from its frame. Frames in the padding are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from numpy.typing import NDArray
from tvm import s_tir, tirx
from tvm.ir import IRModule, TensorLoad
from tvm.ir.transform import Sequential

from tilewright.core.tvm_types import (
    BufferLoad,
    BufferStore,
    Expression,
    Place,
    PrimFunc,
    RelaxVar,
    Statement,
    TirBuffer,
)
from tilewright.networks.compiled.layers import KernelLayer
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.networks.relax.constants import value_of
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

# -- moved axes --------------------------------------------------------------------------------


MOVED = "relax.permute_dims"
SHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")
"""Operators that change the shape of a tensor without moving its elements."""

FindPlace = Callable[[Place], Place]
"""Function that maps the indices of an element in one buffer to its indices in another buffer."""


@dataclass(frozen=True)
class MovedAxes:
    """Permutation of a tensor's axes that the network applies before or after a product.

    The last axis always stays last, so that vectors are contiguous.

    Attributes:
        shape: shape of the tensor in memory.
        axes: permutation from the tensor in memory to the tensor that the product reads or writes.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def moved(self) -> tuple[int, ...]:
        """The shape of the tensor as the product reads or writes it."""
        return tuple(self.shape[axis] for axis in self.axes)

    def fits(self, wanted: Sequence[int]) -> bool:
        """Return whether a product can use this tensor in place.

        Args:
            wanted: shape (batch, rows, columns) that the product expects.
        """
        *batch, rows, columns = self.moved
        stays = self.axes[-1] == len(self.axes) - 1
        return stays and (math.prod(batch), rows, columns) == tuple(wanted)

    def place(self, indices: Place) -> list[Expression]:
        """Convert indices of the product's operand or result to indices of the tensor in memory.

        Args:
            indices: indices of the batch, the row and the column, as TensorIR expressions.

        Returns:
            One expression per axis of `shape`.
        """
        rest, batch_indices = indices[0], []
        for size in reversed(self.moved[:-2]):
            batch_indices.append(tirx.indexmod(rest, size) if size > 1 else tirx.const(0, "int32"))
            rest = tirx.indexdiv(rest, size) if size > 1 else rest
        known = [*batch_indices[::-1], *indices[1:]]
        return [known[self.axes.index(axis)] for axis in range(len(self.axes))]


def moved_operand(flat: FlatGraph, var: RelaxVar) -> tuple[RelaxVar, MovedAxes] | None:
    """Return the tensor from which an operand is permuted, and the permutation.

    Args:
        flat: the network.
        var: variable of the operand.

    Returns:
        The variable before the permutation, and the permutation. None if the axes of the operand
        are not permuted.
    """
    binding = flat.by_var.get(var)
    while binding is not None and binding.op in SHAPES:
        binding = flat.by_var.get(binding.args[0])
    return _moved_axes(binding) if binding is not None and binding.op == MOVED else None


def moved_result(flat: FlatGraph, result: Binding) -> tuple[Binding, MovedAxes] | None:
    """Return the operator that permutes the axes of a result, and the permutation.

    Args:
        flat: the network.
        result: the operator that writes the result.

    Returns:
        The operator, and the permutation in which `MovedAxes.shape` is the shape after the
        operator. None if the result is not permuted or has other readers.
    """
    user = flat.sole_user(result.var)
    if user is None or user.op != MOVED or user.shape is None:
        return None
    if any(var.same_as(result.var) for var in _results(flat)):
        return None
    _, permutation = _moved_axes(user) or (None, None)
    if permutation is None:
        return None
    inverse = tuple(permutation.axes.index(axis) for axis in range(len(permutation.axes)))
    return user, MovedAxes(user.shape, inverse)


def _results(flat: FlatGraph) -> Sequence[RelaxVar]:
    return tuple(variables(flat.module["main"].body.body))


def _moved_axes(binding: Binding) -> tuple[RelaxVar, MovedAxes] | None:
    shape, axes = shape_of(binding.args[0]), binding.value.attrs.axes
    if shape is None or axes is None or len(shape) < 3:
        return None
    return binding.args[0], MovedAxes(shape, tuple(int(axis) % len(shape) for axis in axes))


def on_moved(function: PrimFunc, moved: Sequence[tuple[int, MovedAxes]]) -> PrimFunc:
    """Rewrite a kernel's function so that it reads and writes tensors with permuted axes in place.

    Args:
        function: the kernel's function.
        moved: (parameter number, permutation) of each parameter whose axes the network permutes.

    Returns:
        The rewritten function, in which these parameters have the shape of the tensor in memory.
    """
    params, body = list(function.params), function.body
    for number, axes in moved:
        old = params[number]
        new = tirx.decl_buffer(axes.shape, old.dtype, name=str(old.name))
        body = redirect_accesses(body, old, new, axes.place)
        params[number] = new
    return tirx.PrimFunc(params, body, function.ret_type).with_attrs(function.attrs)


def redirect_accesses(
    body: Statement, old: TirBuffer, new: TirBuffer, place: FindPlace
) -> Statement:
    """Return a statement in which all accesses to one buffer are redirected to another buffer.

    Args:
        body: the statement.
        old: the buffer to replace.
        new: the buffer that replaces it.
        place: function that maps indices of the old buffer to indices of the new buffer.
    """

    def load(access: BufferLoad) -> Expression:
        if not access.source.same_as(old):
            return access
        return tirx.BufferLoad(new, list(place(access.indices)))

    def store(access: BufferStore) -> Statement:
        if not access.buffer.same_as(old):
            return access
        return tirx.BufferStore(new, access.value, list(place(access.indices)))

    return tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])


# -- frames of volumes -------------------------------------------------------------------------


TAKE, WHERE, RESHAPE = "relax.take", "relax.where", "relax.reshape"


@dataclass(frozen=True, eq=False)
class FrameTaps:
    """Description of images that are gathered from the frames of a volume.

    An image has taps · c channels, where tap t contains the c channels of one frame. Tap t of image
    n is frame number `first` + `step` · n + `apart` · t, or zeros if there is no frame with this
    number.

    Attributes:
        source: variable of the frames (frames, c, h, w).
        shape: shape of the frames.
        first: number of the frame that is the first tap of the first image.
        step: distance in frames between consecutive images.
        apart: distance in frames between consecutive taps.
        inside: variables of the operators that gather the frames.
    """

    source: RelaxVar
    shape: tuple[int, ...]
    first: int
    step: int
    apart: int
    inside: Sequence[RelaxVar]


def frame_taps(
    flat: FlatGraph, layers: Sequence[KernelLayer], kernels: Mapping[Workload, KernelCode]
) -> dict[RelaxVar, FrameTaps]:
    """Find the gathered images that kernels can read directly from frames.

    Args:
        flat: the network.
        layers: the layers with kernels.
        kernels: code of the kernel of each workload.

    Returns:
        The description of each gathered image, by variable of the image.
    """
    taps_by_data = {}
    for layer in layers:
        code = kernels[layer.workload]
        # Only kernels with padding copy their data.
        if layer.workload.pad_top or layer.workload.pad_left:
            taps = _taps(flat, layer.data)
            if taps is not None and code.data_block and taps.shape[1] % code.data_block == 0:
                taps_by_data[layer.data] = taps
    return taps_by_data


def _taps(flat: FlatGraph, data: RelaxVar) -> FrameTaps | None:
    chain, mask, var, shape = [], None, data, shape_of(data)
    if (beside := _single_reader(flat, var, RESHAPE)) is not None:
        var = beside.args[0]
        chain.append(beside)
    if (chosen := _single_reader(flat, var, WHERE)) is not None:
        which, var, other = chosen.args
        mask, zero = value_of(flat, which), value_of(flat, other)
        if mask is None or zero is None or zero.any():
            return None
        chain.append(chosen)
    places = None
    if (taken := _single_reader(flat, var, TAKE)) is not None:
        places = value_of(flat, taken.args[1])
        if places is None or taken.value.attrs.axis != 0 or places.ndim != 1:
            return None
        var = taken.args[0]
        chain.append(taken)
    source = shape_of(var)
    if mask is None and places is None:
        return None
    if source is None or shape is None or len(source) != 4 or len(shape) != 4:
        return None
    if shape[1] % source[1] or shape[2:] != source[2:]:
        return None
    count = shape[0], shape[1] // source[1]
    frames = np.arange(source[0]) if places is None else places
    # A model's own indices may count from the end, and its mask may select single pixels.
    mask_fits = mask is None or mask.shape == (frames.size, 1, 1, 1)
    whole = frames.size == count[0] * count[1] and mask_fits
    if not whole or frames.min() < 0:
        return None
    known = np.ones(frames.size, bool) if mask is None else mask.astype(bool).ravel()
    line = _line(np.where(known, frames, -1).reshape(count), source[0])
    return None if line is None else FrameTaps(var, source, *line, [step.var for step in chain])


def _single_reader(flat: FlatGraph, var: RelaxVar, operator: str) -> Binding | None:
    """Return the operator that writes a variable, if it has the given type and a single reader.

    Args:
        flat: the network.
        var: the variable.
        operator: expected operator name, such as "relax.reshape".

    Returns:
        The operator. None if it has another name, or if the variable has several readers or is a
        result of the network.
    """
    binding = flat.by_var.get(var)
    results = variables(flat.module["main"].body.body)
    if binding is None or binding.op != operator or any(map(var.same_as, results)):
        return None
    return None if flat.sole_user(var) is None else binding


def _line(places: NDArray[np.int64], frames: int) -> tuple[int, int, int] | None:
    """Describe frame numbers that are evenly spaced by three numbers.

    Args:
        places: frame number of each tap (position in the window along the depth axis) of each
            gathered image, of shape (images, taps); −1 stands for padding.
        frames: number of frames in the volume.

    Returns:
        The values `first`, `step` and `apart` of `FrameTaps`, or None if the frame numbers are not
        evenly spaced.
    """
    step, apart = (_difference(places, axis) for axis in (0, 1))
    if step is None or apart is None or (places < 0).all():
        return None
    images, taps = np.indices(places.shape)
    firsts = (places - step * images - apart * taps)[places >= 0]
    expected = firsts[0] + step * images + apart * taps
    expected = np.where((expected >= 0) & (expected < frames), expected, -1)
    return (int(firsts[0]), step, apart) if np.array_equal(expected, places) else None


def _difference(places: NDArray[np.int64], axis: int) -> int | None:
    """Return the difference of the first two known neighbouring frame numbers along an axis.

    Args:
        places: frame numbers of shape (images, taps); −1 stands for padding.
        axis: 0 to compare images, 1 to compare taps.

    Returns:
        The difference. 0 if the axis has a single element. None if no two neighbours are known.
    """
    if places.shape[axis] == 1:
        return 0
    before, behind = (places.take(range(*ends), axis) for ends in _pairs(places.shape[axis]))
    known = (behind - before)[(before >= 0) & (behind >= 0)]
    return int(known[0]) if known.size else None


def _pairs(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, size - 1), (1, size)


def reading_frames(function: PrimFunc, taps: FrameTaps) -> PrimFunc:
    """Rewrite a kernel's function so that it reads packed frames instead of gathered images.

    Args:
        function: the kernel's function.
        taps: description of the gathered images. The new data parameter has the shape (frames, c /
            block, h, w, block).

    Returns:
        The rewritten function.
    """
    function = _in_loops(function)
    old, *other_params = function.params
    block = int(old.shape[4])
    frames, channels, height, width = taps.shape
    new = tirx.decl_buffer(
        (frames, channels // block, height, width, block), old.dtype, name=str(old.name)
    )

    def load(access: BufferLoad) -> Expression:
        if not access.source.same_as(old):
            return access
        n, c, *pixel = access.indices
        tap = tirx.indexdiv(c, channels // block)
        frame = n * taps.step + tap * taps.apart + taps.first
        place = [tirx.max(tirx.min(frame, frames - 1), 0), tirx.indexmod(c, channels // block)]
        number = tirx.BufferLoad(new, [*place, *pixel])
        inside = tirx.all(frame >= 0, frame < frames)
        return tirx.Select(inside, number, tirx.const(0, old.dtype))

    body = tvm_ffi.structural_map(function.body, (TensorLoad, load))
    return tirx.PrimFunc([new, *other_params], body, function.ret_type).with_attrs(function.attrs)


def _in_loops(function: PrimFunc) -> PrimFunc:
    """Lower the TensorIR blocks of a function to plain loops.

    Blocks list the regions that they read separately from their statements. Without blocks, only
    the statements have to be rewritten.
    """
    passes = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(), s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(), s_tir.transform.LowerOpaqueBlock(),
    ]  # fmt: skip
    return Sequential(passes)(IRModule({"main": function}))["main"]
