"""VGG-11, -13, -16 and -19 without BatchNorm (Simonyan & Zisserman, table 1: A, B, D, E)."""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder

INPUT = (1, 3, 224, 224)
WIDTHS = (64, 128, 256, 512, 512)


def vgg11(net: Builder) -> str:
    """Build VGG-11 (configuration A): eight convolutions, three dense layers, 224×224 images.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _vgg(net, (1, 1, 2, 2, 2))


def vgg13(net: Builder) -> str:
    """Build VGG-13 (configuration B): ten convolutions, three dense layers, 224×224 images.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _vgg(net, (2, 2, 2, 2, 2))


def vgg16(net: Builder) -> str:
    """Build VGG-16 (configuration D): thirteen convolutions, three dense layers, 224×224 images.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _vgg(net, (2, 2, 3, 3, 3))


def vgg19(net: Builder) -> str:
    """Build VGG-19 (configuration E): sixteen convolutions, three dense layers, 224×224 images.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    return _vgg(net, (2, 2, 4, 4, 4))


def _vgg(net: Builder, depths: tuple[int, ...]) -> str:
    x, index = net.input, 0
    for width, depth in zip(WIDTHS, depths, strict=True):
        for _ in range(depth):
            x = net.conv(x, f"features.{index}", width, kernel=3, pad=1, bias=True)
            x = net.relu(x, f"features.{index + 1}")
            index += 2
        x = net.max_pool(x, f"features.{index}", kernel=2, stride=2)
        index += 1
    x = net.flatten(x, "flatten")
    x = net.relu(net.dense(x, "classifier.0", 4096), "classifier.1")
    x = net.relu(net.dense(x, "classifier.3", 4096), "classifier.4")
    return net.dense(x, "classifier.6", 1000)
