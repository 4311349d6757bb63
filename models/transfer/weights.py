"""Stores weights of neural models as safetensors, and checks their names, shapes and numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

safetensors = lazy_module("safetensors")
numpy_format = lazy_module("safetensors.numpy")

NamedWeights = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]
_MAX_HEADER = 1 << 22


def read_shapes(name: str, columns: int, units: int) -> Shapes:
    """Of a layer that reads columns: in place of an unknown value it takes an embedding."""
    return {
        f"{name} matrix": (columns, units), f"{name} unknown": (columns, units),
        f"{name} bias": (units,),
    }  # fmt: skip


def layer_shapes(name: str, inputs: int, units: int) -> Shapes:
    """Of a linear layer behind what puts its inputs on one scale."""
    return {f"{name} gain": (inputs,), f"{name} matrix": (inputs, units), f"{name} bias": (units,)}


def pack_weights(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The bytes of a safetensors file of arrays of any shape, in the order of names."""
    return bytes(
        numpy_format.save({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)})
    )


def unpack_weights(data: bytes, shapes: Mapping[str, tuple[int, ...]]) -> NamedWeights:
    """The arrays of these names and shapes, float32. Raises `ValueError` if the file holds anything
    else."""
    _check_header(data, shapes)
    try:
        found: NamedWeights = numpy_format.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"safetensors cannot read it: {str(error)[:200]}") from None
    for name, array in found.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
    return found


def _check_header(data: bytes, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """All of the header, before the library reads it."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _MAX_HEADER):
        raise ValueError("its header is longer than the file")
    try:
        header = json.loads(data[8 : 8 + length])
    except RecursionError:
        raise ValueError("its header is not JSON") from None
    if not isinstance(header, dict) or header.keys() != shapes.keys():
        raise ValueError("its arrays are not those of such a model")
    for name, entry in header.items():
        said = (entry.get("dtype"), entry.get("shape")) if isinstance(entry, dict) else None
        if said != ("F32", list(shapes[name])):
            raise ValueError(f"{name} is not of shape {shapes[name]}, float32")
