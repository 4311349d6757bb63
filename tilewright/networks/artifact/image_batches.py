"""Splits arrays into successive images of a network, and joins what it gives for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.networks.artifact.run import Array
from tilewright.networks.errors import InputError
from tilewright.targets.layer import Value


def split(wanted: Sequence[Value], arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The inputs of each image, in the shapes that the network takes: arrays hold images one after
    another along their first axis. An array of one image is every image's. Raises `InputError`
    where arrays hold different numbers of images; what else is wrong `run` says."""
    counts = {value.name: _images(value, arrays[value.name]) for value in wanted
              if value.name in arrays}  # fmt: skip
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in several.items())
        raise InputError(f"inputs hold different numbers of images: {listed}; give as many of each")
    images = max(several.values(), default=1)
    parts = {
        name: np.split(arrays[name], images) if count > 1 else [arrays[name]] * images
        for name, count in counts.items()
    }
    others = {name: array for name, array in arrays.items() if name not in counts}
    return [others | {name: each[image] for name, each in parts.items()} for image in range(images)]


def joined(outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The outputs of successive images, of shape (n, …) each, one after another along the first
    axis, (images · n, …); numbers without an axis in a vector, (images,)."""
    return {
        name: np.concatenate([np.atleast_1d(each[name]) for each in outputs]) for name in outputs[0]
    }


def _images(value: Value, array: Array) -> int:
    """How many images of a tensor's shape an array holds; 1 where it does not fit, too."""
    if array.ndim != len(value.shape) or not array.ndim or array.shape[1:] != value.shape[1:]:
        return 1
    own = value.shape[0]
    return array.shape[0] // own if own and array.shape[0] and not array.shape[0] % own else 1
