"""A small CNN for scikit-learn's 8×8 handwritten digits, trained so that accuracy can be checked.

Training uses NumPy only: convolutions as matrix products over unfolded patches, cross-entropy loss,
and SGD with momentum. It takes a few seconds, and gives the same weights for the same seed. A fifth
of the 1,797 images is held out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.thread_pools import one_thread
from tilewright.networks.zoo.builder import Builder

datasets = lazy_module("sklearn.datasets")

INPUT = (1, 1, 8, 8)
# name, input channels, output channels, stride; all 3×3 with padding 1
CONVOLUTIONS = (("conv1", 1, 16, 1), ("conv2", 16, 32, 2), ("conv3", 32, 32, 1))
CLASSES = 10
EPOCHS, BATCH, RATE, MOMENTUM = 8, 32, 0.05, 0.9

Array = NDArray[np.float32]
Parameters = dict[str, Array]


def digits_cnn(net: Builder) -> str:
    """Build the CNN: three convolutions and a dense layer, with trained weights.

    The network classifies 8×8 images into ten classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    net.values = train(net.seed) if net.weights else {}
    x = net.input
    for i, (name, _, channels, stride) in enumerate(CONVOLUTIONS, start=1):
        x = net.conv(x, name, channels, kernel=3, stride=stride, pad=1, bias=True)
        x = net.relu(x, f"relu{i}")
    x = net.max_pool(x, "maxpool", kernel=2, stride=2)
    return net.dense(net.flatten(x, "flatten"), "fc", CLASSES)


def held_out() -> tuple[Array, NDArray[np.int64]]:
    """Return the 360 held-out images, of shape (360, 1, 8, 8) in [0, 1], and their labels."""
    images, labels, test = _data()
    return images[test], labels[test]


def training_set() -> tuple[Array, NDArray[np.int64]]:
    """Return the 1,437 training images, of shape (1437, 1, 8, 8) in [0, 1], and their labels."""
    images, labels, test = _data()
    return images[~test], labels[~test]


@lru_cache(maxsize=4)
@one_thread  # products are small, and several threads would sum in a different order
def train(seed: int) -> Parameters:
    """Train the CNN and return its weights by tensor name.

    The weights are OIHW for convolutions and (10, 128) for `fc`; biases have shape (n,).
    """
    images, labels = training_set()
    random = np.random.default_rng(seed)
    parameters = _initial(random)
    velocity = {name: np.zeros_like(value) for name, value in parameters.items()}
    for epoch in range(EPOCHS):
        rate = RATE * 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS))
        order = random.permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for name, gradient in _gradients(parameters, images[batch], labels[batch]).items():
                velocity[name] = MOMENTUM * velocity[name] - np.float32(rate) * gradient
                parameters[name] = parameters[name] + velocity[name]
    return parameters


def _data() -> tuple[Array, NDArray[np.int64], NDArray[np.bool_]]:
    """Return all images, their labels, and a mask of the held-out images.

    The images have shape (n, 1, 8, 8). The mask does not depend on any seed.
    """
    digits = datasets.load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    test = np.zeros(len(images), bool)
    test[np.random.default_rng(0).permutation(len(images))[: len(images) // 5 + 1]] = True
    return images, digits.target.astype(np.int64), test


def _initial(random: np.random.Generator) -> Parameters:
    shapes = {name: (o, i, 3, 3) for name, i, o, _ in CONVOLUTIONS}
    shapes_all: dict[str, tuple[int, ...]] = {**shapes, "fc": (CLASSES, CONVOLUTIONS[-1][2] * 4)}
    parameters: Parameters = {}
    for name, shape in shapes_all.items():
        deviation = np.float32(math.sqrt(2 / math.prod(shape[1:])))
        parameters[f"{name}.weight"] = random.standard_normal(shape, np.float32) * deviation
        parameters[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return parameters


def _gradients(parameters: Parameters, images: Array, labels: NDArray[np.int64]) -> Parameters:
    """Return the gradients of the mean cross-entropy over a batch of images.

    Args:
        parameters: weights and biases by tensor name.
        images: images of shape (n, 1, 8, 8).
        labels: classes of shape (n,).

    Returns:
        The gradients, arrays with the shapes of the parameters, by tensor name.
    """
    x, trail = images, []
    for name, _, _, stride in CONVOLUTIONS:
        patches = _unfold(x, stride)
        weight = parameters[f"{name}.weight"].reshape(len(parameters[f"{name}.bias"]), -1)
        y = np.maximum(patches @ weight.T + parameters[f"{name}.bias"], 0)
        trail.append((x.shape, patches, weight, y))
        x = np.ascontiguousarray(y.transpose(0, 3, 1, 2))
    pooled, winners = _pool(x)
    features = pooled.reshape(len(x), -1)
    logits = features @ parameters["fc.weight"].T + parameters["fc.bias"]
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = chances / chances.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= np.float32(len(labels))
    gradients = {"fc.weight": error.T @ features, "fc.bias": error.sum(axis=0)}
    upstream = (error @ parameters["fc.weight"]).reshape(pooled.shape)
    delta = np.repeat(np.repeat(upstream, 2, axis=2), 2, axis=3) * winners
    for (name, _, _, stride), (shape, patches, weight, y) in reversed(
        list(zip(CONVOLUTIONS, trail, strict=True))
    ):
        slope = delta.transpose(0, 2, 3, 1) * (y > 0)
        flat = slope.reshape(-1, slope.shape[-1])
        gradient = flat.T @ patches.reshape(len(flat), -1)
        gradients[f"{name}.weight"] = gradient.reshape(parameters[f"{name}.weight"].shape)
        gradients[f"{name}.bias"] = flat.sum(axis=0)
        delta = _fold(slope @ weight, shape, stride)
    return gradients


def _unfold(x: Array, stride: int) -> Array:
    """Unfold (N, C, H, W) into 3×3 patches with padding 1, (N, H/stride, W/stride, C·9)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)
    return windows.reshape(*windows.shape[:3], -1)


def _fold(patches: Array, shape: tuple[int, ...], stride: int) -> Array:
    """Sum patches back into (N, C, H, W); this is the transpose of `_unfold`."""
    count, channels, height, width = shape
    taps = patches.reshape(*patches.shape[:3], channels, 3, 3).transpose(0, 3, 1, 2, 4, 5)
    padded = np.zeros((count, channels, height + 2, width + 2), np.float32)
    for row in range(3):
        for column in range(3):
            rows = slice(row, row + height, stride)
            columns = slice(column, column + width, stride)
            padded[:, :, rows, columns] += taps[..., row, column]
    return padded[:, :, 1:-1, 1:-1]


def _pool(x: Array) -> tuple[Array, Array]:
    """Apply a 2×2 max-pool to images.

    Args:
        x: images of shape (N, C, H, W).

    Returns:
        The maxima, of shape (N, C, H/2, W/2), and a float32 mask of shape (N, C, H, W) that is 1
        where an element is a maximum, including ties.
    """
    count, channels, height, width = x.shape
    pooled = x.reshape(count, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5))
    winners = x == np.repeat(np.repeat(pooled, 2, axis=2), 2, axis=3)
    return pooled, winners.astype(np.float32)
