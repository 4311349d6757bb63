"""The processor this runs on: TensorIR kernels compiled by LLVM and timed for real."""
