"""Compiles a whole float network for a processor: kernels on packed tensors, and TVM's code.

    layers                  which layers have kernels, with their numbers. The others are compiled
                            by TVM, or run in onnxruntime (`networks.partition`,
                            `tuning.build_cpu_library.read_layers`)
    kernel_calls            rewrites the network: it calls kernels
    packed_tensors, packed_operators, bfloat16_tensors, operands_in_place
                            how tensors lie between kernels, and the operators that compute on
                            them as they lie
    image_operators, channel_rearrangements, recurrences, attention, scatter, row_loops, vector_math
                            operators that TVM would write slowly, or as several
    nan_propagation, default_schedules      what is done to every function that TVM writes
    library                 the passes in order, the memory plan among them, and the shared library
    weights_parameter       takes weights out of the library
    loaded_library, thread_pool, c_interface        run it: in Python, on how many threads, from C

docs/explanation/cpu-library.md takes a small network through all of it.
"""
