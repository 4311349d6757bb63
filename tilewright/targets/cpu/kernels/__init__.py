"""Implements operators, a file a kernel: knobs, TensorIR, and the schedule that knobs select.

    kernel, kernel_registry     what a kernel is, and which one computes a workload
    conv2d, conv2d_int8         convolutions without groups; conv2d_tile_sizes chooses their tiles,
                                conv2d_shapes computes what follows, winograd is the other algorithm
    depthwise, grouped          convolutions in groups; grouped_loops has the loops of both
    dense, dense_int8, batch_matmul     products; matrix_product has their loops and their rule
    conv2d_amx, matmul_amx      the same by tiles of AMX; amx_product has the loops, amx_tiles the
                                instructions
    epilogue                    bias, residual, bounds, activation, integers: behind every kernel
    loops, padding, int8_dot_product, tile_arithmetic     parts of which kernels are made

Each kernel packs its weights itself (`Kernel.pack_weights`); `targets.cpu.layouts` lists how.
"""
