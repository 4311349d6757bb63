"""Built-in networks: ONNX graphs with their standard shapes, built without downloads.

Weights are random (He initialisation), since schedules do not depend on them. Only `digits_cnn` is
trained, so that its accuracy can be checked.

To add a network, write a function `f(builder) -> name of the output` in the module of its family,
and add one line to `FAMILIES`. The constant `INPUT` of a family's module is the shape of the input.
The input is a float tensor called `input`, unless the module defines `INPUT_NAME` or `INPUT_TYPE`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import UnknownName

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.zoo.builder import Builder

FAMILIES = {
    "alexnet": "alexnet",
    "bert_tiny": "bert",
    "digits_cnn": "digits",
    "inception_v3": "inception",
    "mobilenet_v1": "mobilenet",
    "mobilenet_v2": "mobilenet",
    "mobilenet_v3": "mobilenet",
    "resnet18": "resnet",
    "resnet34": "resnet",
    "resnet50": "resnet",
    "vgg11": "vgg",
    "vgg13": "vgg",
    "vgg16": "vgg",
    "vgg19": "vgg",
    "vit_tiny": "vit",
}
"""Name of the module that builds a network, by the name of the network."""


def names() -> list[str]:
    """Return the names of the built-in networks in alphabetical order."""
    return sorted(FAMILIES)


def build(name: str, seed: int = 0, weights: bool = True) -> onnx.ModelProto:
    """Build the ONNX model of a built-in network.

    Args:
        name: name of the network.
        seed: seed for its random weights. Equal seeds give equal weights.
        weights: include the weights. Without them, weight tensors have shapes but no data. That is
            enough to extract workloads, and it reduces even VGG-19 to a few kilobytes.

    Returns:
        The model.

    Raises:
        UnknownName: there is no network with this name.
    """
    return build_with_builder(name, seed, weights)[1]


def build_with_builder(
    name: str, seed: int = 0, weights: bool = True
) -> tuple[Builder, onnx.ModelProto]:
    """Build a built-in network, and also return its builder, which knows the shape of every tensor.

    Args:
        name: name of the network.
        seed: seed for its random weights.
        weights: include the weights; see `build`.

    Returns:
        The builder and the ONNX model.

    Raises:
        UnknownName: there is no network with this name.
    """
    from tilewright.networks.zoo.builder import Builder

    if name not in FAMILIES:
        raise UnknownName("network", name, names())
    family = import_module(f"tilewright.networks.zoo.{FAMILIES[name]}")
    named = {
        argument: getattr(family, constant)
        for argument, constant in (("input_name", "INPUT_NAME"), ("input_type", "INPUT_TYPE"))
        if hasattr(family, constant)
    }
    net = Builder(name, family.INPUT, seed, weights, **named)
    return net, net.model(getattr(family, name)(net))


def write(name: str, path: str | Path, seed: int = 0) -> Path:
    """Write a built-in network to an ONNX file.

    The file is written completely or not at all. The file of a VGG network takes half a gigabyte.

    Args:
        name: name of the network.
        path: path of the file.
        seed: seed for its random weights.

    Returns:
        The path of the file.

    Raises:
        UnknownName: there is no network with this name.
    """
    from tilewright.networks.onnx.files import write as write_onnx

    return write_onnx(build(name, seed), Path(path))
