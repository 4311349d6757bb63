"""Measures what int8 costs: the signal-to-noise ratio of every layer's output on calibration
samples."""

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
    """One int8 layer: `operators` of the model in it, the tensor it writes, and the powers of two
    its output and its weights count in (None without weights; where output channels have their own,
    the largest and, in `least_weight_exponent`, the least).

    `decibels` is 10·log10 of the power of the float output over that of the difference; None where
    nothing differs, or where the float output is all zeros.
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
    """One float output of the network, and the correlation of its int8 values with the float ones,
    None where one of them is constant. `decibels` as in `LayerNoise`."""

    tensor: str
    decibels: float | None
    correlation: float | None


@dataclass(frozen=True)
class QuantisationReport:
    """How a float model became int8. `kept_float` says by operator why it stayed; `warnings` are
    doubts about the samples."""

    method: str
    rule: str
    samples: int
    layers: tuple[LayerNoise, ...]
    outputs: tuple[OutputNoise, ...]
    kept_float: Mapping[str, str]
    warnings: tuple[str, ...]

    def to_json(self) -> Json:
        """The report as plain objects, lists, texts and numbers."""
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
"""Values of a tensor that are summed at once: they fit into a cache in float64, and are too few for
BLAS to start threads for their dot product."""


def float_outputs(model: onnx.ModelProto) -> list[str]:
    """Return the outputs of a model that are float32."""
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
    """The noise of every int8 layer and of every output, in the order in which they are computed.

    Both models run on every sample (arrays in the shapes of the inputs), the float one as it was
    folded; `run_real` gives its values. Raises `InputError` where they cannot.
    """
    layers = [(group.nodes, group.output) for group in plan.groups]
    outputs = float_outputs(real)
    readers = _dequantised(integer)
    tensors = list(dict.fromkeys((*(tensor for _, tensor in layers), *outputs)))
    power = {name: _Power() for name in tensors}
    moments = {name: _Moments() for name in outputs}
    counterparts = [readers.get(name, name) for name in tensors]
    both = zip(map(run_real, feeds), run_feeds(integer, counterparts, feeds), strict=True)
    for wanted, found in both:
        for name, other in zip(tensors, counterparts, strict=True):
            power[name].add(wanted[name], found[other])
            if name in moments:
                moments[name].add(wanted[name], found[other])
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


def _dequantised(integer: onnx.ModelProto) -> dict[str, str]:
    """The dequantised tensor behind each one that is quantised."""
    pairs = {node.output[0]: node.input[0] for node in integer.graph.node if _is(node, "Quantize")}
    back = {node.input[0]: node.output[0] for node in integer.graph.node if _is(node, "Dequantize")}
    return {raw: back[steps] for steps, raw in pairs.items() if steps in back}


def _is(node: onnx.NodeProto, kind: str) -> bool:
    return bool(node.op_type == f"{kind}Linear")


class _Power:
    """Of a float tensor x and its int8 counterpart y, over all samples: Σx² and Σ(x − y)²."""

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
    """The correlation of a float tensor x with its int8 counterpart y, over all samples."""

    def __init__(self) -> None:
        self._sums = np.zeros(6)

    def add(self, real: NDArray[Any], integer: NDArray[Any]) -> None:
        x, y = (value.ravel().astype(np.float64) for value in (real, integer))
        self._sums += [len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y]

    def correlation(self) -> float | None:
        count, x, y, xx, yy, xy = self._sums
        spread = (count * xx - x * x) * (count * yy - y * y)
        return round(float((count * xy - x * y) / math.sqrt(spread)), 6) if spread > 0 else None
