"""A float network compiled whole for a processor: kernels on packed tensors, and TVM's code."""
