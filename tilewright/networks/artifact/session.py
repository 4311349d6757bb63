"""Splits arrays into successive images of a network, and joins what it gives for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.networks.artifact.load import AnyArtifact, load
from tilewright.networks.artifact.run import Array
from tilewright.networks.artifact.sized_library import NamedValue
from tilewright.networks.errors import InputError
from tilewright.targets.kernels import aligned_empty
from tilewright.targets.layer import Value


def split_images(wanted: Sequence[Value], arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
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


def join_outputs(outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
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


class InferenceSession:
    """A built network, loaded once and run many times.

    Threads may call `run` at the same time: each gets a context of its own, with `threads` threads
    of a library. A simulated accelerator takes turns.
    """

    def __init__(self, artifact: AnyArtifact) -> None:
        self._artifact = artifact
        self._outputs = [value.name for value in artifact.outputs]

    @property
    def artifact(self) -> AnyArtifact:
        """What was loaded: manifest, layers, checks."""
        return self._artifact

    def get_inputs(self) -> Sequence[Value | NamedValue]:
        """The inputs in order; each has `name`, `shape` and `dtype`. An axis of a library that was
        built for several sizes has a name instead of a size."""
        return list(self._artifact.inputs)

    def get_outputs(self) -> Sequence[Value | NamedValue]:
        """The outputs in order; each has `name`, `shape` and `dtype`, as the inputs."""
        return list(self._artifact.outputs)

    def empty(self, name: str, shape: Sequence[int] | None = None) -> Array:
        """An array of an input's shape that a library reads in place; of the given `shape` where
        axes have names. Raises `InputError`."""
        for value in self._artifact.inputs:
            if value.name == name:
                sizes = [size for size in shape or value.shape if isinstance(size, int)]
                if len(sizes) != len(value.shape):
                    raise InputError(f"'{name}' has the shape {value.shape}; name one of its sizes")
                return aligned_empty(sizes, np.dtype(value.dtype))
        known = ", ".join(value.name for value in self._artifact.inputs)
        raise InputError(f"there is no input '{name}'; the network takes {known}")

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """One inference: the outputs that are named, or all, in the shapes of `get_outputs`.

        `inputs` are arrays by name, in the shapes of `get_inputs`. Raises `InputError` for inputs
        that do not fit and outputs that do not exist.
        """
        wanted = self._outputs if output_names is None else list(output_names)
        if unknown := [name for name in wanted if name not in self._outputs]:
            raise InputError(
                f"there is no output '{unknown[0]}'; the network gives {', '.join(self._outputs)}"
            )
        made = self._artifact.infer(inputs)
        return [made[name] for name in wanted]


def open_session(folder: Path, threads: int | None, *, allow_code: bool) -> InferenceSession:
    """Raises as `load`, and `ArtifactError` for threads that cannot be."""
    return InferenceSession(load(folder, allow_code=allow_code, threads=threads))
