"""Finds local response normalisations, and writes each as one operator.

x / (bias + alpha / size * (squares of `size` channels around it)) ** beta. Krizhevsky et al.,
ImageNet Classification with Deep Convolutional Neural Networks, 2012. TVM's importer writes eight
operators for it, among them a pool of volumes and a power that is computed number by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tilewright.networks.relax.bindings import Binding, FlatGraph

CHAIN = (
    "relax.power", "relax.add", "relax.multiply", "relax.squeeze", "relax.nn.avg_pool3d",
    "relax.expand_dims", "relax.multiply",
)  # fmt: skip
"""What lies between the result, a quotient, and the data, the last first."""
USUAL = 0.75
"""An exponent that square roots give."""


@dataclass(frozen=True, eq=False)
class LocalResponse:
    """Of the image `source` (n, c, h, w)."""

    source: Any
    size: int
    alpha: float
    beta: float
    bias: float


def local_responses(flat: FlatGraph) -> dict[Any, LocalResponse]:
    """All in a network, by the variable of the result, (n, c, h, w)."""
    found = {}
    for binding in flat.bindings:
        if binding.op == "relax.divide" and (made := _of(flat, binding)) is not None:
            found[binding.var] = made
    return found


def _of(flat: FlatGraph, quotient: Binding) -> LocalResponse | None:
    source, at = quotient.args
    numbers: list[float] = []
    pool: Any = None
    for operator in CHAIN:
        binding = flat.by_var.get(at) if isinstance(at, relax.Var) else None
        if binding is None or binding.op != operator or len(flat.users.get(at, [])) != 1:
            return None
        constants = [arg for arg in binding.args if isinstance(arg, GenericConst)]
        if any(constant.value.numpy().size != 1 for constant in constants):
            return None
        numbers += [float(constant.value.numpy().item()) for constant in constants]
        others = [arg for arg in binding.args if isinstance(arg, relax.Var)]
        if binding.op == "relax.nn.avg_pool3d":
            pool = binding
        at = others[0] if others else None
        square = all(other.same_as(source) for other in others)
    if len(numbers) != 3 or not square or quotient.shape is None or len(quotient.shape) != 4:
        return None
    beta, bias, alpha = numbers
    size = _window(pool)
    return LocalResponse(source, size, alpha, beta, bias) if size else None


def _window(pool: Binding) -> int:
    """The channels of a pool of volumes that reads nothing else; 0 for others."""
    attrs, (n, one, *_) = pool.value.attrs, pool.shape or (0, 0)
    size = int(attrs.pool_size[0])
    pads = [int(pad) for pad in attrs.padding]
    expected = [(size - 1) // 2, 0, 0, size // 2, 0, 0]
    usual = list(map(int, attrs.strides)) == [1, 1, 1] == list(map(int, attrs.dilation))
    alone = list(map(int, attrs.pool_size[1:])) == [1, 1] and one == 1 and n > 0
    return size if usual and alone and pads == expected and attrs.count_include_pad else 0


def normalised(image: Any, found: LocalResponse) -> Any:
    """(n, c, h, w) of an image (n, c, h, w)."""
    _, channels, *_ = map(int, image.shape)
    share = np.float32(found.alpha / found.size)

    def value(n: Any, c: Any, y: Any, x: Any) -> Any:
        total: Any = tirx.const(0.0, "float32")
        for tap in range(-((found.size - 1) // 2), found.size // 2 + 1):
            at = c + tap
            near = image[n, tirx.max(tirx.min(at, channels - 1), 0), y, x]
            inside = tirx.Cast("float32", tirx.all(at >= 0, at < channels))
            total = total + near * near * inside
        total = total * tirx.const(float(share), "float32") + tirx.const(found.bias, "float32")
        if found.beta == USUAL:
            root = tirx.sqrt(total)
            return image[n, c, y, x] / (root * tirx.sqrt(root))
        return image[n, c, y, x] / tirx.pow(total, tirx.const(found.beta, "float32"))

    return te.compute(image.shape, value, name="local_response")
