"""Compares sparse TensorFlow Lite constants with SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
import pytest
import scipy.sparse
import tflite

from tilewright.networks.tflite.file import DamagedTensor, dense

Level = int | tuple[Sequence[int], Sequence[int]]
"""The size of a dense level, or the segments and the indices of a sparse one."""
WORDS = ("Int32Vector", "Uint16Vector", "Uint8Vector")


def _numbers(b: Any, word: str, values: Sequence[int]) -> int:
    dtype = {"Int32Vector": np.int32, "Uint16Vector": np.uint16, "Uint8Vector": np.uint8}[word]
    vector = b.CreateNumpyVector(np.array(values, dtype))
    getattr(tflite, f"{word}Start")(b)
    getattr(tflite, f"{word}AddValues")(b, vector)
    return int(getattr(tflite, f"{word}End")(b))


def _sparsity(
    order: Sequence[int], blocks: Sequence[int], levels: Sequence[Level], word: str = WORDS[0]
) -> Any:
    b = flatbuffers.Builder(256)
    made = []
    for level in levels:
        parts = (
            None if isinstance(level, int) else [_numbers(b, word, element) for element in level]
        )
        tflite.DimensionMetadataStart(b)
        if parts is None:
            tflite.DimensionMetadataAddDenseSize(b, level)
        else:
            kind = getattr(tflite.SparseIndexVector, word)
            tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.SPARSE_CSR)
            tflite.DimensionMetadataAddArraySegmentsType(b, kind)
            tflite.DimensionMetadataAddArraySegments(b, parts[0])
            tflite.DimensionMetadataAddArrayIndicesType(b, kind)
            tflite.DimensionMetadataAddArrayIndices(b, parts[1])
        made.append(tflite.DimensionMetadataEnd(b))
    tflite.SparsityParametersStartDimMetadataVector(b, len(made))
    for item in reversed(made):
        b.PrependUOffsetTRelative(item)
    metadata = b.EndVector()
    vectors = [b.CreateNumpyVector(np.array(element, np.int32)) for element in (order, blocks)]
    tflite.SparsityParametersStart(b)
    tflite.SparsityParametersAddTraversalOrder(b, vectors[0])
    tflite.SparsityParametersAddBlockMap(b, vectors[1])
    tflite.SparsityParametersAddDimMetadata(b, metadata)
    b.Finish(tflite.SparsityParametersEnd(b))
    return tflite.SparsityParameters.GetRootAs(bytes(b.Output()), 0)


def _drawn(shape: tuple[int, int], seed: int) -> Any:
    return scipy.sparse.random(
        *shape, density=0.3, format="csr", dtype=np.float32, random_state=seed
    )


@pytest.mark.parametrize("word", WORDS)
def test_sparse_rows_are_read(word: str) -> None:
    matrix = _drawn((7, 11), 0)
    result = dense(
        _sparsity([0, 1], [], [7, (matrix.indptr, matrix.indices)], word), matrix.data, (7, 11)
    )
    np.testing.assert_array_equal(result, matrix.toarray())


def test_sparse_columns_are_read() -> None:
    matrix = _drawn((7, 11), 1).tocsc()
    result = dense(
        _sparsity([1, 0], [], [11, (matrix.indptr, matrix.indices)]), matrix.data, (7, 11)
    )
    np.testing.assert_array_equal(result, matrix.toarray())


def test_sparse_blocks_are_read() -> None:
    """The 2x4 blocks are in TensorFlow's order: rows of blocks, columns, then block contents."""
    blocks = np.repeat(np.repeat(_drawn((3, 5), 2).toarray() > 0, 2, 0), 4, 1)
    matrix = scipy.sparse.bsr_matrix(
        np.random.default_rng(3).standard_normal((6, 20), np.float32) * blocks, blocksize=(2, 4)
    )
    matrix.sort_indices()
    sparsity = _sparsity([0, 1, 2, 3], [0, 1], [3, (matrix.indptr, matrix.indices), 2, 4])
    np.testing.assert_array_equal(dense(sparsity, matrix.data.ravel(), (6, 20)), matrix.toarray())


@pytest.mark.parametrize(
    ("order", "levels", "values"),
    [
        ([0, 1], [2, ([0, 1, 2], [0, 5])], 2),  # a column beyond the shape
        ([0, 1], [2, ([0, 1, 2], [0, -1])], 2),
        ([0, 1], [2, ([0, 1], [0])], 1),  # the second row has no entry
        ([0, 1], [2, ([0, 2, 1], [0])], 1),
        ([0, 1], [2, ([0, 1, 2], [0, 1])], 3),  # more values than places
        ([0, 0], [2, ([0, 1, 2], [0, 1])], 2),
        ([0], [2], 2),
        ([0, 1], [1 << 30, 1 << 30], 2),
        ([0, 1], [-1, 3], 2),
    ],
)
def test_a_damaged_tensor_is_refused(order: list[int], levels: list[Level], values: int) -> None:
    with pytest.raises(DamagedTensor):
        dense(_sparsity(order, [], levels), np.ones(values, np.float32), (2, 3))
