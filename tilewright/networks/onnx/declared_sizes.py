"""Gives the inputs of a model with dynamic dimensions the sizes that are declared for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import onnx

from tilewright.networks.errors import DynamicShapeError
from tilewright.networks.onnx.graph import data_inputs
from tilewright.targets.layer import NamedShape

MOST_COMBINATIONS = 16


@dataclass(frozen=True)
class SizedShapes:
    """The size of each dynamic dimension, and the shapes of the inputs that have any."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]


def named_shapes(model: onnx.ModelProto) -> dict[str, NamedShape]:
    """The shape of each input; a dynamic axis without a name is called INPUT.AXIS."""
    return {
        info.name: tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{info.name}.{axis}"
            for axis, d in enumerate(info.type.tensor_type.shape.dim)
        )
        for info in data_inputs(model)
    }


def shapes_at(
    inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]]
) -> list[SizedShapes]:
    """Every combination of the sizes, ascending, with the shapes that inputs have there. Raises
    `DynamicShapeError` for a dimension that no input has, and too many combinations."""
    known = {axis: None for shape in inputs.values() for axis in shape if isinstance(axis, str)}
    for name, listed in sizes.items():
        if name not in known:
            dynamic = ", ".join(f"'{each}'" for each in known) or "none"
            raise DynamicShapeError(
                f"the model has no dynamic dimension '{name}'; its dynamic dimensions: {dynamic}"
            )
        if not listed or min(listed) < 1:
            raise DynamicShapeError(f"--sizes {name}: sizes are whole numbers from 1")
    grid = list(product(*(sorted(set(listed)) for listed in sizes.values())))
    if len(grid) > MOST_COMBINATIONS:
        raise DynamicShapeError(
            f"the sizes make {len(grid)} combinations, and each is compiled; declare fewer, "
            f"{MOST_COMBINATIONS} at most together"
        )
    return [_shapes(inputs, dict(zip(sizes, chosen, strict=True))) for chosen in grid]


def _shapes(inputs: Mapping[str, NamedShape], chosen: Mapping[str, int]) -> SizedShapes:
    found = {}
    for name, shape in inputs.items():
        if any(isinstance(axis, str) for axis in shape):
            sizes = [chosen.get(axis, 0) if isinstance(axis, str) else axis for axis in shape]
            left = [axis for axis, size in zip(shape, sizes, strict=True) if not size]
            if left:
                raise DynamicShapeError(
                    f"dimension '{left[0]}' of input '{name}' is dynamic, too; give its size: "
                    f"--sizes {left[0]}=1"
                )
            found[name] = tuple(sizes)
    return SizedShapes(chosen, found)
