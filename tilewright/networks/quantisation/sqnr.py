"""Measures the quantisation error of each layer as a signal-to-noise ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.networks.model_runner import Feed, ModelRunner, run_feeds
from tilewright.networks.quantisation.exponents import Exponents
from tilewright.networks.quantisation.plan import QuantisationPlan


@dataclass(frozen=True)
class LayerNoise:
    """Quantisation error of one int8 layer.

    Attributes:
        operators: names of the model's operators in the layer.
        operator: ONNX type of the first operator.
        tensor: name of the output.
        exponent: exponent of the output's power-of-two scale.
        weight_exponent: exponent of the weights' scale, the largest one if channels differ; None
            for a layer without weights.
        least_weight_exponent: the smallest exponent of the weights' scales; None for a layer
            without weights.
        decibels: signal-to-noise ratio, 10·log10 of the power of the float output divided by the
            power of the difference to the int8 output. None if there is no difference, or if the
            float output is all zeros.
    """

    operators: tuple[str, ...]
    operator: str
    tensor: str
    exponent: int
    weight_exponent: int | None
    least_weight_exponent: int | None
    decibels: float | None


@dataclass(frozen=True)
class OutputNoise:
    """Quantisation error of one float output of the network.

    Attributes:
        tensor: name of the output.
        decibels: signal-to-noise ratio in dB, as in `LayerNoise`.
        correlation: Pearson correlation of the int8 and float values; None if one of them is
            constant.
    """

    tensor: str
    decibels: float | None
    correlation: float | None


@dataclass(frozen=True)
class QuantisationReport:
    """Report on the quantisation of a float model and its error.

    Attributes:
        method: the calibration method.
        rule: the rule for choosing exponents.
        samples: number of calibration samples.
        layers: error of each int8 layer.
        outputs: error of each output.
        kept_float: reason why an operator stayed in float, by operator name.
        warnings: warnings about the samples.
    """

    method: str
    rule: str
    samples: int
    layers: tuple[LayerNoise, ...]
    outputs: tuple[OutputNoise, ...]
    kept_float: Mapping[str, str]
    warnings: tuple[str, ...]

    def to_json(self) -> Json:
        """Return the report as JSON data."""
        return {
            "method": self.method,
            "rule": self.rule,
            "samples": self.samples,
            "layers": [
                {**vars(layer), "operators": list(layer.operators)} for layer in self.layers
            ],
            "outputs": [vars(output) for output in self.outputs],
            "kept_float": dict(self.kept_float),
            "warnings": list(self.warnings),
        }


BLOCK = 1 << 13
"""Number of values that are summed at a time. In float64, they fit into a cache, and they are too
few for BLAS to start threads for a dot product."""


def float_outputs(model: onnx.ModelProto) -> list[str]:
    """Return the names of a model's outputs that are float32."""
    float_type = int(onnx.TensorProto.FLOAT)
    return [o.name for o in model.graph.output if o.type.tensor_type.elem_type == float_type]


def measure_noise(
    real: onnx.ModelProto,
    run_real: ModelRunner,
    integer: onnx.ModelProto,
    plan: QuantisationPlan,
    exponents: Exponents,
    feeds: Sequence[Feed],
) -> tuple[tuple[LayerNoise, ...], tuple[OutputNoise, ...]]:
    """Measure the quantisation error of every int8 layer and of every float output.

    Both models run on every sample.

    Args:
        real: the folded float model.
        run_real: returns the float model's tensors for a feed.
        integer: the int8 model.
        plan: the operators that are int8.
        exponents: the exponents of the int8 model.
        feeds: the samples, arrays by input name.

    Returns:
        The errors of the layers and of the outputs, in execution order.

    Raises:
        InputError: a model does not run on a sample.
    """
    layers = [(group.nodes, group.output) for group in plan.groups]
    outputs = float_outputs(real)
    readers = _dequantised_names(integer)
    tensors = list(dict.fromkeys((*(tensor for _, tensor in layers), *outputs)))
    power = {name: _Power() for name in tensors}
    moments = {name: _Moments() for name in outputs}
    counterparts = [readers.get(name, name) for name in tensors]
    both = zip(map(run_real, feeds), run_feeds(integer, counterparts, feeds), strict=True)
    for float_values, int8_values in both:
        for name, counterpart in zip(tensors, counterparts, strict=True):
            power[name].add(float_values[name], int8_values[counterpart])
            if name in moments:
                moments[name].add(float_values[name], int8_values[counterpart])
    types = {node.name: node.op_type for node in real.graph.node}
    return tuple(
        LayerNoise(
            operators,
            types[operators[0]],
            tensor,
            exponents.activations[tensor],
            exponents.weights.get(operators[0]),
            exponents.least_of_weights(operators[0]),
            power[tensor].decibels(),
        )
        for operators, tensor in layers
    ), tuple(OutputNoise(n, power[n].decibels(), moments[n].correlation()) for n in outputs)


def _dequantised_names(integer: onnx.ModelProto) -> dict[str, str]:
    """Return the name of the dequantised tensor for each float tensor that a model quantises.

    Args:
        integer: the int8 model in QDQ form.

    Returns:
        Name of the DequantizeLinear's result, by name of the QuantizeLinear's input.
    """
    pairs = {
        node.output[0]: node.input[0] for node in integer.graph.node if _is_kind(node, "Quantize")
    }
    back = {
        node.input[0]: node.output[0] for node in integer.graph.node if _is_kind(node, "Dequantize")
    }
    return {raw: back[steps] for steps, raw in pairs.items() if steps in back}


def _is_kind(node: onnx.NodeProto, kind: str) -> bool:
    return bool(node.op_type == f"{kind}Linear")


class _Power:
    """Accumulates the signal-to-noise ratio of an int8 tensor over several samples.

    The signal power is Σx² and the noise power Σ(x − y)², for float values x and dequantised int8
    values y.
    """

    def __init__(self) -> None:
        self._signal = self._noise = 0.0

    def add(self, real: NDArray[Any], integer: NDArray[Any]) -> None:
        x, y = real.ravel(), integer.ravel()
        for begin in range(0, len(x), BLOCK):
            part = x[begin : begin + BLOCK].astype(np.float64)
            difference = part - y[begin : begin + BLOCK]
            self._signal += float(part @ part)
            self._noise += float(difference @ difference)

    def decibels(self) -> float | None:
        if self._signal <= 0 or self._noise <= 0:
            return None
        return round(10 * math.log10(self._signal / self._noise), 2)


class _Moments:
    """Accumulates the Pearson correlation of a float tensor x and its int8 version y."""

    def __init__(self) -> None:
        self._sums = np.zeros(6)

    def add(self, real: NDArray[Any], integer: NDArray[Any]) -> None:
        x, y = (value.ravel().astype(np.float64) for value in (real, integer))
        self._sums += [len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y]

    def correlation(self) -> float | None:
        count, x, y, xx, yy, xy = self._sums
        spread = (count * xx - x * x) * (count * yy - y * y)
        return round(float((count * xy - x * y) / math.sqrt(spread)), 6) if spread > 0 else None
