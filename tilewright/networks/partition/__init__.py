"""Partitions an ONNX graph: what TVM compiles, and regions that onnxruntime runs."""
