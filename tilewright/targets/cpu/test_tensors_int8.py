"""Makes seeded int8 tensors of a workload, and the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.cpu.kernels.shared import A_CHANNEL
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_reference import reference
from tilewright.targets.workload import Workload

Shape = tuple[int, ...]
INTERESTING = 40.0
"""Standard deviation of an int8 output's values: few are clipped, none is small."""


def random_integers(
    w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
) -> tuple[NDArray[np.int8], NDArray[np.int8], dict[str, NDArray[Any]]]:
    """Data, weights and what the epilogue takes, of `shapes` (data, weights, output). Data have all
    values; weights are as large as leaves most outputs within int8 after the shifts, and a few at
    either end."""
    data, weights, out = shapes
    fan_in = w.in_channels // w.groups * w.kernel_h * w.kernel_w
    shift = sum(
        op.amounts[0] * (-1 if op.kind == "shl" else 1)
        for op in w.epilogue
        if op.kind in ("shr", "shl", "shr_channel")
    )
    spread = min(max(INTERESTING * 2.0**shift / (74 * np.sqrt(fan_in)), 1.0), 64.0)
    drawn = np.clip(np.rint(rng.normal(0, spread, weights)), -128, 127).astype(np.int8)
    ends = rng.random(weights) < 1 / 256
    drawn[ends] = rng.choice(np.array([-128, 127], np.int8), int(ends.sum()))
    limit = 1 << min(max(shift + 6, 1), 19)
    bias = rng.integers(-limit, limit, w.out_channels, np.int32)
    if EpilogueOp("bias", 32) in w.epilogue:  # of all sizes
        bias = rng.integers(-(1 << 31), 1 << 31, w.out_channels, np.int32)
        bias >>= rng.integers(0, 32, w.out_channels, np.int32)
    added: dict[str, NDArray[Any]] = {
        "bias": bias,
        "add": rng.integers(-limit, limit, out, np.int32),
        "residual": rng.integers(-128, 128, out, np.int8),
    }
    for op in w.epilogue:
        if op.kind == "shr_channel":
            least, most = op.amounts
            added["shr_channel"] = rng.integers(least, most + 1, w.out_channels, np.int32)
    return rng.integers(-128, 128, data, np.int8), drawn, added


def integer_reference(
    w: Workload,
    data: NDArray[np.int8],
    weights: NDArray[np.int8],
    added: Mapping[str, NDArray[Any]],
    out: Shape,
) -> NDArray[np.int8]:
    """What `targets.reference` says, of shape `out`; tensors of any workload as a model has them,
    (n, c, h, w) and (o, c / groups, kh, kw), or (rows, channels) and (out, in)."""

    if w.operator == "batch_matmul":  # each product a dense layer
        dense = replace(w, operator="dense", batch=w.height, height=1)

        def of(each: int) -> dict[str, NDArray[Any]]:
            return {n: a if n in A_CHANNEL else a[each] for n, a in added.items()}

        parts = [
            integer_reference(dense, data[each], weights[each].T, of(each), out[1:])
            for each in range(w.batch)
        ]
        return np.stack(parts)

    def image(tensor: NDArray[Any]) -> NDArray[Any]:
        return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

    tensors = {
        name: array if name in A_CHANNEL else image(array)
        for name, array in {"data": data, "weight": weights, **added}.items()
    }
    return reference(w, tensors).astype(np.int8).reshape(out)
