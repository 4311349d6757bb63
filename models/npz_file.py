"""Reads the arrays of a plain numeric model from NPZ, and checks that all are there and finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import unpack_arrays


def read_numbers(path: Path, dimensions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The arrays of these names and numbers of dimensions, float64 or int64, of any shape else.
    Raises `OSError`, and `ValueError` if the file holds anything else."""
    arrays = unpack_arrays(path.read_bytes())
    if arrays.keys() != dimensions.keys():
        raise ValueError(f"it holds not {', '.join(dimensions)}")
    for name, array in arrays.items():
        if array.dtype.str not in ("<f8", "<i8") or array.ndim != dimensions[name]:
            raise ValueError(f"{name} is not an array of numbers")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
    return arrays
