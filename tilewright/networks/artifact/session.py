"""Inference session: a built network that is loaded once and run many times."""

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
    """Split arrays that hold several images into the inputs of each image.

    Args:
        wanted: the inputs of the network.
        arrays: arrays by name. Images follow each other along the first axis. An array with a
            single image is used for all images.

    Returns:
        The inputs of each image, in the shapes of the network.

    Raises:
        InputError: arrays contain different numbers of images. Arrays that do not fit in another
            way raise no error here; `run` rejects them.
    """
    counts = {value.name: _images(value, arrays[value.name]) for value in wanted
              if value.name in arrays}  # fmt: skip
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in several.items())
        raise InputError(
            f"the inputs contain different numbers of images: {listed}; give the same number for "
            "each input"
        )
    images = max(several.values(), default=1)
    parts = {
        name: np.split(arrays[name], images) if count > 1 else [arrays[name]] * images
        for name, count in counts.items()
    }
    others = {name: array for name, array in arrays.items() if name not in counts}
    return [others | {name: part[image] for name, part in parts.items()} for image in range(images)]


def join_outputs(outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate the outputs of successive images along the first axis.

    Args:
        outputs: for each image, the output arrays by name, of shape (n, …).

    Returns:
        Arrays by name, of shape (images · n, …); scalars give a vector of shape (images,).
    """
    return {
        name: np.concatenate([np.atleast_1d(output[name]) for output in outputs])
        for name in outputs[0]
    }


def _images(value: Value, array: Array) -> int:
    """Return the number of images in an array, which is 1 if the shape fits no number of images.

    Args:
        value: the input of the network, whose shape holds one image.
        array: the array, with images along its first axis.
    """
    if array.ndim != len(value.shape) or not array.ndim or array.shape[1:] != value.shape[1:]:
        return 1
    own = value.shape[0]
    return array.shape[0] // own if own and array.shape[0] and not array.shape[0] % own else 1


class InferenceSession:
    """A built network that is loaded once and run many times.

    Several threads may call `run` at the same time. Each calling thread gets its own context with
    the library's number of threads. A simulated accelerator runs one call at a time.

    Args:
        artifact: the loaded artifact.
    """

    def __init__(self, artifact: AnyArtifact) -> None:
        self._artifact = artifact
        self._outputs = [value.name for value in artifact.outputs]

    @property
    def artifact(self) -> AnyArtifact:
        """The loaded artifact, with its manifest, layers and checks."""
        return self._artifact

    def get_inputs(self) -> Sequence[Value | NamedValue]:
        """Return the inputs in order. Each has the attributes `name`, `shape` and `dtype`.

        In a library for several sizes, a dynamic axis has a name in place of a size.
        """
        return list(self._artifact.inputs)

    def get_outputs(self) -> Sequence[Value | NamedValue]:
        """Return the outputs in order, with the same attributes as the inputs."""
        return list(self._artifact.outputs)

    def empty(self, name: str, shape: Sequence[int] | None = None) -> Array:
        """Return an uninitialised array for an input.

        The array is aligned so that the library can read it without a copy.

        Args:
            name: name of the input.
            shape: shape of the array; required if the input has dynamic axes.

        Returns:
            The array, with the element type of the input.

        Raises:
            InputError: the input does not exist, or a size is missing.
        """
        for value in self._artifact.inputs:
            if value.name == name:
                sizes = [size for size in shape or value.shape if isinstance(size, int)]
                if len(sizes) != len(value.shape):
                    raise InputError(
                        f"'{name}' has the shape {value.shape}; choose one of its sizes"
                    )
                return aligned_empty(sizes, np.dtype(value.dtype))
        known = ", ".join(value.name for value in self._artifact.inputs)
        raise InputError(f"the network has no input '{name}'; its inputs are {known}")

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Run one inference.

        Args:
            output_names: names of the outputs to return; None for all outputs.
            inputs: arrays by name, in the shapes of `get_inputs`.

        Returns:
            The outputs in the order of `output_names`, in the shapes of `get_outputs`.

        Raises:
            InputError: an input does not fit, or an output does not exist.
        """
        wanted = self._outputs if output_names is None else list(output_names)
        if unknown := [name for name in wanted if name not in self._outputs]:
            raise InputError(
                f"the network has no output '{unknown[0]}'; its outputs are "
                f"{', '.join(self._outputs)}"
            )
        made = self._artifact.infer(inputs)
        return [made[name] for name in wanted]


def open_session(folder: Path, threads: int | None, *, allow_code: bool) -> InferenceSession:
    """Load an artifact and return a session for it.

    Args:
        folder: folder of the artifact.
        threads: number of threads; None for the number that a library was built for.
        allow_code: load machine code even if another person built it.

    Returns:
        The session.

    Raises:
        ArtifactError: the artifact cannot be loaded, or `threads` is invalid.
    """
    return InferenceSession(load(folder, allow_code=allow_code, threads=threads))
