"""Target for the CPU of this machine: TensorIR kernels that LLVM compiles and that are timed here.

Modules:

    target, factory, spec, machine      the target, its registration under the name `cpu`, and the
    processor's properties kernels, layouts                    the kernels, and the memory layouts
    of tensors and weights compile, assembly, compile_pool, compile_worker     compile a config to a
    shared library, in separate processes measure, timing, runner, run_worker, sample_tensors
    time a compiled library, in a separate process with a time limit
    estimates, bounds, hidden_features  features of a config: estimated before compilation, and read
        from the compiled code network_kernels                     kernels as parts of a built
        network's library

docs/reference/cpu-kernels.md lists the kernels, the operators they compute, and their knobs.
"""
