"""Converts TensorFlow Lite files to the form the rest reads: ONNX, quantised tensors in QDQ form.

    model = read_tflite(Path("kws.tflite"))    # an onnx.ModelProto; raises UnsupportedOperatorError
    examined = convert(read(path))             # with the operators that have no rule, and why

Docs: `docs/decisions/tflite-files.md`.
"""
