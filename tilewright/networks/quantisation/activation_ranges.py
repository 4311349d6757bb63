"""Measures the ranges of activations on calibration samples, and chooses power-of-two exponents.

A scale is 2 to the power of an exponent. The methods "entropy" and "percentile" use onnxruntime's
calibrators. The rule "least_error" compares quantisation errors; it also estimates the clipping
error of values that are larger than any value in the samples.
"""

from __future__ import annotations

import io
import math
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import InputError, QuantisationError, first_line
from tilewright.networks.model_runner import Feed, ModelRunner
from tilewright.networks.onnxruntime_options import failures, quiet_options
from tilewright.networks.quantisation.exponents import (
    INT8_MAX,
    MOST,
    covering_exponent,
    squared_error,
)

onnxruntime = lazy_module("onnxruntime")
calibrate = lazy_module("onnxruntime.quantization.calibrate")

Method = Literal["minmax", "entropy", "percentile"]
"""Method by which the range of an activation is determined; see `QuantiseOptions`."""

ENTROPY_BINS = 256
"""Number of histogram bins for the entropy method. onnxruntime's default of 128 bins equals its
number of quantisation levels, so that there would be nothing to choose."""
WATCHED_ELEMENTS = 65_536
"""Maximum number of values per tensor and sample for which the squared error is computed."""
TRIES = 3
"""Number of exponents that are compared: the smallest exponent that clips no value, and the next
smaller exponents."""
KEPT_BYTES = 1 << 28
"""Maximum size in bytes of the values that are kept from the first run of a model. The model does
not have to run again on samples whose values were kept."""

Watched = Mapping[str, NDArray[Any]]
"""Selected values of each tensor in one sample, shape (n,), by tensor name."""


@dataclass(frozen=True)
class Observation:
    """Ranges of tensors that were measured on the calibration samples.

    Attributes:
        largest: largest magnitude that int8 has to represent, by tensor name.
        watched: up to `WATCHED_ELEMENTS` values of each tensor, one mapping per sample. Only the
            first samples are kept, because memory is limited.
    """

    largest: Mapping[str, float]
    watched: Sequence[Watched] = ()


def observe(
    model: onnx.ModelProto,
    run: ModelRunner,
    tensors: Collection[str],
    operators: Collection[str],
    feeds: Sequence[Feed],
    method: Method,
    percentile: float,
) -> Observation:
    """Measure the largest magnitude that int8 has to represent, for each float tensor.

    Args:
        model: the float model.
        run: function that returns the values of these tensors for a feed.
        tensors: names of the tensors.
        operators: ONNX types of the operators that read or write the tensors.
        feeds: calibration samples, arrays by input name.
        method: how the magnitude is determined; see `QuantiseOptions`.
        percentile: the percentile of the method "percentile", in percent.

    Returns:
        The measured ranges.

    Raises:
        InputError: the model does not run on a sample.
    """
    # onnxruntime's own method takes quadratic time in the number of operators.
    if method == "minmax":
        return _observe_largest(run, tensors, feeds)
    methods: dict[Method, tuple[Any, dict[str, float]]] = {
        "entropy": (calibrate.CalibrationMethod.Entropy, {"num_bins": ENTROPY_BINS}),
        "percentile": (calibrate.CalibrationMethod.Percentile, {"percentile": percentile}),
    }
    chosen, extra = methods[method]
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        # Ignore warnings about NaN, which `covering_exponents` rejects.
        warnings.simplefilter("ignore", RuntimeWarning)
        source = Path(folder) / "float.onnx"
        watched = Path(folder) / "watched.onnx"
        onnx.save(model, source)
        calibrator = calibrate.create_calibrator(
            source,
            op_types_to_calibrate=sorted(operators),
            augmented_model_path=str(watched),
            calibrate_method=chosen,
            extra_options={"symmetric": True, **extra},
        )
        # onnxruntime's default session prints every error.
        calibrator.infer_session = onnxruntime.InferenceSession(
            str(watched), options, providers=["CPUExecutionProvider"]
        )
        # One at a time, since the collector keeps all tensors of a call in memory.
        for feed in feeds:
            try:
                calibrator.collect_data(_reader(feed))
            except failures() as error:
                raise InputError(
                    f"the model cannot run on a calibration sample: {first_line(error)}; "
                    "check the values of the calibration samples"
                ) from error
        ranges = calibrator.compute_data()
    return Observation({n: _magnitude(ranges[n].range_value) for n in sorted(tensors)})


def _observe_largest(
    run: ModelRunner, tensors: Collection[str], feeds: Sequence[Feed]
) -> Observation:
    """Measure the largest magnitude of each tensor over all samples.

    Args:
        run: function that returns the values of the tensors for a sample.
        tensors: names of the tensors.
        feeds: samples, arrays by input name.

    Returns:
        The magnitudes, NaN for a tensor with a NaN value, and up to `KEPT_BYTES` of values from the
        first samples.
    """
    largest = dict.fromkeys(sorted(tensors), 0.0)
    kept: list[Watched] = []
    left = KEPT_BYTES
    for feed in feeds:
        values = run(feed)
        for name in largest:
            seen = np.abs(values[name]).max(initial=0.0)
            largest[name] = float(np.maximum(largest[name], seen))
        if left > 0:
            watched = {name: _thin_out(values[name]).copy() for name in largest}
            left -= sum(value.nbytes for value in watched.values())
            if left > 0:
                kept.append(watched)
    return Observation(largest, kept)


def covering_exponents(largest: Mapping[str, float]) -> dict[str, int]:
    """Return the smallest exponent e at which int8 with scale 2^e clips no value, for each tensor.

    Exponents are at least -`LIMIT`. A tensor of zeros gets the exponent `OF_ZEROS`.

    Args:
        largest: largest magnitude by tensor name.

    Returns:
        The exponents by tensor name.

    Raises:
        QuantisationError: a magnitude is too large, NaN or infinite.
    """
    for name, value in largest.items():
        if not value <= MOST:
            raise QuantisationError(
                f"the tensor '{name}' reaches {value:.3g} on the calibration samples, but "
                f"int8 scales cover at most {MOST:.3g}; check the samples and the weights "
                "before this tensor, or keep its layer in floating point (--keep-float)"
            )
    return {name: covering_exponent(value) for name, value in largest.items()}


def least_error_exponents(
    run: ModelRunner,
    covering_all: Mapping[str, int],
    feeds: Sequence[Feed],
    *,
    above: bool = False,
    watched: Sequence[Watched] = (),
) -> dict[str, int]:
    """Return the exponent with the smallest expected squared quantisation error, for each tensor.

    The expected error is the error on the samples plus an estimate of the clipping error of unseen
    values (`Tail`). These exponents are compared: the smallest exponent that clips nothing, the
    next two smaller ones, and optionally the next larger one.

    Args:
        run: function that returns the values of the tensors for a feed.
        covering_all: the smallest exponent that clips nothing, by tensor name.
        feeds: calibration samples, arrays by input name.
        above: also compare the next larger exponent.
        watched: values of the first samples, if they are known already. The model then runs only on
            the remaining samples.

    Returns:
        The exponents by tensor name.

    Raises:
        InputError: the model does not run on a sample.
    """
    steps = (*range(0, -TRIES, -1), *((1,) if above else ()))  # the first of equal errors wins
    tries = {name: [e + step for step in steps] for name, e in covering_all.items()}
    errors = {name: np.zeros(len(steps)) for name in covering_all}
    tails = {name: Tail() for name in covering_all}
    remaining_runs = map(run, feeds[len(watched) :])
    remaining_values = (
        {name: _thin_out(values[name]) for name in covering_all} for values in remaining_runs
    )
    for values in chain(watched, remaining_values):
        for name in covering_all:
            tails[name].add(values[name])
            errors[name] += [squared_error(values[name], exponent) for exponent in tries[name]]
    for name, tail in tails.items():
        errors[name] += [tail.unseen_error(math.ldexp(INT8_MAX, e)) for e in tries[name]]
    return {name: tries[name][int(np.argmin(error))] for name, error in errors.items()}


def _thin_out(values: NDArray[Any]) -> NDArray[Any]:
    """Select evenly spaced values of an array, at most `WATCHED_ELEMENTS`.

    Args:
        values: array of any shape.

    Returns:
        Array of shape (n,).
    """
    flat = values.ravel()
    step = -(-len(flat) // WATCHED_ELEMENTS)
    # An odd step does not select a fixed column of an image.
    return flat[:: step + 1 - step % 2] if step > 1 else flat


def _magnitude(bounds: tuple[Any, Any]) -> float:
    """Return the larger magnitude of a lower and an upper bound.

    Args:
        bounds: the two bounds, numbers or arrays of any shape.

    Returns:
        The magnitude; NaN if a bound contains NaN.
    """
    return float(np.max([np.abs(np.asarray(bound)).max(initial=0.0) for bound in bounds]))


def _reader(feed: Feed) -> Any:
    interface: Any = calibrate.CalibrationDataReader

    class OneSample(interface):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Feed] = iter([feed])

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            sample = next(self._left, None)
            return None if sample is None else dict(sample)

    return OneSample()


SHARE = 0.01
"""Fraction of all values of a tensor that belong to its tail. The number of values is at least
`FEWEST_IN_TAIL` and at most `MOST_IN_TAIL`."""
FEWEST_IN_TAIL, MOST_IN_TAIL = 8, 64
WEIGHT = 2.0
"""Weight of the estimated clipping error of unseen values. Clipping affects a few inputs strongly,
whereas a larger quantisation step distributes the same squared error over all inputs."""


class Tail:
    """Largest magnitudes of one tensor over all calibration samples.

    They are used to estimate the clipping error of values that exceed those in the samples.
    """

    def __init__(self) -> None:
        self._count = 0
        self._top = np.empty(0, np.float64)

    def add(self, values: NDArray[Any]) -> None:
        """Add the values of one sample, an array of any shape."""
        magnitudes = np.abs(values.ravel())
        self._count += magnitudes.size
        self._top = _top(np.concatenate([self._top, _top(magnitudes)]))

    def unseen_error(self, limit: float) -> float:
        """Estimate the additional squared clipping error on values that the samples do not contain.

        As many new values as in the samples are assumed. The amount by which values exceed the
        tail's threshold is modelled by an exponential distribution. The clipping error on the
        samples is subtracted, because the caller has already counted it. The difference is
        multiplied by `WEIGHT`.

        Args:
            limit: magnitude at which values are clipped.

        Returns:
            The error; 0 if the error on the samples exceeds the estimate, or if `limit` is below
            the tail's threshold.
        """
        top = np.sort(self._top[self._top > 0])[::-1]
        size = min(max(FEWEST_IN_TAIL, int(self._count * SHARE)), MOST_IN_TAIL, top.size - 1)
        if size < 1 or limit < top[size]:
            return 0.0
        threshold, tail = float(top[size]), top[:size]
        excess = float((tail - threshold).mean())
        if excess <= 0:
            return 0.0
        expected = size * math.exp(-(limit - threshold) / excess) * 2 * excess**2
        seen = float(np.sum(np.maximum(tail - limit, 0.0) ** 2))
        return WEIGHT * max(0.0, expected - seen)


def _top(magnitudes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the `MOST_IN_TAIL` + 1 largest values of a vector, in any order."""
    if magnitudes.size > MOST_IN_TAIL + 1:
        kept = MOST_IN_TAIL + 1
        magnitudes = np.partition(magnitudes, magnitudes.size - kept)[-kept:]
    return magnitudes.astype(np.float64)
