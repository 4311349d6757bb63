"""Compiles a whole float network for a processor: kernels on packed tensors, and TVM's code."""
