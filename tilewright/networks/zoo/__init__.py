"""Lists the built-in networks: real ONNX graphs in their standard shapes, nothing downloaded.

Weights are seeded noise, He-scaled, which is all that schedules depend on; `digits_cnn` alone is
trained, so that accuracy can be checked. A new network is a function `f(Builder) -> output name` in
its family's file and one line here. A family's `INPUT` is the shape of its input, a float tensor
`input` unless the family names another (`INPUT_NAME`, `INPUT_TYPE`).
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


def names() -> list[str]:
    """The built-in networks' names, sorted."""
    return sorted(FAMILIES)


def build(name: str, seed: int = 0, weights: bool = True) -> onnx.ModelProto:
    """The ONNX model of a built-in network; the same seed gives the same weights.

    Without `weights` the tensors have shapes and no data: enough to extract workloads from, and
    VGG-19 costs kilobytes. Raises `UnknownName`.
    """
    return drawn(name, seed, weights)[1]


def drawn(name: str, seed: int = 0, weights: bool = True) -> tuple[Builder, onnx.ModelProto]:
    """As `build`, with the builder, which knows every tensor's shape. Raises `UnknownName`."""
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
    """Write a built-in network to an ONNX file (VGG: half a gigabyte); whole or not at all."""
    from tilewright.networks.onnx.files import write as write_onnx

    return write_onnx(build(name, seed), Path(path))
