"""Target for the CPU of this machine: TensorIR kernels that LLVM compiles and that are timed here.

Modules:

    target, factory             the target, and its registration under the name `cpu`
    spec, machine               the specification of the target, and the processor's properties
    kernels                     the kernels: search spaces, TensorIR functions and schedules
    layouts                     memory layouts of tensors and weights
    compile, assembly           compile a config to a shared library
    compile_pool, compile_worker        run the compiler in separate processes
    measure, timing             time a compiled library
    runner, run_worker          run compiled libraries in a separate process with a time limit
    sample_tensors              random inputs of a workload, and the expected output
    estimates, bounds           features and latency bounds of a config before compilation
    hidden_features             features of a config that are read from the compiled code
    network_kernels             kernels as parts of a built network's library

docs/reference/cpu-kernels.md lists the kernels, the operators they compute, and their knobs.
"""
