"""Reads ONNX models, and brings their graphs into the one form that is partitioned and imported."""
