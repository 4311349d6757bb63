"""Makes seeded tensors of a workload whose integers stand for reals, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.cpu.kernels.shared import QUANTISATION
from tilewright.targets.integer_reference import sums
from tilewright.targets.steps.quantised import BYTES, LIMITS, NUMBERS, TensorScale, packed
from tilewright.targets.workload import Workload

Shape = tuple[int, ...]
SPREAD = 1.5
"""Standard deviation of the real results: bounds of a few ones clip some of them."""
TIE = 0.02
"""Steps that a real may be from a tie and be rounded to either side. Winograd's sums of float32 are
up to a hundredth off."""


@dataclass(frozen=True, eq=False)
class RandomQuantised:
    """Tensors as a model has them: data and what is added like the output (n, c, h, w) or (rows,
    channels), weights (o, c / groups, kh, kw) or (out, in) less their zero points. `tensors` are
    what the epilogue takes, by name."""

    data: NDArray[Any]
    weights: NDArray[np.int8]
    data_zero: int
    scales: tuple[TensorScale, ...]
    tensors: dict[str, NDArray[Any]]

    @classmethod
    def of(
        cls, w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
    ) -> RandomQuantised:
        """Of `shapes` (data, weights, output). All numbers that there are; scales that leave most
        results within the output's, and some at either end."""
        data, weights, out = shapes

        def drawn(kind: str, shape: Shape) -> NDArray[Any]:
            least, most = LIMITS[kind]
            return rng.integers(least, most + 1, shape).astype(kind)

        def zero(kind: str) -> int:
            least, most = LIMITS[kind]
            return int(rng.choice(np.array([least, most, int(rng.integers(least, most + 1)), 0])))

        fan_in = int(np.prod(weights[1:]))
        scales = SPREAD / (74 * 74 * np.sqrt(fan_in)) * rng.uniform(0.3, 2, w.out_channels)
        steps = [step for step in w.epilogue if step.kind in NUMBERS]
        each = {"add_dequantised": SPREAD / 74, "round": SPREAD / 40, "quantise": SPREAD / 40}
        given = tuple(
            TensorScale(kind, each[step.kind] * rng.uniform(0.5, 2), zero(kind))
            for step in steps
            if (kind := BYTES[step.value])
        )
        data_zero = zero(w.data_dtype)
        added = next((BYTES[s.value] for s in steps if s.kind == "add_dequantised"), "int8")
        tensors = {
            QUANTISATION: packed(data_zero, [step.kind for step in steps], given),
            "scale": scales.astype(np.float32),
            "bias": rng.normal(0, SPREAD, w.out_channels).astype(np.float32),
            "added": drawn(added, out),
        }
        return cls(drawn(w.data_dtype, data), drawn("int8", weights), data_zero, given, tensors)

    def expected(self, w: Workload) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the largest right results in float64, of the output's shape: integers
        before they are rounded. They differ where an inner rounding is nearly a tie."""

        def image(tensor: NDArray[Any]) -> NDArray[Any]:
            return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

        data = image(self.data).astype(np.int64) - self.data_zero
        scales = iter(self.scales)
        found = sums(w, {"data": data, "weight": image(self.weights).astype(np.int64)})
        ends = np.stack([found, found]).astype(np.float64)
        for step in w.epilogue:
            given = next(scales) if step.kind in NUMBERS else None
            if step.kind == "dequantise":
                ends = ends * self.tensors["scale"][:, None, None]
            elif step.kind == "bias":
                ends = ends + self.tensors["bias"][:, None, None]
            elif given is None:
                clip = np.maximum if step.kind == "max" else np.minimum
                ends = clip(ends, float(step.value))
            elif step.kind == "add_dequantised":
                integers = image(self.tensors["added"]).astype(np.float64) - given.zero
                ends = ends + integers * given.scale
            elif step.kind == "round":
                near = ends / given.scale + np.array([-TIE, TIE])[:, None, None, None, None]
                ends = np.clip(np.rint(near), *given.bounds()) * given.scale
            else:
                ends = np.clip(ends / given.scale, *given.bounds()) + given.zero
        least, most = ends.reshape(2, *self.tensors["added"].shape)
        return least, most
