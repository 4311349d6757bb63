"""MobileNet v1 (Howard et al., arXiv 1704.04861, table 1), and v2 and v3 as in torchvision."""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder

INPUT = (1, 3, 224, 224)
# output channels and stride of the pointwise / depthwise half of each separable layer
V1_LAYERS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip
# expansion, output channels, repeats, stride of the first repeat (Sandler et al., table 2)
V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
# kernel, hidden channels, output channels, squeeze-excite, hard-swish (else relu), stride
# (Howard et al., arXiv 1905.02244, table 1)
V3_LAYERS = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
V3_EPSILON = 1e-3


def mobilenet_v1(net: Builder) -> str:
    """Build MobileNet v1: thirteen separable layers, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = _conv_v1(net, net.input, "conv1", 32, kernel=3, stride=2)
    for i, (channels, stride) in enumerate(V1_LAYERS, start=2):
        depth = net.shapes[x][1]
        x = _conv_v1(net, x, f"conv{i}.depthwise", depth, kernel=3, stride=stride, groups=depth)
        x = _conv_v1(net, x, f"conv{i}.pointwise", channels, kernel=1)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    return net.dense(x, "fc", 1000)


def mobilenet_v2(net: Builder) -> str:
    """Build MobileNet v2: seventeen inverted residuals, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = _conv_v2(net, net.input, "features.0", 32, kernel=3, stride=2)
    index = 1
    for expansion, channels, repeats, first_stride in V2_STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            x = _inverted_residual(net, x, f"features.{index}", expansion, channels, stride)
            index += 1
    x = _conv_v2(net, x, f"features.{index}", 1280, kernel=1)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    return net.dense(x, "classifier.1", 1000)


def mobilenet_v3(net: Builder) -> str:
    """Build MobileNetV3-Large: fifteen inverted residuals, 224×224 images, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = _conv_v3(net, net.input, "features.0", 16, kernel=3, stride=2, swish=True)
    for index, layer in enumerate(V3_LAYERS, start=1):
        x = _inverted_residual_v3(net, x, f"features.{index}.block", *layer)
    x = _conv_v3(net, x, f"features.{len(V3_LAYERS) + 1}", 960, kernel=1, swish=True)
    x = net.flatten(net.global_average_pool(x, "avgpool"), "flatten")
    x = net.hard_swish(net.dense(x, "classifier.0", 1280), "classifier.1")
    return net.dense(x, "classifier.3", 1000)


def _inverted_residual_v3(
    net: Builder, x: str, name: str, kernel: int, hidden: int, channels: int, squeezes: bool,
    swish: bool, stride: int,
) -> str:  # fmt: skip
    y, step = x, 0
    if hidden != net.shapes[x][1]:
        y, step = _conv_v3(net, y, f"{name}.0", hidden, kernel=1, swish=swish), 1
    y = _conv_v3(net, y, f"{name}.{step}", hidden, kernel, stride, swish, groups=hidden)
    if squeezes:
        step += 1
        y = _squeeze_excite(net, y, f"{name}.{step}")
    y = net.conv(y, f"{name}.{step + 1}.0", channels, kernel=1)
    y = net.batch_norm(y, f"{name}.{step + 1}.1", V3_EPSILON)
    return net.add(x, y, f"{name}.add") if net.shapes[x] == net.shapes[y] else y


def _squeeze_excite(net: Builder, x: str, name: str) -> str:
    """Append a squeeze-and-excitation block, which scales each channel by a factor in [0, 1].

    The factors are computed from the means of all channels.

    Args:
        net: builder of the graph.
        x: name of the input, an image.
        name: name of the layer.

    Returns:
        The name of the output.
    """
    channels = net.shapes[x][1]
    y = net.global_average_pool(x, f"{name}.avgpool")
    y = net.conv(y, f"{name}.fc1", _divisible(channels / 4), kernel=1, bias=True)
    y = net.relu(y, f"{name}.activation")
    y = net.conv(y, f"{name}.fc2", channels, kernel=1, bias=True)
    return net.multiply(net.hard_sigmoid(y, f"{name}.scale"), x, f"{name}.mul")


def _divisible(channels: float) -> int:
    """Round a number of channels to the nearest multiple of 8 that is at least 90 % of it.

    The result is at least 8.
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _inverted_residual(
    net: Builder, x: str, name: str, expansion: int, channels: int, stride: int
) -> str:
    hidden = net.shapes[x][1] * expansion
    y, step = x, 0
    if expansion > 1:
        y = _conv_v2(net, y, f"{name}.conv.0", hidden, kernel=1)
        step = 1
    y = _conv_v2(net, y, f"{name}.conv.{step}", hidden, kernel=3, stride=stride, groups=hidden)
    y = net.conv(y, f"{name}.conv.{step + 1}", channels, kernel=1)
    y = net.batch_norm(y, f"{name}.conv.{step + 2}")
    return net.add(x, y, f"{name}.add") if net.shapes[x] == net.shapes[y] else y


def _conv_v1(
    net: Builder, x: str, name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> str:
    x = net.conv(x, f"{name}.conv", channels, kernel, stride, kernel // 2, groups)
    return net.relu(net.batch_norm(x, f"{name}.bn"), f"{name}.relu")


def _conv_v2(
    net: Builder, x: str, name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> str:
    x = net.conv(x, f"{name}.0", channels, kernel, stride, kernel // 2, groups)
    return net.relu6(net.batch_norm(x, f"{name}.1"), f"{name}.2")


def _conv_v3(
    net: Builder, x: str, name: str, channels: int, kernel: int, stride: int = 1,
    swish: bool = False, groups: int = 1,
) -> str:  # fmt: skip
    x = net.conv(x, f"{name}.0", channels, kernel, stride, kernel // 2, groups)
    x = net.batch_norm(x, f"{name}.1", V3_EPSILON)
    return (net.hard_swish if swish else net.relu)(x, f"{name}.2")
