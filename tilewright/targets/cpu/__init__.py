"""Measures on this processor: TensorIR kernels compiled by LLVM and timed for real."""
