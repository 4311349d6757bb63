"""Compares a compiled library with its source model, on samples of several kinds.

The comparison first checks the element types and shapes, then the values. The error of an output is
its largest difference divided by its largest value. For outputs close to zero, the divisor is
raised, so that differences up to `NEGLIGIBLE` stay within the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import pack_arrays, unpack_arrays
from tilewright.networks.artifact.run import as_text_objects
from tilewright.networks.errors import InaccurateError, InputError
from tilewright.networks.sample_values import (
    TEXT,
    Feed,
    Kinds,
    NetworkSample,
    draw_samples,
    perturb_inputs,
)

Array = NDArray[Any]
SATURATING = "large"
"""Kind of the samples whose floating-point inputs are far outside the usual range, so that
activation functions saturate."""
Infer = Callable[[Feed], Mapping[str, Array]]

NEGLIGIBLE = 1e-6
"""Absolute difference between two outputs up to which they count as equal. The sigmoids and
softmaxes of two libraries differ by about 1e-7."""
MOST_BYTES = 1 << 26
"""Maximum total size in bytes of the stored samples and their outputs. The first sample is stored
even if it is larger."""
HARDLY = 0.01
"""Size of the perturbation of the inputs with which the stability of the source model is tested, as
a fraction of the tolerance."""
CHANGED = 0.25
"""Fraction of the library's error on a sample. If perturbing the inputs changes the outputs of the
source model by at least this fraction, the sample cannot show that the library is wrong. An example
is a sample of zeros, on which rounding decides the order of equal scores."""


class SourceModel(Protocol):
    """A network before compilation, which can be run as the reference."""

    def seeded_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return random arrays with the shapes and types of the inputs, by name."""

    @property
    def reference(self) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
        """Function that runs the source model; it takes and returns arrays by name."""

    @property
    def constants(self) -> Sequence[int]:
        """Scalar integer constants in the model. Samples use them as input values."""

    @property
    def is_undrawable(self) -> bool:
        """True if random inputs cannot be generated for the model."""

    @property
    def halves(self) -> Sequence[str]:
        """Names of outputs that are float16 in the model file and float32 in the reference."""


@dataclass(frozen=True)
class OutputDifference:
    """Error of an output on one sample.

    Attributes:
        name: name of the output.
        error: largest difference, relative to the largest value; infinite if the element type or
            the shape differs.
        problem: difference in element type or shape; empty if there is none.
    """

    name: str
    error: float
    problem: str = ""


def samples_of(source: SourceModel) -> list[NetworkSample]:
    """Generate samples for a network, with the outputs of its source model.

    `sample_values.draw_samples` describes the kinds of samples.

    Args:
        source: the source model.

    Returns:
        The samples.

    Raises:
        InputError: inputs cannot be generated, or the model rejects the first sample.
    """
    if source.is_undrawable:
        raise InputError("no valid random inputs of the model can be generated")
    kinds: Kinds = {
        name: (array.shape, TEXT if array.dtype.kind == "O" else array.dtype.name)
        for name, array in source.seeded_inputs().items()
    }
    samples: list[NetworkSample] = []
    size = 0
    for drawn in draw_samples(kinds, source.reference, source.constants):
        sample = replace(drawn, outputs=to_float16(drawn.outputs, source.halves))
        size += sum(a.nbytes for feed in (sample.inputs, sample.outputs) for a in feed.values())
        if samples and size > MOST_BYTES:
            break
        samples.append(sample)
    return samples


def to_float16(outputs: Feed, halves: Collection[str]) -> dict[str, Array]:
    """Return a copy of a network's outputs in which some are converted to float16.

    Args:
        outputs: arrays by name.
        halves: names of the outputs to convert.
    """
    with np.errstate(over="ignore"):
        return {
            name: array.astype(np.float16) if name in halves else array
            for name, array in outputs.items()
        }


def decisive_samples(
    samples: Sequence[NetworkSample], infer: Infer, source: SourceModel, tolerance: float, name: str
) -> tuple[list[NetworkSample], float]:
    """Check a library on samples. Return the decisive samples and the largest error on them.

    A sample on which the error exceeds the tolerance usually means that the library is wrong. In
    two cases it does not; the sample is then not decisive and is left out:

    - The outputs of the source model itself change about as much if the inputs are slightly
      perturbed.
    - It is a sample of large inputs, and only integer outputs differ. Large inputs saturate
      activations, and then the last bit decides which of several equal scores is the largest.

    Neither case applies to the first sample. The first case does not apply to differences in type
    or shape.

    Args:
        samples: the samples.
        infer: function that runs the library.
        source: the source model.
        tolerance: largest accepted error.
        name: name of the network, for messages.

    Returns:
        The decisive samples, and the largest error on them.

    Raises:
        InaccurateError: the library exceeds the tolerance on a decisive sample.
    """
    kept: list[NetworkSample] = []
    error = 0.0
    for number, sample in enumerate(samples):
        made = infer(sample.inputs)
        worst = worst_output(made, sample.outputs, tolerance)
        if not worst.error <= tolerance:
            reals = {
                k: output for k, output in sample.outputs.items() if output.dtype.kind not in "iub"
            }
            reals_fit = worst_output(made, reals, tolerance).error <= tolerance
            tie = sample.kind == SATURATING and reals_fit
            stable = worst.problem or not _is_unstable(sample, source, worst, tolerance)
            if number == 0 or (stable and not tie):
                raise InaccurateError(_refusal(name, sample, worst, tolerance))
            continue
        kept.append(sample)
        error = max(error, worst.error)
    return kept, error


def unchecked_outputs(samples: Sequence[NetworkSample]) -> list[str]:
    """Return the names of outputs that have the same values on all samples.

    A comparison of such an output does not show whether the library computes it from the inputs.

    Args:
        samples: samples with the outputs of the source model.
    """
    first = samples[0].outputs
    return [
        name
        for name, array in first.items()
        if all(
            sample.outputs[name].shape == array.shape
            and np.array_equal(sample.outputs[name], array, equal_nan=array.dtype.kind == "f")
            for sample in samples[1:]
        )
    ]


def worst_output(
    outputs: Mapping[str, Array], expected: Feed, tolerance: float
) -> OutputDifference:
    """Return the output with the largest error.

    Args:
        outputs: outputs of the library by name.
        expected: outputs of the source model by name.
        tolerance: largest accepted error. It determines the smallest divisor (see `magnitude`).

    Returns:
        The error of that output.
    """
    errors = [
        output_error(name, outputs[name], array, tolerance) for name, array in expected.items()
    ]
    return max(errors, key=lambda error: error.error, default=OutputDifference("", 0.0))


def output_error(name: str, output: Array, expected: Array, tolerance: float) -> OutputDifference:
    """Return the error of one output, relative to the largest value of the expected output.

    The error is infinite if the element type or the shape differs, if only one of two values is
    NaN, or if infinities differ.

    Args:
        name: name of the output.
        output: output of the library.
        expected: output of the source model.
        tolerance: largest accepted error. It determines the smallest divisor (see `magnitude`).

    Returns:
        The error.
    """
    if output.dtype != expected.dtype:
        return OutputDifference(
            name, np.inf, f"its type is {output.dtype} instead of {expected.dtype}"
        )
    if output.shape != expected.shape:
        return OutputDifference(
            name, np.inf, f"its shape is {output.shape} instead of {expected.shape}"
        )
    if expected.dtype.kind not in "fiub":
        return OutputDifference(name, 0.0 if np.array_equal(output, expected) else np.inf)
    ours, real = output.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (ours == real) | (np.isnan(ours) & np.isnan(real))
        off = np.where(same, 0.0, np.abs(ours - real))
        if expected.dtype == np.float16:  # the last bit may be rounded up or down
            off = np.maximum(off - np.spacing(np.abs(expected)).astype(np.float64), 0.0)
    largest = float(np.abs(real[np.isfinite(real)]).max(initial=0.0))
    worst = float(np.where(np.isnan(off), np.inf, off).max(initial=0.0))
    return OutputDifference(name, worst / magnitude(largest, tolerance) if worst else 0.0)


def magnitude(size: float, tolerance: float) -> float:
    """Return the divisor that converts differences of an output to relative errors.

    Args:
        size: largest absolute value of the output.
        tolerance: largest accepted relative error.

    Returns:
        `size`, but at least so large that a difference of `NEGLIGIBLE` is within the tolerance.
    """
    return max(size, NEGLIGIBLE / tolerance if tolerance > 0 else 0.0, np.finfo(np.float64).tiny)


def pack_samples(samples: Sequence[NetworkSample]) -> bytes:
    """Serialise samples as the content of the artifact's file `check.npz`.

    Args:
        samples: the samples, with inputs and outputs.
    """
    arrays: dict[str, Array] = {}
    for number, sample in enumerate(samples):
        prefix = f"sample {number} {sample.kind} " if number else ""
        for role, feed in (("input", sample.inputs), ("output", sample.outputs)):
            arrays |= {f"{prefix}{role} {name}": array for name, array in feed.items()}
    return pack_arrays(arrays)


def unpack_samples(
    content: bytes, inputs: Sequence[str], outputs: Sequence[str]
) -> list[NetworkSample]:
    """Read the samples that `pack_samples` wrote.

    Artifacts of earlier versions contain a single sample.

    Args:
        content: the serialised samples.
        inputs: names of the network's inputs.
        outputs: names of the network's outputs.

    Returns:
        The samples.

    Raises:
        KeyError: an input or an output is missing.
        ValueError: the content is damaged.
    """
    arrays = unpack_arrays(content)
    marker = f"output {outputs[0]}" if outputs else ""
    further = [key.removesuffix(marker) for key in arrays if marker and _is_further(key, marker)]
    prefixes = ["", *sorted(further, key=lambda prefix: int(prefix.split()[1]))]
    return [
        NetworkSample(
            " ".join(prefix.split()[2:]) or "normal",
            {name: as_text_objects(arrays[f"{prefix}input {name}"]) for name in inputs},
            {name: as_text_objects(arrays[f"{prefix}output {name}"]) for name in outputs},
        )
        for prefix in prefixes
    ]


def _is_further(key: str, marker: str) -> bool:
    words = key.split(" ", 2)
    return len(words) == 3 and words[0] == "sample" and words[1].isdigit() and key.endswith(marker)


def _is_unstable(
    sample: NetworkSample, source: SourceModel, worst: OutputDifference, tolerance: float
) -> bool:
    """Return whether a sample cannot show that the library is wrong.

    This is the case if the outputs of the source model itself change about as much when the inputs
    are slightly perturbed.

    Args:
        sample: the sample.
        source: the source model.
        worst: the output with the largest error on this sample.
        tolerance: largest accepted error.
    """
    outputs = source.reference(perturb_inputs(sample.inputs, HARDLY * tolerance))
    moved = to_float16(outputs, source.halves)[worst.name]
    changed = output_error(worst.name, moved, sample.outputs[worst.name], tolerance)
    return changed.error >= CHANGED * worst.error


def _refusal(name: str, sample: NetworkSample, worst: OutputDifference, tolerance: float) -> str:
    if worst.problem:
        return (
            f"the output '{worst.name}' of {name} differs from the source model: "
            f"{worst.problem}; please report the model"
        )
    return (
        f"the output '{worst.name}' of {name} is off by {worst.error:.2g} of its largest "
        f"value on a sample of {sample.kind} inputs, compared with the source model; the "
        f"tolerance is {tolerance:g}; raise --tolerance, or please report the model"
    )
