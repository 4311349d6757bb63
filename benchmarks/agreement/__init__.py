"""Networks that are drawn at random, and whether what is built of them computes what onnxruntime
does."""
