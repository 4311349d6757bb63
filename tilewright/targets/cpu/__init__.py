"""Measures on this processor: TensorIR kernels compiled by LLVM and timed for real.

    target, factory, spec, machine      the target, its name, and what the machine has
    kernels, layouts                    what computes, and how tensors and weights lie in memory
    compile, assembly, compile_pool, compile_worker     from a config to a library, in processes
    measure, timing, runner, run_worker, sample_tensors     from a library to seconds, in a watched
                                        process
    estimates, bounds, hidden_features  what is known of a config without and with compiling it
    network_kernels                     kernels as parts of a network's library

docs/reference/cpu-kernels.md lists what the kernels compute and their knobs.
"""
