"""Compile a whole float network for a CPU, using tuned kernels and code that TVM generates.

A kernel is the compiled function of one workload (an operator with its shapes and its fused
post-operations). Kernels read and write packed tensors, which store channels in blocks:
(n, c / block, h, w, block). The modules of this package are:

    layers                  finds the layers that have kernels, with their weights and constants.
                            The other operators are compiled by TVM or run in onnxruntime
                            (`networks.partition`, `tuning.build_cpu_library.read_layers`)
    kernel_calls            rewrites the network so that it calls the kernels
    packed_tensors, packed_operators, bfloat16_tensors, operands_in_place
                            choose the memory layout of tensors between kernels, and implement
                            the operators that compute directly on packed tensors
    image_operators, channel_rearrangements, recurrences, attention, scatter, row_loops, vector_math
                            implement operators that TVM would compile to slow code or to several
                            functions
    default_schedules       schedules every function that TVM generates
    library                 runs all compiler passes, including memory planning, and links the
                            library
    weights_parameter, weights_file
                            move the weights out of the library into a file
    loaded_library, thread_pool, c_interface
                            run the library from Python or C, with several threads

docs/explanation/cpu-library.md follows a small network through all of these steps.
"""
