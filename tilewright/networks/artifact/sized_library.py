"""A network that is compiled for several input sizes.

An inference uses the library for the smallest size that fits its inputs. Inputs of a smaller size
are padded with zeros, and the outputs are cropped. This is done only along dimensions for which
padding provably does not change the result (`networks.onnx.neutral_padding`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from tilewright.core.files import Json, as_int, as_list, as_object, as_text
from tilewright.networks.artifact.library import CompiledArtifact, CompiledFiles, open_library
from tilewright.networks.artifact.library_check import worst_output
from tilewright.networks.artifact.library_profile import LibraryProfile
from tilewright.networks.artifact.run import Array
from tilewright.networks.errors import InputError
from tilewright.targets.layer import NamedShape

KIND = "sized library"
UNKNOWN = "?"
"""Name of an output dimension whose size is not proportional to any dynamic dimension of the
inputs."""


@dataclass(frozen=True)
class NamedValue:
    """An input or output with dynamic axes.

    Attributes:
        name: name of the tensor.
        shape: size of each static axis, and name of each dynamic axis.
        dtype: element type.
    """

    name: str
    shape: NamedShape
    dtype: str


@dataclass(frozen=True, eq=False)
class Fit:
    """The library that an inference uses, with the padded inputs.

    Attributes:
        library: the library.
        inputs: the inputs, padded to the shapes of the library.
        crops: the slices of each output that are not padding, by output name; empty if nothing was
            padded.
    """

    library: CompiledArtifact
    inputs: dict[str, Array]
    crops: Mapping[str, tuple[slice, ...]]

    def crop_outputs(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of the library without the part that results from padding the inputs.

        Args:
            outputs: outputs of the library by name.
        """
        return {
            name: array[self.crops[name]] if name in self.crops else array
            for name, array in outputs.items()
        }


class SizedLibrary:
    """A network that is compiled for several input sizes.

    Args:
        manifest: the manifest of the artifact.
        folder: folder of the artifact.
        threads: number of threads; None for the number that the libraries were built for.

    Attributes:
        manifest: the manifest of the artifact.
        name: name of the network.
        target: name of the target.
        inputs: the inputs of the network.
        outputs: the outputs of the network.
        padded: names of the dimensions along which inputs may be padded.
        opened: the libraries that were loaded so far, by their index in the manifest.

    Raises:
        ValueError: the sizes in the manifest do not match the inputs.
    """

    def __init__(self, manifest: Mapping[str, Json], folder: Path, threads: int | None) -> None:
        self.manifest = manifest
        self.name, self.target = as_text(manifest["network"]), as_text(manifest["target"])
        self.inputs, self.outputs = _values(manifest["inputs"]), _values(manifest["outputs"])
        self.padded = frozenset(map(as_text, as_list(manifest["padded"])))
        self._folder, self._threads = folder, threads
        self._rows = [as_object(row) for row in as_list(manifest["sizes"])]
        self._at = {
            tuple(sorted((k, as_int(v)) for k, v in as_object(row["at"]).items())): place
            for place, row in enumerate(self._rows)
        }
        self.opened: dict[int, CompiledArtifact] = {}
        axes = {axis for value in self.inputs for axis in value.shape if isinstance(axis, str)}
        if set(self.sizes) != axes or len(self._at) != prod(map(len, self.sizes.values())):
            raise ValueError("the sizes do not match the inputs")
        for row in self._rows:
            as_text(row["folder"])
            as_list(as_object(row["library"])["layers"])

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        """Compiled sizes of each dynamic dimension in ascending order, by name of the dimension."""
        sizes: dict[str, set[int]] = {}
        for combination in self._at:
            for name, size in combination:
                sizes.setdefault(name, set()).add(size)
        return {name: sorted(item) for name, item in sizes.items()}

    @property
    def libraries(self) -> list[tuple[dict[str, int], CompiledArtifact]]:
        """Every combination of sizes with its library. Raises `ArtifactError` if one is damaged."""
        return [(dict(at), self._library(place)) for at, place in self._at.items()]

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one inference with the smallest library that fits the inputs.

        Args:
            inputs: arrays by name. Dynamic axes may have any size that fits a library.

        Returns:
            The outputs by name.

        Raises:
            InputError: no library fits the inputs.
        """
        fit = self.fit(inputs)
        return fit.crop_outputs(fit.library.infer(fit.inputs))

    def run(
        self, inputs: Mapping[str, Array], *, layers: bool = False
    ) -> tuple[dict[str, Array], LibraryProfile]:
        """Run one inference and measure its duration, like `CompiledArtifact.run`.

        Args:
            inputs: arrays by name, as for `infer`.
            layers: also measure each kernel call.

        Returns:
            The outputs by name, and the median durations.

        Raises:
            InputError: no library fits the inputs.
        """
        fit = self.fit(inputs)
        outputs, spent = fit.library.run(fit.inputs, layers=layers)
        return fit.crop_outputs(outputs), spent

    def fit(self, inputs: Mapping[str, Array]) -> Fit:
        """Return the smallest library that fits the inputs, and the padded inputs.

        Args:
            inputs: arrays by name.

        Returns:
            The library, the padded inputs, and how to crop the outputs.

        Raises:
            InputError: no library fits the inputs.
        """
        given = self._given_sizes(inputs)
        chosen = {name: self._size_for(name, size) for name, size in given.items()}
        library = self._library(self._at[tuple(sorted(chosen.items()))])
        if given == chosen:
            return Fit(library, dict(inputs), {})
        shapes = {value.name: value.shape for value in library.inputs}
        padded = {name: _pad_array(array, shapes.get(name)) for name, array in inputs.items()}
        crops = {
            named.name: tuple(
                slice(size * given[axis] // chosen[axis] if isinstance(axis, str) else None)
                for axis, size in zip(named.shape, made.shape, strict=True)
            )
            for named, made in zip(self.outputs, library.outputs, strict=True)
        }
        return Fit(library, padded, crops)

    def _given_sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the size of each dynamic dimension in the inputs, by name of the dimension.

        Args:
            inputs: arrays by input name.

        Raises:
            InputError: an input is missing or does not fit, or inputs disagree on a size.
        """
        result: dict[str, int] = {}
        for value in self.inputs:
            array = inputs.get(value.name)
            if array is None:
                raise InputError(f"'{value.name}' is missing")
            fits = len(array.shape) == len(value.shape) and all(
                isinstance(axis, str) or axis == size
                for axis, size in zip(value.shape, array.shape, strict=True)
            )
            if not fits:
                raise InputError(
                    f"'{value.name}' has shape {_sizes(array.shape)} instead of "
                    f"{_sizes(value.shape)}"
                )
            for axis, size in zip(value.shape, array.shape, strict=True):
                if isinstance(axis, str) and result.setdefault(axis, size) != size:
                    raise InputError(
                        f"the dimension '{axis}' is {result[axis]} in one input and {size} in "
                        f"'{value.name}'; give all inputs the same size"
                    )
        return result

    def _size_for(self, name: str, size: int) -> int:
        sizes = self.sizes[name]
        place = bisect_left(sizes, size)
        if size >= 1 and place < len(sizes) and (sizes[place] == size or name in self.padded):
            return sizes[place]
        listed = ", ".join(map(str, sizes))
        why = (
            ""
            if name in self.padded
            else f"; padding may change the outputs{self._reason_against_padding(name)}"
        )
        raise InputError(
            f"the dimension '{name}' is {size}, but the library was built for {listed}{why}; "
            "use one of these sizes, or build again with another --sizes"
        )

    def _reason_against_padding(self, name: str) -> str:
        """Return the manifest's reason why inputs must not be padded along a dimension.

        Args:
            name: name of the dynamic dimension.

        Returns:
            The reason after a colon, to be appended to an error message; "" if there is none.
        """
        reasons = as_object(self.manifest.get("not_padded", {}))
        return f": {as_text(reasons[name])}" if name in reasons else ""

    def _library(self, place: int) -> CompiledArtifact:
        if place not in self.opened:
            row = self._rows[place]
            prefix = as_text(row["folder"]) + "/"
            listed = as_object(self.manifest["files"])
            matching = {name: said for name, said in listed.items() if name.startswith(prefix)}
            checked = {"files": matching, "specification": self.manifest["specification"]}
            manifest = {**as_object(row["library"]), **checked}
            self.opened[place] = open_library(self._folder, manifest, self._threads, prefix)
        return self.opened[place]


def join_libraries(
    inputs: Mapping[str, NamedShape],
    made: Sequence[tuple[Mapping[str, int], CompiledFiles]],
    obstacles: Mapping[str, str],
) -> CompiledFiles:
    """Combine the libraries of a network for different sizes into one artifact.

    Args:
        inputs: shape of each input by name, with names for dynamic axes.
        made: pairs of the sizes of the dynamic dimensions and the library that was compiled for
            them.
        obstacles: reason why inputs must not be padded along a dynamic dimension, by name of the
            dimension; "" if padding is allowed. The samples of the libraries may reveal further
            reasons.

    Returns:
        The files of the artifact.
    """
    first = made[0][1].manifest
    rows: list[Json] = []
    files: dict[str, bytes] = {}
    for number, (sizes, library) in enumerate(made, 1):
        folder = f"size{number}"
        rows.append({"at": dict(sizes), "folder": folder, "library": dict(library.manifest)})
        files |= {f"{folder}/{name}": data for name, data in library.files.items()}
    outputs = [
        {**as_object(row), "shape": list(_named_output(place, made))}
        for place, row in enumerate(as_list(first["outputs"]))
    ]
    known = [as_object(row) for row in as_list(first["inputs"])]
    manifest: dict[str, Json] = {
        **{key: first[key] for key in ("network", "target", "specification", "tvm", "reference")},
        "kind": KIND,
        "inputs": [{**row, "shape": list(inputs[as_text(row["name"])])} for row in known],
        "outputs": outputs,
        "padded": [],
        "sizes": rows,
    }
    opened = [CompiledArtifact(item.manifest, item.files) for _, item in made]
    reasons = {
        name: obstacles[name] or _difference(name, made, manifest, opened) for name in made[0][0]
    }
    padded = list[Json]([name for name, reason in reasons.items() if not reason])
    refused: dict[str, Json] = {name: reason for name, reason in reasons.items() if reason}
    return CompiledFiles(files, {**manifest, "padded": padded, "not_padded": refused})


def _difference(
    name: str,
    made: Sequence[tuple[Mapping[str, int], CompiledFiles]],
    manifest: Mapping[str, Json],
    opened: Sequence[CompiledArtifact],
) -> str:
    """Check on samples whether padding a dimension to the next larger size changes the outputs.

    Args:
        name: name of the dimension.
        made: pairs of the sizes of the dynamic dimensions and the library compiled for them.
        manifest: manifest of the combined artifact.
        opened: the loaded libraries, in the order of `made`.

    Returns:
        How the outputs differ, or "" if no difference was found.
    """
    if any(UNKNOWN in value.shape for value in _values(manifest["outputs"])):
        return "the size of an output does not grow in proportion to it"
    rows, sizes = as_list(manifest["sizes"]), sorted({at[name] for at, _ in made})
    for size in sizes[:-1]:
        left = [place for place, (at, _) in enumerate(made) if at[name] != size]
        said = {**manifest, "padded": [name], "sizes": [rows[place] for place in left]}
        larger = SizedLibrary(said, Path(), None)
        larger.opened = {number: opened[place] for number, place in enumerate(left)}
        for (at, library), own in zip(made, opened, strict=True):
            if at[name] == size:
                for sample in library.samples:
                    result = larger.infer(sample.inputs)
                    worst = worst_output(result, sample.outputs, own.tolerance)
                    if not worst.error <= own.tolerance:
                        return (
                            f"padding changes the output '{worst.name}' by {worst.error:.1g} of "
                            "its largest value"
                        )
    return ""


def _named_output(
    place: int, made: Sequence[tuple[Mapping[str, int], CompiledFiles]]
) -> Sequence[int | str]:
    """Return the shape of an output, with names for its dynamic axes.

    A dynamic axis gets the name of the dynamic dimension to whose size it is proportional in all
    libraries, or `UNKNOWN` if there is none.

    Args:
        place: index of the output.
        made: pairs of the sizes of the dynamic dimensions and the library compiled for them.
    """
    shapes = [
        list(map(as_int, as_list(as_object(as_list(library.manifest["outputs"])[place])["shape"])))
        for _, library in made
    ]
    return [
        axis[0] if len(set(axis)) == 1 else _proportional(axis, [sizes for sizes, _ in made])
        for axis in zip(*shapes, strict=True)
    ]


def _proportional(axis: Sequence[int], at: Sequence[Mapping[str, int]]) -> str:
    for name in at[0]:
        if len({Fraction(size, sizes[name]) for size, sizes in zip(axis, at, strict=True)}) == 1:
            return name
    return UNKNOWN


def _pad_array(array: Array, shape: Sequence[int] | None) -> Array:
    """Pad an array with zeros at the end of each axis.

    Args:
        array: the array.
        shape: the shape to reach, or None to return the array unchanged.
    """
    if shape is None or array.shape == tuple(shape):
        return array
    larger = np.zeros(tuple(shape), array.dtype)
    larger[tuple(map(slice, array.shape))] = array
    return larger


def _sizes(shape: Sequence[int | str]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _values(rows: Json) -> tuple[NamedValue, ...]:
    result = map(as_object, as_list(rows))
    return tuple(
        NamedValue(
            as_text(row["name"]),
            tuple(a if isinstance(a, str) else as_int(a) for a in as_list(row["shape"])),
            as_text(row["dtype"]),
        )
        for row in result
    )
