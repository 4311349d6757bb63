"""Reads or generates calibration samples, on which the ranges of activations are measured.

A file of samples is an NPZ file with one array per input name. There are three forms of arrays:

- An array with the input's shape is one sample.
- An array with one additional leading axis holds one sample per index of that axis.
- An array whose first axis is a multiple of the input's batch size holds one sample per batch.

A folder of samples contains such files, which are read in alphabetical order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilewright.core.files import MAX_UNPACKED_BYTES, UnsafeFile, read_plain, unpack_arrays
from tilewright.networks.errors import InputError
from tilewright.networks.model_runner import ModelRunner
from tilewright.networks.onnx.files import lone_integers
from tilewright.networks.onnx.graph import NormalGraph, Shape, data_inputs, static_shape
from tilewright.networks.sample_values import base_integers, find_accepted_inputs
from tilewright.networks.zoo import digits

DEFAULT_SAMPLES = 8
"""Default number of random calibration samples."""
DIGITS_SAMPLES = 64
"""Number of training images with which the built-in network `digits_cnn` is calibrated."""
HELD_OUT = 4
"""Number of held-out samples. It is also the number of additional random samples that are generated
to be held out. If a user gives eight to fifteen samples, only a quarter of them is held out."""
FEWEST_SPLIT = 8
"""Minimum number of samples for which some samples are held out."""
MAX_FILES = 4096
"""Maximum number of files in a folder of samples."""
SEEDED_WARNING = (
    "no calibration samples were given, so the ranges come from {count} seeded random "
    "inputs and may not fit real data; give samples of real data (an NPZ file or a folder "
    "of NPZ files)"
)
FEW_WARNING = (
    "the error was measured on the {samples} that the scales were computed from, and may be larger "
    "on new inputs; calibrate with {fewest} samples or more, so that some of them are held out"
)


@dataclass(frozen=True)
class Input:
    """An input of a network.

    Attributes:
        name: name of the input.
        shape: shape of the input.
        dtype: element type.
        categories: for an integer input that selects rows of a table, such as an embedding, the
            number of rows; otherwise 0.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    categories: int = 0  # rows of the table that an integer input indexes, or 0


@dataclass(frozen=True)
class Samples:
    """Calibration samples. Each sample maps input names to arrays of the input's shape.

    Attributes:
        feeds: samples from which scales are chosen.
        warning: a warning about the samples for the user, "" if there is none.
        held_out: samples that are used only to measure the error.
    """

    feeds: tuple[Mapping[str, NDArray[Any]], ...]
    warning: str = ""
    held_out: tuple[Mapping[str, NDArray[Any]], ...] = ()

    @property
    def judging_samples(self) -> tuple[Mapping[str, NDArray[Any]], ...]:
        """Samples for measuring errors: the held-out samples, or all if none is held out."""
        return self.held_out or self.feeds

    def restrict_inputs(self, names: Collection[str]) -> Samples:
        """Return a copy of the samples with only the inputs in `names`."""

        def of(
            feeds: Sequence[Mapping[str, NDArray[Any]]],
        ) -> tuple[Mapping[str, NDArray[Any]], ...]:
            return tuple({n: a for n, a in feed.items() if n in names} for feed in feeds)

        return Samples(of(self.feeds), self.warning, of(self.held_out))


def inputs_of(normal: NormalGraph) -> tuple[Input, ...]:
    """Return the inputs of a normalised model, with their shapes and element types."""
    tables = _table_sizes(normal)
    return tuple(
        Input(
            info.name,
            static_shape(info) or (),
            np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)),
            tables.get(info.name, 0),
        )
        for info in data_inputs(normal.model)
    )


def seeded_samples(inputs: Sequence[Input], count: int = DEFAULT_SAMPLES, seed: int = 0) -> Samples:
    """Generate random samples, with a warning that they may not resemble real data.

    Floats are standard normal, and bools are true. An integer input that selects rows of a table
    gets row numbers. Other integer inputs get any value of an 8-bit type, and 0 or 1 for larger
    types.

    Args:
        inputs: inputs of the network.
        count: number of calibration samples. `HELD_OUT` further samples are generated as held-out
            samples.
        seed: seed of the random generator. Equal seeds give equal samples.

    Returns:
        The samples.
    """
    random = np.random.default_rng([seed, 0x5A])
    drawn = [{i.name: _draw_input(i, random) for i in inputs} for _ in range(count + HELD_OUT)]
    return Samples(tuple(drawn[:count]), SEEDED_WARNING.format(count=count), tuple(drawn[count:]))


def default_samples(model: onnx.ModelProto, inputs: Sequence[Input]) -> Samples:
    """Return training images for the network `digits_cnn`, random samples for other networks."""
    if model.producer_name == "tilewright" and model.graph.name == "digits_cnn":
        images, _ = digits.training_set()
        feeds = tuple({"input": image[None]} for image in images[: DIGITS_SAMPLES + HELD_OUT])
        return Samples(feeds[:DIGITS_SAMPLES], held_out=feeds[DIGITS_SAMPLES:])
    return _with_integers(model, inputs, seeded_samples(inputs))


def _with_integers(model: onnx.ModelProto, inputs: Sequence[Input], samples: Samples) -> Samples:
    """Replace random values of integer inputs by integers that the model accepts.

    Inputs of unknown meaning may be lengths, divisors or flags, so several ranges of integers are
    tried.

    Args:
        model: the model.
        inputs: inputs of the model.
        samples: the random samples.

    Returns:
        The samples with other integers.
    """
    free = [
        spec.name
        for spec in inputs
        if spec.dtype.kind in "iu" and spec.dtype.itemsize > 1 and not spec.categories
    ]
    if not free:
        return samples
    reference = ModelRunner(model, [output.name for output in model.graph.output])
    kinds = {i.name: (i.shape, i.dtype.name) for i in inputs}
    other_inputs = {name: array for name, array in samples.feeds[0].items() if name not in free}
    base, _ = base_integers(kinds, free, other_inputs, reference, lone_integers(model))
    integer_feeds: list[Mapping[str, NDArray[Any]]] = []
    for seed, kind in enumerate(("sizes", "small", "large", "negative")):
        pair = find_accepted_inputs(kinds, kind, other_inputs, base, reference, seed)
        integer_feeds.append(base if pair is None else {name: pair[0][name] for name in free})

    def in_turn(
        feeds: Sequence[Mapping[str, NDArray[Any]]],
    ) -> tuple[Mapping[str, NDArray[Any]], ...]:
        return tuple(
            {**feed, **integer_feeds[number % len(integer_feeds)]}
            for number, feed in enumerate(feeds)
        )

    return replace(samples, feeds=in_turn(samples.feeds), held_out=in_turn(samples.held_out))


def read_samples(path: Path, inputs: Sequence[Input]) -> Samples:
    """Read the samples of an NPZ file, or of all NPZ files in a folder, and hold some of them out.

    Args:
        path: path of the file or folder.
        inputs: inputs of the network.

    Returns:
        The samples.

    Raises:
        InputError: the files cannot be read, the arrays do not fit the inputs in name, shape or
            type, or the values are not finite.
    """
    feeds: list[Mapping[str, NDArray[Any]]] = []
    total = 0
    for file in sample_files(path):
        arrays = _read(file)
        total += sum(array.nbytes for array in arrays.values())
        if total > MAX_UNPACKED_BYTES:
            raise InputError(
                f"'{path}' contains more than {MAX_UNPACKED_BYTES >> 30} GiB of samples; "
                "give fewer samples, a few dozen are enough for calibration"
            )
        feeds += split_samples(arrays, inputs, str(file))
    return with_held_out(feeds)


def with_held_out(feeds: Sequence[Mapping[str, NDArray[Any]]]) -> Samples:
    """Split samples into samples from which scales are chosen and a few held-out samples.

    The held-out samples are spread evenly. If there are fewer than `FEWEST_SPLIT` samples, none is
    held out. A warning then says that the error is measured on the samples from which the scales
    were chosen.

    Args:
        feeds: arrays by input name, one mapping per sample.

    Returns:
        The samples.
    """
    if len(feeds) < FEWEST_SPLIT:
        samples = "one sample" if len(feeds) == 1 else f"{len(feeds)} samples"
        return Samples(tuple(feeds), FEW_WARNING.format(samples=samples, fewest=FEWEST_SPLIT))
    count = min(HELD_OUT, len(feeds) // 4)
    held = {(2 * turn + 1) * len(feeds) // (2 * count) for turn in range(count)}
    return Samples(
        tuple(feed for number, feed in enumerate(feeds) if number not in held),
        held_out=tuple(feed for number, feed in enumerate(feeds) if number in held),
    )


def split_samples(
    arrays: Mapping[str, NDArray[Any]], inputs: Sequence[Input], source: str
) -> list[dict[str, NDArray[Any]]]:
    """Split arrays into samples.

    An array holds one sample, one sample per index of an additional first axis, or one sample per
    batch along its first axis.

    Args:
        arrays: arrays by input name.
        inputs: inputs of the network.
        source: name of the arrays' origin, for error messages.

    Returns:
        One mapping from input name to array per sample.

    Raises:
        InputError: the arrays do not fit the inputs.
    """
    names = [i.name for i in inputs]
    if set(arrays) != set(names):
        raise InputError(
            f"'{source}' contains arrays named {_list_names(arrays)}, but the network's inputs "
            f"are {_list_names(names)}; name one array after each input"
        )
    stacks = {i.name: _stack(arrays[i.name], i, source) for i in inputs}
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise InputError(
            f"'{source}' contains different numbers of samples: "
            f"{', '.join((f'{count} of {name}' for name, count in counts.items()))}; give "
            "the same number of samples, at least one, for each input"
        )
    return [{name: stack[i] for name, stack in stacks.items()} for i in range(counts[names[0]])]


def sample_files(path: Path) -> list[Path]:
    """Return the NPZ files that `read_samples` reads from a path.

    Raises:
        InputError: the path does not exist or cannot be read, or the folder has no or too many NPZ
            files.
    """
    if not path.exists():
        raise InputError(
            f"the calibration samples '{path}' do not exist; give an NPZ file or a folder of "
            "NPZ files"
        )
    if not path.is_dir():
        return [path]
    try:
        files = sorted(file for file in path.iterdir() if file.suffix == ".npz")
    except OSError as error:
        raise InputError(
            f"cannot read '{path}': {error.strerror}; check its permissions"
        ) from error
    if not files:
        raise InputError(f"the folder '{path}' contains no .npz file; put the samples there")
    if len(files) > MAX_FILES:
        raise InputError(
            f"the folder '{path}' contains more than {MAX_FILES} files; give fewer, a few "
            "dozen samples are enough"
        )
    return files


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        return unpack_arrays(read_plain(file, limit=MAX_UNPACKED_BYTES))
    except UnsafeFile as error:
        raise InputError(f"{error}; give a plain NPZ file") from error
    except OSError as error:
        raise InputError(
            f"cannot read '{file}': {error.strerror}; check its permissions"
        ) from error
    except ValueError as error:
        raise InputError(
            f"'{file}' is not an NPZ file of plain arrays ({error}); write it with "
            "numpy.savez(file, input=array)"
        ) from None


def _stack(array: NDArray[Any], spec: Input, source: str) -> NDArray[Any]:
    """Return an array of one or several samples as a stack of samples in the input's type.

    Args:
        array: the array. It may hold one sample, or several along its first axis.
        spec: the input.
        source: name of the array's origin, for error messages.

    Returns:
        Array of shape (samples, *shape of the input).

    Raises:
        InputError: the shape or the type of the array does not fit the input.
    """
    shape = spec.shape
    if array.shape == shape:
        stack = array[None]
    elif array.shape[1:] == shape:
        stack = array
    elif shape and array.shape[1:] == shape[1:] and not array.shape[0] % max(shape[0], 1):
        stack = array.reshape(-1, *shape)
    else:
        raise InputError(
            f"'{source}' contains '{spec.name}' with the shape {array.shape}, but the input "
            f"has the shape {shape}; give one sample of that shape, or several as (samples, "
            f"{', '.join(map(str, shape))})"
        )
    if not _fits_type(array.dtype, spec.dtype):
        raise InputError(
            f"'{source}' contains '{spec.name}' as {array.dtype}, but the input is "
            f"{spec.dtype}; convert the array"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit are rejected below
        converted = np.ascontiguousarray(stack, spec.dtype)
    if spec.dtype.kind == "f" and not np.isfinite(converted).all():
        raise InputError(
            f"'{source}' contains values in '{spec.name}' that are not finite {spec.dtype} "
            "numbers; remove them"
        )
    if spec.dtype.kind in "iu" and (converted != stack).any():
        raise InputError(
            f"'{source}' contains values in '{spec.name}' that are too large for "
            f"{spec.dtype}; remove them"
        )
    return converted


def _fits_type(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether values of type `given` are accepted for an input of type `wanted`.

    Floats fit any float type, integers any integer type, and other types must be equal.
    """
    kinds = {"f": "f", "i": "iu", "u": "iu"}
    return given == wanted or given.kind in kinds.get(wanted.kind, "")


def _draw_input(spec: Input, random: np.random.Generator) -> NDArray[Any]:
    if spec.dtype.kind == "f":
        return random.standard_normal(spec.shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return np.ones(spec.shape, spec.dtype)
    # A quantised tensor, rather than a flag or an index.
    if spec.dtype.itemsize == 1 and not spec.categories:
        info = np.iinfo(spec.dtype)
        return random.integers(info.min, info.max + 1, spec.shape).astype(spec.dtype)
    return random.integers(0, spec.categories or 2, spec.shape).astype(spec.dtype)


def _table_sizes(normal: NormalGraph) -> dict[str, int]:
    """Return the number of rows of the table that each integer input indexes, by input name."""
    tensors, row_counts = normal.tensors(), dict[str, int]()
    for node in normal.graph.node:
        if node.op_type == "Gather" and node.input[0] in tensors:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            rows = math.prod(tensors[node.input[0]].dims[axis : axis + 1])
            row_counts[node.input[1]] = min(rows, row_counts.get(node.input[1], rows))
    return row_counts


def _list_names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in list(names)[:8]) or "nothing"
