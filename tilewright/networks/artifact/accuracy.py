"""Compares a built network with its source model, on samples that the artifact stores.

onnxruntime computes the expected outputs from the model in its original types. It shares no code
with packing, lowering and rescaling, so the comparison reveals any error between the model and the
accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, pack_arrays, unpack_arrays
from tilewright.networks.artifact.library_check import magnitude
from tilewright.networks.errors import InaccurateError

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]
Feed = Mapping[str, Array]

CHECK_FILE = "check.npz"
SAMPLES = 4
MOST_BYTES = 1 << 26
"""Maximum total size in bytes of the stored samples and their outputs. The first sample is stored
even if it is larger."""


@dataclass(frozen=True, eq=False)
class Check:
    """Samples on which a built network is compared with its source model.

    Attributes:
        inputs: the input arrays by name, one mapping per sample.
        outputs: the outputs of the source model by name, one mapping per sample.
        reference: name of the program that computed the outputs.
    """

    inputs: Sequence[Feed]
    outputs: Sequence[Feed]
    reference: str

    def to_bytes(self) -> bytes:
        """Serialise the samples for the artifact."""
        arrays: dict[str, Array] = {"reference": np.array(self.reference)}
        for role, feeds in (("input", self.inputs), ("output", self.outputs)):
            for number, feed in enumerate(feeds):
                arrays |= {f"{role} {number} {name}": array for name, array in feed.items()}
        return pack_arrays(arrays)


def unpack_check(content: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> Check:
    """Read the samples that `Check.to_bytes` wrote.

    Args:
        content: the serialised samples.
        inputs: names of the network's inputs.
        outputs: names of the network's outputs.

    Returns:
        The samples.

    Raises:
        ValueError: the content is damaged.
        KeyError: an input or an output is missing.
    """
    arrays = unpack_arrays(content)
    count = sum(name.startswith("output ") for name in arrays) // max(1, len(outputs))
    if count < 1:
        raise ValueError(f"{CHECK_FILE} contains no samples")
    check = [
        [{name: arrays[f"{role} {number} {name}"] for name in names} for number in range(count)]
        for role, names in (("input", inputs), ("output", outputs))
    ]
    return Check(check[0], check[1], str(arrays["reference"]))


@dataclass(frozen=True)
class OutputAccuracy:
    """Error of one output over all samples.

    Attributes:
        name: name of the output.
        relative: norm of the difference divided by the norm of the reference. For integers without
            a scale, the fraction of values that differ.
        largest: largest absolute difference of a value. For integers without a scale, the same
            fraction as `relative`.
        same_top: fraction of the rows along the last axis whose largest value is at the same
            position; None if the last axis has a single element.
        checked: True if the reference differs between samples. An output that is the same for all
            samples does not show whether it is computed from the inputs.
        problem: difference in element type or shape; empty if there is none.
    """

    name: str
    relative: float
    largest: float
    same_top: float | None
    checked: bool = True
    problem: str = ""


@dataclass(frozen=True)
class NetworkAccuracy:
    """Errors of an artifact compared with its source model.

    Attributes:
        reference: name of the program that ran the source model.
        samples: number of samples.
        tolerance: largest accepted relative error.
        outputs: error of each output.
    """

    reference: str
    samples: int
    tolerance: float
    outputs: tuple[OutputAccuracy, ...]

    @property
    def error(self) -> float:
        """Largest relative error of an output."""
        return max((output.relative for output in self.outputs), default=0.0)

    @property
    def is_right(self) -> bool:
        """True if the largest relative error is within the tolerance."""
        return self.error <= self.tolerance

    def to_json(self) -> dict[str, Json]:
        """Return the errors as an entry of the manifest."""
        return {
            "reference": self.reference, "samples": self.samples, "tolerance": self.tolerance,
            "error": self.error, "outputs": [vars(output) for output in self.outputs],
        }  # fmt: skip


def check_of(model: onnx.ModelProto, samples: Sequence[Feed]) -> Check:
    """Run the source model in onnxruntime, and return the samples with the model's outputs.

    Args:
        model: the source model.
        samples: input arrays by name, one mapping per sample. At most `SAMPLES` samples are used,
            and fewer if they take more than `MOST_BYTES`.

    Returns:
        The samples with the expected outputs.

    Raises:
        InputError: the model does not run on a sample.
    """
    from tilewright.networks.model_runner import run_feeds

    names = [output.name for output in model.graph.output]
    inputs: list[Feed] = []
    outputs: list[Feed] = []
    size = 0
    for feed, result in zip(samples, run_feeds(model, names, samples[:SAMPLES]), strict=False):
        size += sum(array.nbytes for item in (feed, result) for array in item.values())
        if inputs and size > MOST_BYTES:
            break
        inputs.append(dict(feed))
        outputs.append(result)
    return Check(inputs, outputs, "onnxruntime")


def accuracy(
    check: Check, infer: Callable[[Feed], Feed], tolerance: float, zeros: Mapping[str, int]
) -> NetworkAccuracy:
    """Compare a network's outputs with those of its source model.

    Args:
        check: samples with the outputs of the source model.
        infer: function that runs the built network on input arrays by name, and returns output
            arrays by name.
        tolerance: largest accepted relative error.
        zeros: zero point of each output that holds integers with a scale, by output name.

    Returns:
        The error of each output over all samples.
    """
    outputs = [infer(feed) for feed in check.inputs]
    return NetworkAccuracy(
        check.reference, len(check.inputs), tolerance,
        tuple(
            _error(
                name, [expected[name] for expected in check.outputs],
                [output[name] for output in outputs], zeros.get(name), tolerance,
            )
            for name in check.outputs[0]
        ),
    )  # fmt: skip


def refuse_inaccurate(accuracy: NetworkAccuracy, network: str) -> None:
    """Raise an error if a network exceeds its tolerance.

    Args:
        accuracy: errors of the network's outputs.
        network: name of the network, for the message.

    Raises:
        InaccurateError: the largest relative error exceeds the tolerance.
    """
    if not accuracy.is_right:
        worst = max(accuracy.outputs, key=lambda output: output.relative)
        if worst.problem:
            raise InaccurateError(
                f"the output '{worst.name}' of {network} differs from the source model: "
                f"{worst.problem}; please report the model"
            )
        raise InaccurateError(
            f"the output '{worst.name}' of {network} is off by {worst.relative:.2g} "
            f"(relative error on {accuracy.samples} samples), compared with {accuracy.reference} "
            f"on the source model; the tolerance is {accuracy.tolerance:g}; "
            "calibrate with real "
            "samples (--calibration), keep the layers that lose most accuracy in floating "
            "point (--keep-float), or raise --tolerance"
        )


def _error(
    name: str, expected: Sequence[Array], result: Sequence[Array], zero: int | None,
    tolerance: float,
) -> OutputAccuracy:  # fmt: skip
    for real, ours in zip(expected, result, strict=True):
        problem = ""
        if ours.dtype != real.dtype:
            problem = f"its type is {ours.dtype} instead of {real.dtype}"
        elif ours.shape != real.shape:
            problem = f"its shape is {ours.shape} instead of {real.shape}"
        if problem:
            return OutputAccuracy(name, float("inf"), float("inf"), None, problem=problem)
    if len({item.shape for item in expected}) > 1:  # the shape depends on values of tensors
        pairs = zip(expected, result, strict=True)
        alone = [_error(name, [real], [ours], zero, tolerance) for real, ours in pairs]
        return max(alone, key=lambda item: item.relative)
    wanted, got = (
        np.stack([np.asarray(array) for array in arrays]) for arrays in (expected, result)
    )
    checked = bool(len(wanted) < 2 or (wanted[1:] != wanted[0]).any())
    top = None
    if wanted.ndim > 1 and wanted.shape[-1] > 1:
        top = float((wanted.argmax(axis=-1) == got.argmax(axis=-1)).mean())
    if wanted.dtype.kind != "f" and zero is None:
        unequal = float((wanted != got).mean()) if wanted.size else 0.0
        return OutputAccuracy(name, unequal, unequal, top, checked)
    real, ours = (item.astype(np.float64) - (zero or 0) for item in (wanted, got))
    same = (real == ours) | (np.isnan(real) & np.isnan(ours))
    off = np.where(same, 0.0, np.abs(real - ours))
    if not np.isfinite(off).all():
        return OutputAccuracy(name, float("inf"), float("inf"), top, checked)
    size = float(np.linalg.norm(np.where(np.isfinite(real), real, 0.0)))
    floor = magnitude(0.0, tolerance) * np.sqrt(real.size)  # the norm of values of this size
    relative = np.linalg.norm(off) / max(size, floor)
    return OutputAccuracy(name, float(relative), float(off.max(initial=0.0)), top, checked)
