"""Target for the CPU of this machine: TensorIR kernels that LLVM compiles and that are timed here.

    target, factory, spec, machine      the target, its name, and the processor's properties
    kernels, layouts                    kernels, and memory layouts of tensors and weights
    compile, assembly, compile_pool, compile_worker     compile a config to a library, in
                                        processes of their own
    measure, timing, runner, run_worker, sample_tensors     time a library, in a watched process
    estimates, bounds, hidden_features  features of a config: estimated before compilation, and
                                        read from the compiled code
    network_kernels                     kernels as parts of a network's library

docs/reference/cpu-kernels.md lists the kernels, what they compute, and their knobs.
"""
