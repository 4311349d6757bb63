"""Write the weights of a library into a file, and read them from the memory-mapped file.

All numbers are little-endian. The file consists of:

1. A header: 8 bytes that identify the format, the version (4 bytes) and the number of arrays
   (4 bytes).
2. A table with one row of 80 bytes per array: element type and number of axes (4 bytes each), 8
   sizes (8 bytes each), and the offset of the data (8 bytes).
3. The data of the arrays. Each array starts at a multiple of `ALIGNMENT`.
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
"""Name of the weights file in an artifact."""
MAGIC = b"TWWEIGHT"
"""First bytes of a weights file."""
DTYPES = ("float32", "int8", "uint8", "int32", "int64")
"""Element types of the arrays. A row of the file's table contains the index of the type in this
tuple, as defined in `tilewright_cpu.h`."""
MOST_AXES = 8
"""Maximum number of dimensions of an array."""
_HEAD = np.dtype([("magic", "S8"), ("version", "<u4"), ("arrays", "<u4")])
_ROW = np.dtype([("dtype", "<u4"), ("axes", "<u4"), ("shape", "<i8", MOST_AXES), ("at", "<u8")])


def pack_weights(weights: Sequence[NDArray[Any]]) -> bytes:
    """Return the content of a weights file.

    Args:
        weights: arrays with at most `MOST_AXES` axes and element types from `DTYPES`.
    """
    rows = np.zeros(len(weights), _ROW)
    end = _align_size(_HEAD.itemsize + rows.nbytes)
    for row, array in zip(rows, weights, strict=True):
        row["dtype"], row["axes"] = DTYPES.index(str(array.dtype)), array.ndim
        row["shape"][: array.ndim] = array.shape
        row["at"] = end
        end = _align_size(end + array.nbytes)
    content = np.zeros(end, np.uint8)
    head = np.array((MAGIC, FORMAT.written, len(weights)), _HEAD).tobytes() + rows.tobytes()
    content[: len(head)] = np.frombuffer(head, np.uint8)
    for row, array in zip(rows, weights, strict=True):
        offset = int(row["at"])
        content[offset : offset + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    return content.tobytes()


def unpack_weights(data: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Return the arrays of a weights file as views of the file's content.

    Args:
        data: content of the file, uint8 of shape (bytes,).

    Raises:
        ArtifactError: the data are not a weights file of this version, or an array lies outside of
            them.
    """
    if len(data) < _HEAD.itemsize or bytes(data[: len(MAGIC)]) != MAGIC:
        raise ArtifactError(f"{WEIGHTS} is not a weights file; {BUILD_AGAIN}")
    head = data[: _HEAD.itemsize].view(_HEAD)[0]
    if refusal := FORMAT.refusal(WEIGHTS, int(head["version"])):
        raise ArtifactError(refusal)
    rows_end = _HEAD.itemsize + int(head["arrays"]) * _ROW.itemsize
    if rows_end > len(data):
        raise ArtifactError(f"{WEIGHTS} ends within its table; {BUILD_AGAIN}")
    return [_array(data, row) for row in data[_HEAD.itemsize : rows_end].view(_ROW)]


def _array(data: NDArray[np.uint8], row: np.void) -> NDArray[Any]:
    kind, axes, at = int(row["dtype"]), int(row["axes"]), int(row["at"])
    if kind >= len(DTYPES) or axes > MOST_AXES:
        raise ArtifactError(f"{WEIGHTS} has an array of an unknown type or rank; {BUILD_AGAIN}")
    dtype, shape = np.dtype(DTYPES[kind]), [int(size) for size in row["shape"][:axes]]
    size = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or at % ALIGNMENT or at + size > len(data):
        raise ArtifactError(f"{WEIGHTS} has an array that extends beyond the file; {BUILD_AGAIN}")
    return data[at : at + size].view(dtype).reshape(shape)


def _align_size(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
