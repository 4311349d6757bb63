"""Draws networks at random and checks that what is built of them computes what onnxruntime does."""
