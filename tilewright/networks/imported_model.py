"""Holds a network with its weights, as the importer makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.sample_values import TEXT, draw_words

if TYPE_CHECKING:
    from tilewright.networks.partition.collapse import RegionModel
    from tilewright.networks.relax.bindings import FlatGraph

Array = NDArray[Any]


def seeded_inputs(
    kinds: Mapping[str, tuple[Sequence[int], str]], seed: int = 0
) -> dict[str, Array]:
    """Arrays by input name, in the shapes and types given: normal, or zeros and ones where an input
    takes integers, or words."""
    rng, found = np.random.default_rng(seed), {}
    for name, (shape, dtype) in kinds.items():
        if dtype == TEXT:
            found[name] = draw_words(shape, rng)
            continue
        real = dtype.startswith("float")
        drawn = rng.standard_normal(shape) if real else rng.integers(0, 2, shape)
        found[name] = drawn.astype(dtype)
    return found


@dataclass(frozen=True, eq=False)
class Whole:
    """A network with its weights: a flat view of the module, whose parameters are `inputs`, and
    who computes it without any of that: arrays by input name in, by output name out.

    The module calls onnxruntime for `regions`. `constants` are single integers that the network
    holds, `halves` the outputs that are float16 in its file and float32 here.
    Inputs of one that `is_undrawable` cannot be drawn.
    """

    flat: FlatGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reference: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    reference_name: str
    regions: tuple[RegionModel, ...] = ()
    constants: tuple[int, ...] = ()
    halves: tuple[str, ...] = ()
    is_undrawable: bool = False

    def seeded_inputs(self, seed: int = 0) -> dict[str, Array]:
        """As `seeded_inputs`, in the shapes of its own inputs."""
        types = (parameter.ty for parameter in self.flat.module["main"].params)
        kinds = (([int(size) for size in each.shape], str(each.dtype)) for each in types)
        return seeded_inputs(dict(zip(self.inputs, kinds, strict=True)), seed)
