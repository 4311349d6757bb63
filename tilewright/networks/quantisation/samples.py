"""Reads or draws calibration samples, on which the ranges of activations are measured.

A file is an NPZ of arrays by input name. An array of the input's own shape is one sample. One with
a leading axis more is a sample each, and so is one whose first axis holds the input's batch several
times. A folder holds such files, read in the order of their names.
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
from tilewright.networks.sample_values import accepted, base_integers
from tilewright.networks.zoo import digits

DEFAULT_SAMPLES = 8
DIGITS_SAMPLES = 64
HELD_OUT = 4
"""Samples that choose no scale, of sixteen or more; a quarter of eight or more."""
FEWEST_SPLIT = 8
MAX_FILES = 4096
SEEDED_WARNING = (
    "no calibration samples were given: ranges come from {count} seeded random inputs, and real "
    "data may have others; pass samples of real data (an NPZ file or a folder of them)"
)
FEW_WARNING = (
    "the error is measured on the {samples} that the scales were chosen by, and new inputs may be "
    "further off; calibrate with {fewest} samples or more, of which some are held out"
)


@dataclass(frozen=True)
class Input:
    """An input of a network: what one sample of it must be. Sizes in elements."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    categories: int = 0  # of an integer input that picks rows of a table: their number


@dataclass(frozen=True)
class Samples:
    """Samples as mappings, arrays by input name in the input's own shape: `feeds` choose scales,
    `held_out` none, so that errors are measured on them. `warning` says what is doubtful about
    them, "" where nothing is."""

    feeds: tuple[Mapping[str, NDArray[Any]], ...]
    warning: str = ""
    held_out: tuple[Mapping[str, NDArray[Any]], ...] = ()

    @property
    def judging(self) -> tuple[Mapping[str, NDArray[Any]], ...]:
        """The samples to measure errors on: those held out, else all."""
        return self.held_out or self.feeds

    def restricted(self, names: Collection[str]) -> Samples:
        """Return the samples of some inputs alone."""

        def of(
            feeds: Sequence[Mapping[str, NDArray[Any]]],
        ) -> tuple[Mapping[str, NDArray[Any]], ...]:
            return tuple({n: a for n, a in feed.items() if n in names} for feed in feeds)

        return Samples(of(self.feeds), self.warning, of(self.held_out))


def inputs_of(normal: NormalGraph) -> tuple[Input, ...]:
    """The inputs of a normalised model."""
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
    """Standard-normal arrays for float inputs; for integers, rows of the table they pick from, any
    value of eight bits, or 0 and 1. `HELD_OUT` more are held out. The same seed gives the same
    samples; they carry a warning."""
    random = np.random.default_rng([seed, 0x5A])
    drawn = [{each.name: _drawn(each, random) for each in inputs} for _ in range(count + HELD_OUT)]
    return Samples(tuple(drawn[:count]), SEEDED_WARNING.format(count=count), tuple(drawn[count:]))


def default_samples(model: onnx.ModelProto, inputs: Sequence[Input]) -> Samples:
    """Training images for the zoo's digits network, which has some; else `seeded_samples`."""
    if model.producer_name == "tilewright" and model.graph.name == "digits_cnn":
        images, _ = digits.training_set()
        feeds = tuple({"input": image[None]} for image in images[: DIGITS_SAMPLES + HELD_OUT])
        return Samples(feeds[:DIGITS_SAMPLES], held_out=feeds[DIGITS_SAMPLES:])
    return _with_integers(model, inputs, seeded_samples(inputs))


def _with_integers(model: onnx.ModelProto, inputs: Sequence[Input], samples: Samples) -> Samples:
    """Samples with several kinds of integers that the model accepts, in the inputs of which nothing
    says what they are: lengths, divisors, flags."""
    free = [
        each.name
        for each in inputs
        if each.dtype.kind in "iu" and each.dtype.itemsize > 1 and not each.categories
    ]
    if not free:
        return samples
    reference = ModelRunner(model, [output.name for output in model.graph.output])
    kinds = {each.name: (each.shape, each.dtype.name) for each in inputs}
    others = {name: array for name, array in samples.feeds[0].items() if name not in free}
    base, _ = base_integers(kinds, free, others, reference, lone_integers(model))
    found: list[Mapping[str, NDArray[Any]]] = []
    for seed, kind in enumerate(("sizes", "small", "large", "negative")):
        taken = accepted(kinds, kind, others, base, reference, seed)
        found.append(base if taken is None else {name: taken[0][name] for name in free})

    def in_turn(
        feeds: Sequence[Mapping[str, NDArray[Any]]],
    ) -> tuple[Mapping[str, NDArray[Any]], ...]:
        return tuple({**feed, **found[number % len(found)]} for number, feed in enumerate(feeds))

    return replace(samples, feeds=in_turn(samples.feeds), held_out=in_turn(samples.held_out))


def read_samples(path: Path, inputs: Sequence[Input]) -> Samples:
    """The samples of an NPZ file, or of all NPZ files of a folder, some held out.

    Raises `InputError` for what is no such file, for arrays that do not fit the inputs in name,
    shape or type, and for values that are no numbers.
    """
    feeds: list[Mapping[str, NDArray[Any]]] = []
    total = 0
    for file in sample_files(path):
        arrays = _read(file)
        total += sum(array.nbytes for array in arrays.values())
        if total > MAX_UNPACKED_BYTES:
            raise InputError(
                f"'{path}' holds more than {MAX_UNPACKED_BYTES >> 30} GiB of samples; "
                "a few dozen are enough to calibrate: give fewer"
            )
        feeds += split_samples(arrays, inputs, str(file))
    return with_held_out(feeds)


def with_held_out(feeds: Sequence[Mapping[str, NDArray[Any]]]) -> Samples:
    """Samples, arrays in the shapes of the inputs, of which a few, spread evenly, choose no scale.

    Fewer than `FEWEST_SPLIT` are not split, with a warning that errors are measured on samples that
    chose."""
    if len(feeds) < FEWEST_SPLIT:
        samples = "one sample" if len(feeds) == 1 else f"{len(feeds)} samples"
        return Samples(tuple(feeds), FEW_WARNING.format(samples=samples, fewest=FEWEST_SPLIT))
    count = min(HELD_OUT, len(feeds) // 4)
    held = {(2 * turn + 1) * len(feeds) // (2 * count) for turn in range(count)}
    return Samples(
        tuple(feed for place, feed in enumerate(feeds) if place not in held),
        held_out=tuple(feed for place, feed in enumerate(feeds) if place in held),
    )


def split_samples(
    arrays: Mapping[str, NDArray[Any]], inputs: Sequence[Input], source: str
) -> list[dict[str, NDArray[Any]]]:
    """Arrays by input name, of the shapes the module's text allows, sample by sample.

    `source` is what messages call them. Raises `InputError`.
    """
    names = [each.name for each in inputs]
    if set(arrays) != set(names):
        raise InputError(
            f"'{source}' holds arrays named {_listed(arrays)}, and the network's inputs are "
            f"{_listed(names)}; name one array for each input"
        )
    stacks = {each.name: _stack(arrays[each.name], each, source) for each in inputs}
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise InputError(
            f"'{source}' holds different numbers of samples: "
            f"{', '.join(f'{count} of {name}' for name, count in counts.items())}; "
            "give the same number, at least one, for each input"
        )
    return [{name: stack[i] for name, stack in stacks.items()} for i in range(counts[names[0]])]


def sample_files(path: Path) -> list[Path]:
    """The NPZ files that `read_samples` reads. Raises `InputError` where there are none."""
    if not path.exists():
        raise InputError(
            f"there is no '{path}' to calibrate with; give an NPZ file or a folder of them"
        )
    if not path.is_dir():
        return [path]
    try:
        files = sorted(file for file in path.iterdir() if file.suffix == ".npz")
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror}; check its rights") from error
    if not files:
        raise InputError(f"the folder '{path}' holds no .npz file; put samples there")
    if len(files) > MAX_FILES:
        raise InputError(
            f"the folder '{path}' holds more than {MAX_FILES} files; a few dozen samples are enough"
        )
    return files


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        return unpack_arrays(read_plain(file, limit=MAX_UNPACKED_BYTES))
    except UnsafeFile as error:
        raise InputError(f"{error}; give a plain NPZ file") from error
    except OSError as error:
        raise InputError(f"cannot read '{file}': {error.strerror}; check its rights") from error
    except ValueError as error:
        raise InputError(
            f"'{file}' is not an NPZ file of plain arrays ({error}); write it with "
            "numpy.savez(file, input=array)"
        ) from None


def _stack(array: NDArray[Any], each: Input, source: str) -> NDArray[Any]:
    """(samples, *shape of the input), in the input's type."""
    shape = each.shape
    if array.shape == shape:
        stack = array[None]
    elif array.shape[1:] == shape:
        stack = array
    elif shape and array.shape[1:] == shape[1:] and not array.shape[0] % max(shape[0], 1):
        stack = array.reshape(-1, *shape)
    else:
        raise InputError(
            f"'{source}' gives '{each.name}' the shape {array.shape}, and the input's is {shape}; "
            f"give one sample of that shape or several as (samples, "
            f"{', '.join(map(str, shape))})"
        )
    if not _fits(array.dtype, each.dtype):
        raise InputError(
            f"'{source}' gives '{each.name}' as {array.dtype}, and the input is {each.dtype}; "
            "convert the array"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        converted = np.ascontiguousarray(stack, each.dtype)
    if each.dtype.kind == "f" and not np.isfinite(converted).all():
        raise InputError(
            f"'{source}' has values in '{each.name}' that are not finite numbers of type "
            f"{each.dtype}; take them out"
        )
    if each.dtype.kind in "iu" and (converted != stack).any():
        raise InputError(
            f"'{source}' has values in '{each.name}' beyond {each.dtype}; take them out"
        )
    return converted


def _fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Floats of any size for a float, integers for an integer, else the very type."""
    kinds = {"f": "f", "i": "iu", "u": "iu"}
    return given == wanted or given.kind in kinds.get(wanted.kind, "")


def _drawn(each: Input, random: np.random.Generator) -> NDArray[Any]:
    if each.dtype.kind == "f":
        return random.standard_normal(each.shape).astype(each.dtype)
    if each.dtype.kind == "b":
        return np.ones(each.shape, each.dtype)
    if each.dtype.itemsize == 1 and not each.categories:  # a quantised tensor, not a flag or a row
        info = np.iinfo(each.dtype)
        return random.integers(info.min, info.max + 1, each.shape).astype(each.dtype)
    return random.integers(0, each.categories or 2, each.shape).astype(each.dtype)


def _table_sizes(normal: NormalGraph) -> dict[str, int]:
    """By integer input how many rows the table has that a Gather picks from with it."""
    tensors, found = normal.tensors(), dict[str, int]()
    for node in normal.graph.node:
        if node.op_type == "Gather" and node.input[0] in tensors:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            rows = math.prod(tensors[node.input[0]].dims[axis : axis + 1])
            found[node.input[1]] = min(rows, found.get(node.input[1], rows))
    return found


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in list(names)[:8]) or "nothing"
