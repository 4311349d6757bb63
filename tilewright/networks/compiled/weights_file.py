"""Writes the weights of a library into a file, and reads them from where it is mapped.

All numbers are little-endian. The file begins with 8 bytes that name the format, its version and
the number of arrays, in 4 bytes each. A row of 80 bytes an array follows: type and number of axes,
in 4 bytes each, 8 sizes, and where its data lie. Then come the data, each array at a multiple of
`ALIGNMENT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.formats import WEIGHTS as FORMAT
from tilewright.networks.errors import BUILD_AGAIN, ArtifactError
from tilewright.targets.kernels import ALIGNMENT

WEIGHTS = "weights.bin"
MAGIC = b"TWWEIGHT"
DTYPES = ("float32", "int8", "uint8", "int32", "int64")
"""By the number that a row has, as in `tilewright_cpu.h`."""
MOST_AXES = 8
_HEAD = np.dtype([("magic", "S8"), ("version", "<u4"), ("arrays", "<u4")])
_ROW = np.dtype([("dtype", "<u4"), ("axes", "<u4"), ("shape", "<i8", MOST_AXES), ("at", "<u8")])


def pack_weights(weights: Sequence[NDArray[Any]]) -> bytes:
    """The file of arrays of any shape of at most `MOST_AXES` axes."""
    rows = np.zeros(len(weights), _ROW)
    end = _aligned(_HEAD.itemsize + rows.nbytes)
    for row, array in zip(rows, weights, strict=True):
        row["dtype"], row["axes"] = DTYPES.index(str(array.dtype)), array.ndim
        row["shape"][: array.ndim] = array.shape
        row["at"] = end
        end = _aligned(end + array.nbytes)
    made = np.zeros(end, np.uint8)
    head = np.array((MAGIC, FORMAT.written, len(weights)), _HEAD).tobytes() + rows.tobytes()
    made[: len(head)] = np.frombuffer(head, np.uint8)
    for row, array in zip(rows, weights, strict=True):
        at = int(row["at"])
        made[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return made.tobytes()


def unpack_weights(data: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """The arrays of a file of shape (bytes,), in place, in their shapes. Raises `ArtifactError` for
    another file, one of another version and arrays that do not lie in it."""
    if len(data) < _HEAD.itemsize or bytes(data[: len(MAGIC)]) != MAGIC:
        raise ArtifactError(f"{WEIGHTS} is no file of weights; {BUILD_AGAIN}")
    head = data[: _HEAD.itemsize].view(_HEAD)[0]
    if refusal := FORMAT.refusal(WEIGHTS, int(head["version"])):
        raise ArtifactError(refusal)
    rows_end = _HEAD.itemsize + int(head["arrays"]) * _ROW.itemsize
    if rows_end > len(data):
        raise ArtifactError(f"{WEIGHTS} ends in its table; {BUILD_AGAIN}")
    return [_array(data, row) for row in data[_HEAD.itemsize : rows_end].view(_ROW)]


def _array(data: NDArray[np.uint8], row: np.void) -> NDArray[Any]:
    kind, axes, at = int(row["dtype"]), int(row["axes"]), int(row["at"])
    if kind >= len(DTYPES) or axes > MOST_AXES:
        raise ArtifactError(f"{WEIGHTS} has an array of an unknown type or rank; {BUILD_AGAIN}")
    dtype, shape = np.dtype(DTYPES[kind]), [int(size) for size in row["shape"][:axes]]
    size = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or at % ALIGNMENT or at + size > len(data):
        raise ArtifactError(f"{WEIGHTS} has an array that does not lie in it; {BUILD_AGAIN}")
    return data[at : at + size].view(dtype).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
