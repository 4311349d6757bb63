"""Read ONNX models and normalise their graphs for partitioning and import."""
