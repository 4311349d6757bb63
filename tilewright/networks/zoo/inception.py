"""Inception v3 as in torchvision, for inference (without the auxiliary head)."""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder, Pair

INPUT = (1, 3, 299, 299)


def inception_v3(net: Builder) -> str:
    """Build Inception v3: eleven blocks of parallel branches, 299×299 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = _conv(net, net.input, "Conv2d_1a_3x3", 32, 3, stride=2)
    x = _conv(net, x, "Conv2d_2a_3x3", 32, 3)
    x = _conv(net, x, "Conv2d_2b_3x3", 64, 3, pad=1)
    x = net.max_pool(x, "maxpool1", kernel=3, stride=2)
    x = _conv(net, x, "Conv2d_3b_1x1", 80, 1)
    x = _conv(net, x, "Conv2d_4a_3x3", 192, 3)
    x = net.max_pool(x, "maxpool2", kernel=3, stride=2)
    for letter, pool_channels in zip("bcd", (32, 64, 64), strict=True):
        x = _mixed_a(net, x, f"Mixed_5{letter}", pool_channels)
    x = _reduction_b(net, x, "Mixed_6a")
    for letter, channels in zip("bcde", (128, 160, 160, 192), strict=True):
        x = _mixed_c(net, x, f"Mixed_6{letter}", channels)
    x = _reduction_d(net, x, "Mixed_7a")
    for letter in "bc":
        x = _mixed_e(net, x, f"Mixed_7{letter}")
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    return net.dense(x, "fc", 1000)


def _mixed_a(net: Builder, x: str, name: str, pool_channels: int) -> str:
    one = _conv(net, x, f"{name}.branch1x1", 64, 1)
    five = _conv(net, x, f"{name}.branch5x5_1", 48, 1)
    five = _conv(net, five, f"{name}.branch5x5_2", 64, 5, pad=2)
    three = _conv(net, x, f"{name}.branch3x3dbl_1", 64, 1)
    three = _conv(net, three, f"{name}.branch3x3dbl_2", 96, 3, pad=1)
    three = _conv(net, three, f"{name}.branch3x3dbl_3", 96, 3, pad=1)
    return net.concat([one, five, three, _pool_branch(net, x, name, pool_channels)], f"{name}.cat")


def _reduction_b(net: Builder, x: str, name: str) -> str:
    three = _conv(net, x, f"{name}.branch3x3", 384, 3, stride=2)
    double = _conv(net, x, f"{name}.branch3x3dbl_1", 64, 1)
    double = _conv(net, double, f"{name}.branch3x3dbl_2", 96, 3, pad=1)
    double = _conv(net, double, f"{name}.branch3x3dbl_3", 96, 3, stride=2)
    pool = net.max_pool(x, f"{name}.branch_pool", kernel=3, stride=2)
    return net.concat([three, double, pool], f"{name}.cat")


def _mixed_c(net: Builder, x: str, name: str, channels: int) -> str:
    wide, tall = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    one = _conv(net, x, f"{name}.branch1x1", 192, 1)
    seven = _conv(net, x, f"{name}.branch7x7_1", channels, 1)
    for i, (kernel, pad), out in ((2, wide, channels), (3, tall, 192)):
        seven = _conv(net, seven, f"{name}.branch7x7_{i}", out, kernel, pad=pad)
    double = _conv(net, x, f"{name}.branch7x7dbl_1", channels, 1)
    for i, (kernel, pad) in enumerate((tall, wide, tall, wide), start=2):
        out = 192 if i == 5 else channels
        double = _conv(net, double, f"{name}.branch7x7dbl_{i}", out, kernel, pad=pad)
    return net.concat([one, seven, double, _pool_branch(net, x, name, 192)], f"{name}.cat")


def _reduction_d(net: Builder, x: str, name: str) -> str:
    three = _conv(net, x, f"{name}.branch3x3_1", 192, 1)
    three = _conv(net, three, f"{name}.branch3x3_2", 320, 3, stride=2)
    seven = _conv(net, x, f"{name}.branch7x7x3_1", 192, 1)
    seven = _conv(net, seven, f"{name}.branch7x7x3_2", 192, (1, 7), pad=(0, 3))
    seven = _conv(net, seven, f"{name}.branch7x7x3_3", 192, (7, 1), pad=(3, 0))
    seven = _conv(net, seven, f"{name}.branch7x7x3_4", 192, 3, stride=2)
    pool = net.max_pool(x, f"{name}.branch_pool", kernel=3, stride=2)
    return net.concat([three, seven, pool], f"{name}.cat")


def _mixed_e(net: Builder, x: str, name: str) -> str:
    one = _conv(net, x, f"{name}.branch1x1", 320, 1)
    three = _conv(net, x, f"{name}.branch3x3_1", 384, 1)
    three = _split(net, three, f"{name}.branch3x3_2")
    double = _conv(net, x, f"{name}.branch3x3dbl_1", 448, 1)
    double = _conv(net, double, f"{name}.branch3x3dbl_2", 384, 3, pad=1)
    double = _split(net, double, f"{name}.branch3x3dbl_3")
    return net.concat([one, three, double, _pool_branch(net, x, name, 192)], f"{name}.cat")


def _split(net: Builder, x: str, name: str) -> str:
    wide = _conv(net, x, f"{name}a", 384, (1, 3), pad=(0, 1))
    tall = _conv(net, x, f"{name}b", 384, (3, 1), pad=(1, 0))
    return net.concat([wide, tall], f"{name}.cat")


def _pool_branch(net: Builder, x: str, name: str, channels: int) -> str:
    pool = net.average_pool(x, f"{name}.branch_pool.avg", kernel=3, stride=1, pad=1)
    return _conv(net, pool, f"{name}.branch_pool", channels, 1)


def _conv(
    net: Builder, x: str, name: str, channels: int, kernel: Pair, stride: int = 1, pad: Pair = 0
) -> str:
    x = net.conv(x, f"{name}.conv", channels, kernel, stride, pad)
    return net.relu(net.batch_norm(x, f"{name}.bn", epsilon=1e-3), f"{name}.relu")
