"""Quantises float models to int8 with power-of-two scales, or accepts quantised models as they are.

    model = model_with_weights("resnet18")                # or an ONNX file
    samples = read_samples(Path("images.npz"), calibration_inputs(model))
    made = quantise(model, samples, QuantiseOptions(keep_float=("fc",)))
    made.model, made.report.to_json()

`docs/reference/quantisation.md` describes which operators are quantised, and by which rules.
Importing this package loads ONNX, but neither onnxruntime nor TVM.
"""

from tilewright.networks.model_source import model_with_weights
from tilewright.networks.onnx.to_qdq import is_quantised
from tilewright.networks.quantisation.quantise import (
    Existing,
    Quantised,
    QuantiseOptions,
    as_it_is,
    calibration_inputs,
    int8_model,
    quantise,
    samples_for,
    samples_of,
)
from tilewright.networks.quantisation.samples import Input, Samples, read_samples, seeded_samples
from tilewright.networks.quantisation.sqnr import LayerNoise, OutputNoise, QuantisationReport

__all__ = [
    "Existing", "Input", "LayerNoise", "OutputNoise", "QuantisationReport", "QuantiseOptions",
    "Quantised", "Samples", "as_it_is", "calibration_inputs", "int8_model", "is_quantised",
    "model_with_weights", "quantise", "read_samples", "samples_for", "samples_of",
    "seeded_samples",
]  # fmt: skip
