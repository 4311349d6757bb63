"""Benchmarks that compare integer layers with onnxruntime, for docs/evidence/quantisation.md."""
