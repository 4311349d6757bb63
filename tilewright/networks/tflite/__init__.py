"""Convert TensorFlow Lite files to ONNX, with quantised tensors in QDQ form.

    model = read_tflite(Path("kws.tflite"))    # an onnx.ModelProto, or UnsupportedOperatorError
    converted = convert(read(path))            # also lists operators without a rule, with reasons

See `docs/decisions/tflite-files.md`.
"""
