"""MLP in NumPy for predictions without JAX, and safetensors files of neural models.

Loading JAX and compiling the network would take longer than all predictions that are needed to tune
a layer. The MLP gives the same results as `models.transfer.jax_networks.Perceptron`, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.models.transfer.training_data import Matrix

safetensors = lazy_module("safetensors")
numpy_format = lazy_module("safetensors.numpy")

NamedWeights = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]


def read_shapes(name: str, columns: int, units: int) -> Shapes:
    """Return the weight shapes of an input layer that replaces unknown values by embeddings.

    Args:
        name: prefix of the layer's weights.
        columns: number of input columns.
        units: number of outputs.

    Returns:
        Shapes by name of the weight, with the names `{name} matrix`, `{name} unknown` and `{name}
        bias`.
    """
    return {
        f"{name} matrix": (columns, units), f"{name} unknown": (columns, units),
        f"{name} bias": (units,),
    }  # fmt: skip


def layer_shapes(name: str, inputs: int, units: int) -> Shapes:
    """Return the weight shapes of a linear layer whose inputs are RMS-normalised.

    Args:
        name: prefix of the layer's weights.
        inputs: number of inputs.
        units: number of outputs.

    Returns:
        Shapes by name of the weight, with the names `{name} gain`, `{name} matrix` and `{name}
        bias`.
    """
    return {f"{name} gain": (inputs,), f"{name} matrix": (inputs, units), f"{name} bias": (units,)}


def pack_weights(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Serialise arrays in the safetensors format, sorted by name.

    Args:
        weights: arrays by name.

    Returns:
        The contents of a safetensors file.
    """
    return bytes(
        numpy_format.save({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)})
    )


def unpack_weights(data: bytes) -> NamedWeights:
    """Read the arrays of a safetensors file.

    Args:
        data: contents of the file.

    Returns:
        Arrays by name.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        weights: NamedWeights = numpy_format.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"safetensors cannot read it: {str(error)[:200]}") from None
    return weights


_AT_ONCE = 512  # rows per chunk, whose activations fit into a processor's cache
# The tanh approximation of GELU (Hendrycks & Gimpel, arXiv 1606.08415), which JAX uses by default.
_ROOT = np.float32(np.sqrt(2.0 / np.pi))
_CUBE = np.float32(0.044715)
_SMALL = np.float32(1e-6)  # as in `jax_networks`: avoids a division by zero in the normalisation


def shapes(columns: int, units: int, layers: int) -> Shapes:
    """Return the shape of each weight of the MLP, by name.

    Args:
        columns: number of input columns.
        units: number of units per layer.
        layers: number of hidden layers.
    """
    weight_shapes = read_shapes("in", columns, units)
    for k in range(1, layers):
        weight_shapes |= layer_shapes(f"layer {k}", units, units)
    return weight_shapes | {"out matrix": (units, 1), "out bias": (1,)}


def ask(weights: NamedWeights, layers: int, x: Matrix) -> NDArray[np.float64]:
    """Predict the labels of rows with the MLP.

    Args:
        weights: weights by name.
        layers: number of hidden layers.
        x: normalised rows of shape (rows, columns); unknown values are NaN.

    Returns:
        Labels of shape (rows,).
    """
    labels = np.empty(len(x))
    for begin in range(0, len(x), _AT_ONCE):
        part = x[begin : begin + _AT_ONCE]
        labels[begin : begin + len(part)] = _labels(weights, layers, part)
    return labels


def _labels(weights: NamedWeights, layers: int, x: Matrix) -> Matrix:
    h = _gelu(_read(weights, x))
    for k in range(1, layers):
        scale = np.sqrt(np.einsum("ru,ru->r", h, h) / np.float32(h.shape[1]) + _SMALL)
        # The normalisation is a factor per row, so it can be applied after the matrix product.
        matrix = weights[f"layer {k} gain"][:, None] * weights[f"layer {k} matrix"]
        layer = h @ matrix
        layer /= scale[:, None]
        layer += weights[f"layer {k} bias"]
        h += _gelu(layer)
    return np.asarray(h @ weights["out matrix"] + weights["out bias"])[:, 0]


def _read(weights: NamedWeights, x: Matrix) -> Matrix:
    """Compute the output of the input layer, before its activation, for normalised rows.

    A column with the same value in all rows is multiplied only once. In a tuner, all columns of the
    hardware and the workload are of this type.

    Args:
        weights: weights by name.
        x: rows of shape (rows, columns); unknown values are NaN.

    Returns:
        Array of shape (rows, units).
    """
    first, unknown = x[0], np.isnan(x)
    same = ((x == first) | unknown).all(axis=0) & (unknown == unknown[0]).all(axis=0)
    matrix, embedded = weights["in matrix"], weights["in unknown"]
    nothing = unknown[0] & same
    known = same & ~nothing
    whole = weights["in bias"] + first[known] @ matrix[known] + embedded[nothing].sum(axis=0)
    other = np.flatnonzero(~same)
    sums = np.where(unknown[:, other], np.float32(0.0), x[:, other]) @ matrix[other]
    some = other[unknown[:, other].any(axis=0)]
    if len(some):
        sums += unknown[:, some].astype(np.float32) @ embedded[some]
    sums += whole
    return np.asarray(sums)


def _gelu(x: Matrix) -> Matrix:
    """Compute GELU in place with the tanh approximation (Hendrycks & Gimpel, 2016)."""
    inner = x * x
    inner *= _CUBE * _ROOT
    inner += _ROOT
    inner *= x
    np.tanh(inner, out=inner)
    inner += np.float32(1.0)
    inner *= np.float32(0.5)
    x *= inner
    return x
