"""Quantises a float ONNX model by calibration samples: an int8 model with power-of-two scales."""

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
METHODS, RULES = ("minmax", "entropy", "percentile"), ("cover", "least_error")


@dataclass(frozen=True)
class QuantiseOptions:
    """How scales are chosen.

    `method` says which magnitude of an activation is worth representing, as onnxruntime's
    calibrators do: the largest seen, the one of least relative entropy, or a `percentile` of all.
    `rule` turns it into a power of two: `cover` takes the smallest that cuts nothing off,
    `least_error` the one of least squared error, on these samples and what `Tail` expects of
    others, among that, the two below and, of the largest seen, the one above. `keep_float` names
    operators that stay in float, each with the layer it is fused into. `per_channel` gives the
    weights of output channels powers of two of their own, where `channels.by_channel` does.

    Raises `QuantisationError` for values that there are not.
    """

    method: Method = "minmax"
    rule: Rule = "least_error"
    percentile: float = 99.999
    keep_float: tuple[str, ...] = ()
    per_channel: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise QuantisationError(f"no method '{self.method}'; there are {', '.join(METHODS)}")
        if self.rule not in RULES:
            raise QuantisationError(f"no rule '{self.rule}'; there are {', '.join(RULES)}")
        if not 50 <= self.percentile <= 100:
            raise QuantisationError(f"a percentile of {self.percentile} is not between 50 and 100")


@dataclass(frozen=True)
class Quantised:
    """An int8 model in QDQ form; `exponents` are the powers of two its int8 activations count in,
    by the name of the float tensor."""

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
    """An int8 model of a float one, of which `input_shapes` fixes dynamic inputs. Unless `judged`,
    the report names no layers' noise, which takes running both models.

    Without samples, the network's own are taken or seeded ones, with a warning in the report.
    Raises `QuantisationError` for a model that is quantised already, has no weights or nothing to
    quantise, and for weights or activations that are not finite or that no scale covers;
    `UnknownName` for a layer to keep that there is not; `InputError` for samples the
    model does not run on; and as reading a model does: `ModelFileError`, `DynamicShapeError`,
    `ImportFailedError`.
    """
    if is_quantised(model):
        raise QuantisationError(
            "the model is quantised already and is taken as it is; to quantise it again, give the "
            "float model it was made of"
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
    """As `quantise`, of a float model with static shapes, which stays as it is. If the `calls` that
    an accelerator could run are known, they are not looked for again."""
    options = options or QuantiseOptions()
    folded = fold_batch_norms(fixed)
    normal = folded.normal
    complete_shapes(normal)  # behind operators of onnxruntime's own
    if not samples.feeds:
        raise QuantisationError("there are no calibration samples; give at least one")
    name = fixed.graph.name or "model"
    if calls is not None:
        calls = calls_behind_folding(calls, folded)
    if calls is None:
        calls = fused_calls(normal)
    found = plan_layers(normal, calls, options.keep_float)
    if not found.groups:
        raise NothingToQuantise(
            f"nothing of '{name}' can run in int8: it has no convolution or product with constant "
            "weights that is not kept in float"
        )
    _check_constants(normal, found)
    operators = {node.op_type for node in normal.graph.node if node.name in found.nodes}
    run = ModelRunner(normal.model, [*sorted(found.tensors), *float_outputs(normal.model)])
    observed = observe(
        normal.model,
        run,
        found.tensors,
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
    exponents = choose_exponents(normal, found, measured)
    if options.per_channel:
        exponents = by_channel(normal, found, exponents)
    integer = insert_qdq(normal, found, exponents)
    layers, outputs = (
        measure_noise(normal.model, run, integer, found, exponents, samples.judging)
        if judged
        else ((), ())
    )
    report = QuantisationReport(
        options.method, options.rule, len(samples.feeds), layers, outputs, found.kept,
        (samples.warning,) if samples.warning else (),
    )  # fmt: skip
    return Quantised(integer, exponents.activations, report)


def calls_behind_folding(calls: Sequence[FusedCall], folded: FoldedGraph) -> list[FusedCall] | None:
    """Return calls of a float model without the BatchNorms that were folded into them; None where
    folding may have changed more of them."""
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


def _check_constants(normal: NormalGraph, found: QuantisationPlan) -> None:
    """Raises `QuantisationError` for weights or a bias that no int8 scale covers."""
    tensors, nodes = normal.tensors(), {node.name: node for node in normal.graph.node}
    for group in found.groups:
        biases = [("bias", nodes[name].input[place]) for name, place in group.biases]
        for kind, name in [("weights", group.weight), *biases]:
            if name is None:
                continue
            values = numpy_helper.to_array(tensors[name])
            worst = float(values.ravel()[np.abs(values).argmax()]) if values.size else 0.0
            if not abs(worst) <= MOST:
                raise QuantisationError(
                    f"layer '{group.nodes[0]}' has {worst:.3g} in its {kind} (tensor '{name}'), "
                    f"beyond the {MOST:.3g} that int8 scales cover; train or export the model "
                    "again, or keep the layer in float (--keep-float)"
                )


def calibration_inputs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Input, ...]:
    """What one calibration sample of a model holds: its inputs, with static shapes.

    Raises `DynamicShapeError` and `ModelFileError`.
    """
    return inputs_of(fixed_graph(without_weights(model), input_shapes or {}))


@dataclass(frozen=True)
class Existing:
    """A quantised model in QDQ form, with the scales and zero points that it came with."""

    model: onnx.ModelProto
    keep_float: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """What a manifest says of it."""
        return {"method": "as the model has it", "kept_float": dict.fromkeys(self.keep_float, "")}


def as_it_is(
    model: onnx.ModelProto,
    keep_float: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Existing:
    """A quantised model in QDQ form. Operators of `keep_float` are left to the CPU, which computes
    them on dequantised numbers as the model does. Raises `UnknownName` for one that the model has
    not, and as `networks.onnx.normalise.normalise`."""
    return graph_as_it_is(fixed_graph(to_qdq(model), input_shapes or {}), keep_float)


def graph_as_it_is(fixed: NormalGraph, keep_float: Collection[str] = ()) -> Existing:
    """As `as_it_is`, of a model with static shapes, which stays as it is."""
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
    """A float model as `quantise` makes it of samples; a quantised one `as_it_is`. Raises as
    these."""
    options = options or QuantiseOptions()
    if is_quantised(model):
        return as_it_is(model, options.keep_float, input_shapes)
    return quantise(model, samples, options, input_shapes=input_shapes)


def samples_for(
    model: onnx.ModelProto,
    calibration: Path | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Samples:
    """The samples in `calibration`, an NPZ file or a folder; else the network's own, or seeded
    ones. Raises as `read_samples` and `calibration_inputs`."""
    return samples_of(model, calibration_inputs(model, input_shapes), calibration)


def samples_of(
    model: onnx.ModelProto, inputs: Sequence[Input], calibration: Path | None
) -> Samples:
    """As `samples_for`, of a model whose `inputs` are known."""
    if calibration is not None:
        return read_samples(calibration, inputs)
    return default_samples(model, inputs)
