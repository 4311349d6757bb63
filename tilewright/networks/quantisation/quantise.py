"""Quantises a float ONNX model to int8 with power-of-two scales, using calibration samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.core.errors import UnknownName
from tilewright.core.files import Json
from tilewright.networks.errors import NothingToQuantise, QuantisationError
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.importing import fused_calls
from tilewright.networks.model_runner import ModelRunner
from tilewright.networks.onnx.files import without_weights
from tilewright.networks.onnx.graph import NormalGraph
from tilewright.networks.onnx.normalise import fixed_graph, make_importable
from tilewright.networks.onnx.static_shapes import complete_shapes
from tilewright.networks.onnx.to_qdq import is_quantised, to_qdq
from tilewright.networks.quantisation.activation_ranges import (
    Method,
    covering_exponents,
    least_error_exponents,
    observe,
)
from tilewright.networks.quantisation.bn_folding import FoldedGraph, fold_batch_norms
from tilewright.networks.quantisation.exponents import MOST, by_channel, choose_exponents
from tilewright.networks.quantisation.plan import QuantisationPlan, plan_layers
from tilewright.networks.quantisation.samples import (
    Input,
    Samples,
    default_samples,
    inputs_of,
    read_samples,
)
from tilewright.networks.quantisation.sqnr import QuantisationReport, float_outputs, measure_noise
from tilewright.networks.quantisation.weights_and_biases import insert_qdq

Rule = Literal["cover", "least_error"]
"""Rule by which the range of a tensor is converted to a power of two; see `QuantiseOptions`."""
METHODS, RULES = ("minmax", "entropy", "percentile"), ("cover", "least_error")


@dataclass(frozen=True)
class QuantiseOptions:
    """Options for choosing the scales of int8 tensors.

    Attributes:
        method: how the range of an activation is determined, as in onnxruntime's calibrators.
            "minmax" takes the largest magnitude in the samples, "entropy" the range with the
            smallest relative entropy, and "percentile" a percentile of all magnitudes.
        rule: how the range becomes a power-of-two scale. "cover" takes the smallest scale that does
            not clip the range. "least_error" takes the scale with the smallest expected squared
            error. It compares the scale of "cover", the next two smaller scales and, for "minmax",
            the next larger scale.
        percentile: the percentile of the method "percentile", from 50 to 100.
        keep_float: names of operators that stay in float. The whole layer that contains such an
            operator stays in float.
        per_channel: use a separate scale for the weights of each output channel where that improves
            the accuracy enough (`exponents.by_channel`).

    Raises:
        QuantisationError: an option has an invalid value.
    """

    method: Method = "minmax"
    rule: Rule = "least_error"
    percentile: float = 99.999
    keep_float: tuple[str, ...] = ()
    per_channel: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise QuantisationError(
                f"unknown method '{self.method}'; choose one of {', '.join(METHODS)}"
            )
        if self.rule not in RULES:
            raise QuantisationError(f"unknown rule '{self.rule}'; choose one of {', '.join(RULES)}")
        if not 50 <= self.percentile <= 100:
            raise QuantisationError(f"the percentile {self.percentile} is not between 50 and 100")


@dataclass(frozen=True)
class Quantised:
    """A model that was quantised from float to int8.

    Attributes:
        model: the int8 model in QDQ form (pairs of QuantizeLinear and DequantizeLinear).
        exponents: exponent of the power-of-two scale of each int8 activation, by name of the float
            tensor.
        report: the settings of the quantisation, and the error of each layer.
    """

    model: onnx.ModelProto
    exponents: Mapping[str, int]
    report: QuantisationReport


def quantise(
    model: onnx.ModelProto,
    samples: Samples | None = None,
    options: QuantiseOptions | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    judged: bool = True,
) -> Quantised:
    """Quantise a float model to int8.

    Args:
        model: the float model with its weights.
        samples: calibration samples. By default, the samples that belong to the network are used.
            If there are none, random samples are used, and the report contains a warning.
        options: options for choosing the scales.
        input_shapes: shape for each dynamic input, by input name.
        judged: measure the quantisation error of each layer, which requires running both models.

    Returns:
        The int8 model with a report.

    Raises:
        QuantisationError: the model is already quantised or has no weights, or its weights or
            activations are too large or not finite.
        NothingToQuantise: the model has no operator that can run in int8.
        UnknownName: the model does not have an operator in `keep_float`.
        InputError: the model does not run on the samples.
        ModelFileError: the model is not valid.
        DynamicShapeError: an input shape is unknown or wrong.
        ImportFailedError: the model cannot be imported.
    """
    if is_quantised(model):
        raise QuantisationError(
            "the model is already quantised and is used as it is; to quantise it again, "
            "give the original float model"
        )
    fixed = fixed_graph(model, input_shapes or {})
    samples = samples or default_samples(model, inputs_of(fixed))
    return quantise_graph(fixed, samples, options, judged=judged)


def quantise_graph(
    fixed: NormalGraph,
    samples: Samples,
    options: QuantiseOptions | None = None,
    *,
    judged: bool = True,
    calls: Sequence[FusedCall] | None = None,
) -> Quantised:
    """Quantise a float model with static shapes to int8. Raises the same errors as `quantise`.

    Args:
        fixed: the float model with its weights and static shapes. It is not changed.
        samples: calibration samples.
        options: options for choosing the scales.
        judged: measure the quantisation error of each layer, which requires running both models.
        calls: the fused calls of the model that an accelerator could run, if they are known
            already.

    Returns:
        The int8 model with a report.
    """
    options = options or QuantiseOptions()
    folded = fold_batch_norms(fixed)
    normal = folded.normal
    complete_shapes(normal)  # ONNX cannot infer shapes after onnxruntime's own operators
    if not samples.feeds:
        raise QuantisationError("there are no calibration samples; give at least one")
    name = fixed.graph.name or "model"
    if calls is not None:
        calls = calls_behind_folding(calls, folded)
    if calls is None:
        calls = fused_calls(normal)
    result = plan_layers(normal, calls, options.keep_float)
    if not result.groups:
        raise NothingToQuantise(
            f"no layer of '{name}' can run in int8: it has no convolution or product with "
            "constant weights, except for layers that are kept in float"
        )
    _check_constants(normal, result)
    operators = {node.op_type for node in normal.graph.node if node.name in result.nodes}
    run = ModelRunner(normal.model, [*sorted(result.tensors), *float_outputs(normal.model)])
    observed = observe(
        normal.model,
        run,
        result.tensors,
        operators,
        samples.feeds,
        options.method,
        options.percentile,
    )
    measured = covering_exponents(observed.largest)
    if options.rule == "least_error":
        measured = least_error_exponents(
            run, measured, samples.feeds, above=options.method == "minmax",
            watched=observed.watched,
        )  # fmt: skip
    exponents = choose_exponents(normal, result, measured)
    if options.per_channel:
        exponents = by_channel(normal, result, exponents)
    integer = insert_qdq(normal, result, exponents)
    layers, outputs = (
        measure_noise(normal.model, run, integer, result, exponents, samples.judging_samples)
        if judged
        else ((), ())
    )
    report = QuantisationReport(
        options.method, options.rule, len(samples.feeds), layers, outputs, result.kept,
        (samples.warning,) if samples.warning else (),
    )  # fmt: skip
    return Quantised(integer, exponents.activations, report)


def calls_behind_folding(calls: Sequence[FusedCall], folded: FoldedGraph) -> list[FusedCall] | None:
    """Return the fused calls of a float model as they are after its BatchNorms were folded.

    Args:
        calls: the fused calls of the model before folding.
        folded: the model after folding.

    Returns:
        The calls without the folded BatchNorms; None if folding may have changed the calls in
        another way, so that they have to be searched for again.
    """
    if folded.gone is None:
        return None
    within = {step.node for call in calls for step in call.steps}
    names = {node.name for node in folded.normal.graph.node}
    if not (folded.gone <= within and names.issuperset(call.node for call in calls)):
        return None
    return [
        replace(call, steps=tuple(step for step in call.steps if step.node not in folded.gone))
        for call in calls
    ]


def _check_constants(normal: NormalGraph, plan: QuantisationPlan) -> None:
    """Check that the weights and biases of a model can be quantised.

    Args:
        normal: the folded float model.
        plan: the operators that become int8.

    Raises:
        QuantisationError: a value is not finite or is too large for int8 scales.
    """
    tensors, nodes = normal.tensors(), {node.name: node for node in normal.graph.node}
    for group in plan.groups:
        biases = [("bias", nodes[name].input[place]) for name, place in group.biases]
        for kind, name in [("weights", group.weight), *biases]:
            if name is None:
                continue
            values = numpy_helper.to_array(tensors[name])
            worst = float(values.ravel()[np.abs(values).argmax()]) if values.size else 0.0
            if not abs(worst) <= MOST:
                raise QuantisationError(
                    f"layer '{group.nodes[0]}' has the value {worst:.3g} in its {kind} (tensor "
                    f"'{name}'), but int8 scales cover at most {MOST:.3g}; train or export the "
                    "model again, or keep the layer in floating point (--keep-float)"
                )


def calibration_inputs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Input, ...]:
    """Return the inputs of a model, with static shapes, that a calibration sample has to provide.

    Args:
        model: the model.
        input_shapes: shape for each dynamic input, by input name.

    Returns:
        The inputs.

    Raises:
        DynamicShapeError: an input shape is unknown or wrong.
        ModelFileError: the model is not valid.
    """
    return inputs_of(fixed_graph(without_weights(model), input_shapes or {}))


@dataclass(frozen=True)
class Existing:
    """A model that was already quantised when it was read, with its own scales and zero points.

    Attributes:
        model: the model in QDQ form (pairs of QuantizeLinear and DequantizeLinear).
        keep_float: names of operators that stay on the CPU.
    """

    model: onnx.ModelProto
    keep_float: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the description of the quantisation for an artifact's manifest."""
        return {
            "method": "as the model defines it",
            "kept_float": dict.fromkeys(self.keep_float, ""),
        }


def as_it_is(
    model: onnx.ModelProto,
    keep_float: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Existing:
    """Accept a quantised model with its own scales, converted to QDQ form.

    Args:
        model: the quantised model.
        keep_float: names of operators that stay on the CPU. The CPU computes them on dequantised
            values, as the model defines them.
        input_shapes: shape for each dynamic input, by input name.

    Returns:
        The model in QDQ form.

    Raises:
        UnknownName: the model does not have an operator in `keep_float`.
        DynamicShapeError: an input shape is unknown or wrong.
        ModelFileError: the model is not valid.
    """
    return graph_as_it_is(fixed_graph(to_qdq(model), input_shapes or {}), keep_float)


def graph_as_it_is(fixed: NormalGraph, keep_float: Collection[str] = ()) -> Existing:
    """Accept a quantised model with static shapes and its own scales, like `as_it_is`.

    Args:
        fixed: the quantised model in QDQ form. It is not changed.
        keep_float: names of operators that stay on the CPU.

    Returns:
        The model in QDQ form.

    Raises:
        UnknownName: the model does not have an operator in `keep_float`.
    """
    normal = fixed.copy()
    make_importable(normal)
    names = [node.name for node in normal.graph.node]
    for name in keep_float:
        if name not in names:
            raise UnknownName("layer", name, names)
    return Existing(normal.model, tuple(keep_float))


def int8_model(
    model: onnx.ModelProto,
    samples: Samples | None = None,
    options: QuantiseOptions | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Quantised | Existing:
    """Return an int8 model: quantise a float model, or accept a quantised model as it is.

    Raises the errors of `quantise` and `as_it_is`.

    Args:
        model: the model with its weights.
        samples: calibration samples, which only a float model needs; see `quantise`.
        options: options for choosing the scales. A quantised model uses only `keep_float`.
        input_shapes: shape for each dynamic input, by input name.

    Returns:
        The model in QDQ form.
    """
    options = options or QuantiseOptions()
    if is_quantised(model):
        return as_it_is(model, options.keep_float, input_shapes)
    return quantise(model, samples, options, input_shapes=input_shapes)


def samples_for(
    model: onnx.ModelProto,
    calibration: Path | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Samples:
    """Return the calibration samples for a model.

    Args:
        model: the model.
        calibration: path of an NPZ file or of a folder of NPZ files. If it is None, the samples
            that belong to the network are used. If there are none, random samples are used.
        input_shapes: shape for each dynamic input, by input name.

    Returns:
        The samples.

    Raises:
        InputError: the samples cannot be read or do not fit the inputs.
        DynamicShapeError: an input shape is unknown or wrong.
        ModelFileError: the model is not valid.
    """
    return samples_of(model, calibration_inputs(model, input_shapes), calibration)


def samples_of(
    model: onnx.ModelProto, inputs: Sequence[Input], calibration: Path | None
) -> Samples:
    """Return the calibration samples for a model whose inputs are known. See also `samples_for`.

    Args:
        model: the model.
        inputs: inputs of the model.
        calibration: path of an NPZ file or of a folder of NPZ files. If it is None, the samples
            that belong to the network are used. If there are none, random samples are used.

    Returns:
        The samples.

    Raises:
        InputError: the samples cannot be read or do not fit the inputs.
    """
    if calibration is not None:
        return read_samples(calibration, inputs)
    return default_samples(model, inputs)
