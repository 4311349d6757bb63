"""Read ONNX models and convert their graphs to the normal form that is partitioned and imported."""
