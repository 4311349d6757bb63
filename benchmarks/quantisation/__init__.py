"""Compares integer layers with onnxruntime: benchmarks of docs/evidence/quantisation.md."""
