"""Reads the constants of TensorFlow Lite that hold only what is not zero.

A sparse tensor is a tree with one level per dimension, in any order of dimensions. A dense level
has every place of its dimension below each node, a sparse one only those that it lists. Blocks are
further levels, each of which is the inner part of a dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

tflite = lazy_module("tflite")

SPARSE = 1
"""The schema's number for a level that lists its places."""
MOST_LEVELS = 16

Integers = NDArray[np.int64]


class DamagedTensor(ValueError):
    """A sparse tensor that contradicts itself."""


def dense(sparsity: Any, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a sparse constant with its zeros.

    Args:
        sparsity: the table `SparsityParameters` of the tensor.
        values: what the file stores of it, (stored elements,).
        shape: of the tensor.

    Returns:
        An array of the tensor's shape and the element type of `values`.

    Raises:
        DamagedTensor: sizes, places or counts do not fit.
    """
    order = _vector(sparsity.TraversalOrderLength(), sparsity.TraversalOrderAsNumpy)
    blocks = _vector(sparsity.BlockMapLength(), sparsity.BlockMapAsNumpy)
    levels = int(sparsity.DimMetadataLength())
    rank = len(shape)
    if levels != rank + len(blocks) or sorted(order) != list(range(levels)):
        raise DamagedTensor("its levels are not those of its dimensions")
    if any(not 0 <= dimension < rank for dimension in blocks) or levels > MOST_LEVELS:
        raise DamagedTensor("its blocks divide dimensions that it does not have")
    places = np.zeros((1, 0), np.int64)  # of each node, one per level so far
    sizes: list[int] = []
    for number in range(levels):
        level = sparsity.DimMetadata(number)
        if level.Format() == SPARSE:
            places = _listed(level, places)
            sizes.append(0)
        else:
            places = _all(int(level.DenseSize()), places, math.prod(shape))
            sizes.append(int(level.DenseSize()))
    if len(places) != values.size:
        raise DamagedTensor(f"it stores {values.size} elements for {len(places)} places")
    by_level = {int(level): places[:, number] for number, level in enumerate(order)}
    found = [by_level[dimension] for dimension in range(rank)]
    for number, dimension in enumerate(blocks):
        size = sizes[order.index(rank + number)]
        found[dimension] = found[dimension] * size + by_level[rank + number]
    if any((at < 0).any() or (at >= size).any() for at, size in zip(found, shape, strict=True)):
        raise DamagedTensor("it has elements beyond its shape")
    array = np.zeros(shape, values.dtype)
    array[tuple(found)] = values
    return array


def _vector(length: int, read: Callable[[], Any]) -> list[int]:
    if length > MOST_LEVELS:
        raise DamagedTensor(f"it has {length} levels")
    return [int(each) for each in read()] if length else []


def _all(size: int, parents: Integers, most: int) -> Integers:
    """Return every place of a dimension below each node, at most so many as the tensor has."""
    if size < 0 or size * len(parents) > most:
        raise DamagedTensor(f"one of its levels has the size {size}")
    places = np.tile(np.arange(size), len(parents))[:, None]
    return np.hstack([np.repeat(parents, size, axis=0), places])


def _listed(level: Any, parents: Integers) -> Integers:
    """Return the places that are listed below each node."""
    segments = _numbers(level.ArraySegments(), level.ArraySegmentsType())
    indices = _numbers(level.ArrayIndices(), level.ArrayIndicesType())
    counts = np.diff(segments)
    if (
        len(segments) != len(parents) + 1
        or segments[0] != 0
        or (counts < 0).any()
        or segments[-1] != len(indices)
    ):
        raise DamagedTensor("one of its levels lists places for other nodes than it has")
    return np.hstack([np.repeat(parents, counts, axis=0), indices[:, None]])


def _numbers(table: Any, kind: int) -> Integers:
    """Return a vector of one of the three types that the schema has for them."""
    words = {
        number: name
        for name, number in vars(tflite.SparseIndexVector).items()
        if isinstance(number, int) and number
    }
    if table is None or kind not in words:
        raise DamagedTensor("one of its levels lists no places")
    vector = getattr(tflite, words[kind])()
    vector.Init(table.Bytes, table.Pos)
    numbers: Integers = np.asarray(vector.ValuesAsNumpy()).astype(np.int64).reshape(-1)
    return numbers
