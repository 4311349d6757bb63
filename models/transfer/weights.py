"""Stores weights of neural models as safetensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

safetensors = lazy_module("safetensors")
numpy_format = lazy_module("safetensors.numpy")

NamedWeights = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]


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


def unpack_weights(data: bytes) -> NamedWeights:
    """Return the arrays of a safetensors file by name. Raises `ValueError` if it is damaged."""
    try:
        found: NamedWeights = numpy_format.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"safetensors cannot read it: {str(error)[:200]}") from None
    return found
