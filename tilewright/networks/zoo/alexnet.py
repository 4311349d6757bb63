"""AlexNet (Krizhevsky, arXiv 1404.5997), in torchvision's version with a single tower."""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder

INPUT = (1, 3, 224, 224)
# layer index, output channels, kernel, stride, padding, whether a pooling follows
CONVOLUTIONS = (
    (0, 64, 11, 4, 2, True),
    (3, 192, 5, 1, 2, True),
    (6, 384, 3, 1, 1, False),
    (8, 256, 3, 1, 1, False),
    (10, 256, 3, 1, 1, True),
)


def alexnet(net: Builder) -> str:
    """Build AlexNet: five convolutions and three dense layers, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = net.input
    for index, channels, kernel, stride, pad, pooled in CONVOLUTIONS:
        x = net.conv(x, f"features.{index}", channels, kernel, stride, pad, bias=True)
        x = net.relu(x, f"features.{index + 1}")
        if pooled:
            x = net.max_pool(x, f"features.{index + 2}", kernel=3, stride=2)
    x = net.flatten(x, "flatten")
    x = net.relu(net.dense(x, "classifier.1", 4096), "classifier.2")
    x = net.relu(net.dense(x, "classifier.4", 4096), "classifier.5")
    return net.dense(x, "classifier.6", 1000)
