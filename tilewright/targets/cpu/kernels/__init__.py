"""Kernels of the CPU target, one file each: the knobs, the TensorIR function and its schedule.

    kernel, kernel_registry     the protocol of a kernel, and the choice of a workload's kernel
    conv2d, conv2d_int8         convolutions without groups. conv2d_tile_sizes chooses tile sizes,
                                conv2d_shapes derives shapes from a config, and winograd implements
                                the alternative algorithm
    depthwise, grouped          grouped convolutions. grouped_loops defines the loops of both
    dense, dense_int8           dense layers. matrix_product defines their loops and rule schedule
    batch_matmul                products of two activations, with the loops of matrix_product
    conv2d_amx, matmul_amx      the same operators with tile instructions. amx_product defines the
                                loops, amx_tiles the instructions
    epilogue                    operations that follow a product in every kernel: bias, residual,
                                clipping, activation and conversion to integers
    loops, padding, int8_dot_product, tile_arithmetic       code that several kernels share

Each kernel packs its weights with `Kernel.pack_weights`. `targets.cpu.layouts` lists the layouts.
"""
