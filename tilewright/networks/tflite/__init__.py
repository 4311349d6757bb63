"""Convert TensorFlow Lite files to ONNX, with quantised tensors in QDQ form.

    model = convert.read_tflite(Path("kws.tflite"))     # raises UnsupportedOperatorError
    converted = convert.convert(file.read_graph(path))  # lists unsupported operators instead

`docs/decisions/tflite-files.md` explains the design.
"""
