"""Compile a whole float network for a CPU, from kernels on packed tensors and TVM's code.

    layers                  which layers have kernels, with their weights and constants. The other
                            operators are compiled by TVM, or run in onnxruntime
                            (`networks.partition`, `tuning.build_cpu_library.read_layers`)
    kernel_calls            rewrites the network so that it calls the kernels
    packed_tensors, packed_operators, bfloat16_tensors, operands_in_place
                            memory layout of tensors between kernels, and the operators that
                            compute directly on that layout
    image_operators, channel_rearrangements, recurrences, attention, scatter, row_loops, vector_math
                            operators that TVM would compile to slow code or to several functions
    nan_propagation, default_schedules      passes over every function that TVM generates
    library                 runs all passes, including the memory plan, and links the library
    weights_parameter       moves weights out of the library
    loaded_library, thread_pool, c_interface        run it from Python or C, with several threads

docs/explanation/cpu-library.md follows a small network through all of these steps.
"""
