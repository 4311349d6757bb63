"""ResNet-18, -34 and -50 as in torchvision.

In a bottleneck block, the 3×3 convolution has the stride.
"""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder

INPUT = (1, 3, 224, 224)
WIDTHS = (64, 128, 256, 512)


def resnet18(net: Builder) -> str:
    """Build ResNet-18: eight blocks of two convolutions, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _resnet(net, depths=(2, 2, 2, 2), bottleneck=False)


def resnet34(net: Builder) -> str:
    """Build ResNet-34: sixteen blocks of two convolutions, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _resnet(net, depths=(3, 4, 6, 3), bottleneck=False)


def resnet50(net: Builder) -> str:
    """Build ResNet-50: sixteen bottlenecks of three convolutions, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _resnet(net, depths=(3, 4, 6, 3), bottleneck=True)


def _resnet(net: Builder, depths: tuple[int, ...], bottleneck: bool) -> str:
    x = net.conv(net.input, "conv1", 64, kernel=7, stride=2, pad=3)
    x = net.relu(net.batch_norm(x, "bn1"), "relu")
    x = net.max_pool(x, "maxpool", kernel=3, stride=2, pad=1)
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), start=1):
        for block in range(depth):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _block(net, x, f"layer{stage}.{block}", width, stride, bottleneck)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    return net.dense(x, "fc", 1000)


def _block(net: Builder, x: str, name: str, width: int, stride: int, bottleneck: bool) -> str:
    if bottleneck:
        plan = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
    else:
        plan = [(width, 3, stride), (width, 3, 1)]
    y = x
    for i, (channels, kernel, step) in enumerate(plan, start=1):
        y = net.conv(y, f"{name}.conv{i}", channels, kernel, step, pad=kernel // 2)
        y = net.batch_norm(y, f"{name}.bn{i}")
        if i < len(plan):
            y = net.relu(y, f"{name}.relu{i}")
    if net.shapes[x] != net.shapes[y]:
        x = net.conv(x, f"{name}.downsample.0", plan[-1][0], kernel=1, stride=stride)
        x = net.batch_norm(x, f"{name}.downsample.1")
    return net.relu(net.add(y, x, f"{name}.add"), f"{name}.relu")
