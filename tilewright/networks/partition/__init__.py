"""Partition an ONNX graph into a part that TVM compiles and regions that onnxruntime runs."""
