"""Int8 models with power-of-two scales: made of float ones, or of quantised ones with other scales.

    model = model_with_weights("resnet18")                # or an ONNX file
    samples = read_samples(Path("images.npz"), calibration_inputs(model))
    made = quantise(model, samples, Options(keep_float=("fc",)))
    made.model, made.report.to_json()

`docs/int8.md` says what is quantised and by which rule. Importing this package loads ONNX, but
neither onnxruntime nor TVM.
"""

from __future__ import annotations

from networks.quantise.existing import is_quantised
from networks.quantise.noise import LayerNoise, OutputNoise, QuantisationReport
from networks.quantise.prepare import int8_model, model_with_weights
from networks.quantise.quantise import Options, Quantised, calibration_inputs, quantise
from networks.quantise.rescale import Rescaled, ScaleChange, nearest_power_of_two
from networks.quantise.samples import Input, Samples, read_samples, seeded_samples

__all__ = [
    "Input", "LayerNoise", "Options", "OutputNoise", "QuantisationReport", "Quantised", "Rescaled",
    "Samples", "ScaleChange", "calibration_inputs", "int8_model", "is_quantised",
    "model_with_weights", "nearest_power_of_two", "quantise", "read_samples", "seeded_samples",
]  # fmt: skip
