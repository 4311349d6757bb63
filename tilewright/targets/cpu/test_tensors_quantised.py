"""Makes seeded tensors of a workload whose integers stand for reals, and the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.cpu.kernels.shared import QUANTISATION
from tilewright.targets.integer_operators import sums
from tilewright.targets.steps.quantised import BYTES, LIMITS, Quantisation
from tilewright.targets.workload import Workload

Shape = tuple[int, ...]
SPREAD = 1.5
"""Standard deviation of the real results: bounds of a few ones clip some of them."""


@dataclass(frozen=True, eq=False)
class RandomQuantised:
    """Tensors as a model has them: data and what is added like the output (n, c, h, w) or (rows,
    channels), weights (o, c / groups, kh, kw) or (out, in) less their zero points. `tensors` are
    what the epilogue takes, by name."""

    data: NDArray[Any]
    weights: NDArray[np.int8]
    numbers: Quantisation
    tensors: Mapping[str, NDArray[Any]]

    @classmethod
    def of(
        cls, w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
    ) -> RandomQuantised:
        """Of `shapes` (data, weights, output). All numbers that there are; scales that leave most
        results within the output's, and some at either end."""
        data, weights, out = shapes
        added = next((BYTES[s.value] for s in w.epilogue if s.kind == "add_dequantised"), "int8")

        def drawn(kind: str, shape: Shape) -> NDArray[Any]:
            least, most = LIMITS[kind]
            return rng.integers(least, most + 1, shape).astype(kind)

        def zero(kind: str) -> int:
            least, most = LIMITS[kind] if kind in LIMITS else (0, 0)
            return int(rng.choice([least, most, rng.integers(least, most + 1), 0]))

        fan_in = int(np.prod(weights[1:]))
        scales = SPREAD / (74 * 74 * np.sqrt(fan_in)) * rng.uniform(0.3, 2, w.out_channels)
        numbers = Quantisation(
            zero(w.data_dtype), zero(added), SPREAD / 74 * rng.uniform(0.3, 2),
            SPREAD / 40 * rng.uniform(0.5, 2), zero(w.out_dtype),
        )  # fmt: skip
        tensors = {
            QUANTISATION: numbers.packed(w.out_dtype),
            "scale": scales.astype(np.float32),
            "bias": rng.normal(0, SPREAD, w.out_channels).astype(np.float32),
            "added": drawn(added, out),
        }
        return cls(drawn(w.data_dtype, data), drawn("int8", weights), numbers, tensors)

    def expected(self, w: Workload) -> NDArray[np.float64]:
        """The results in float64, of the output's shape: integers before they are rounded."""

        def image(tensor: NDArray[Any]) -> NDArray[Any]:
            return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

        numbers, data = self.numbers, image(self.data).astype(np.int64) - self.numbers.data_zero
        found = sums(w, {"data": data, "weight": image(self.weights).astype(np.int64)})
        real: NDArray[np.float64] = found.astype(np.float64)
        for step in w.epilogue:
            if step.kind == "dequantise":
                real = real * self.tensors["scale"][None, :, None, None]
            elif step.kind == "bias":
                real = real + self.tensors["bias"][None, :, None, None]
            elif step.kind == "add_dequantised":
                added = image(self.tensors["added"]).astype(np.float64) - numbers.added_zero
                real = real + added * numbers.added_scale
            elif step.kind == "quantise":
                steps = real / numbers.out_scale + numbers.out_zero
                real = np.clip(steps, *LIMITS[BYTES[step.value]])
            else:
                clip = np.maximum if step.kind == "max" else np.minimum
                real = clip(real, float(step.value))
        return real.reshape(self.tensors["added"].shape)
