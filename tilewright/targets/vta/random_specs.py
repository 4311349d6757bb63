"""Draws valid VTA specifications at random: accelerators that might have been built.

Each choice is drawn by itself and evenly: block shape, what the scratchpads hold, the memory port.
Everything drawn is one of `VtaTarget.hardware_features`, so that a model can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.core.errors import SpecError
from tilewright.targets.vta.spec import VtaSpec, preset_files

_BATCH = (0, 0, 0, 1, 2)
"""log2 of rows multiplied at once; one row is usual."""
_SQUARE = (3, 4, 5, 6)
"""log2 of the channels of a block, in and out."""
_OBLONG = ((3, 4), (4, 3), (4, 5), (5, 4), (5, 6), (6, 5))
"""The same where the two differ."""
_SQUARE_SHARE = 0.75
_DEPTHS = {"inp": range(8, 14), "wgt": range(6, 12), "acc": range(8, 13), "uop": range(10, 14)}
"""log2 of the elements that a scratchpad holds."""
_PORTS: Mapping[str, Sequence[int]] = {
    "bus_bits": (64, 128, 256, 512),
    "max_burst_beats": (16, 64, 256),
    "memory_latency_cycles": (8, 16, 32, 64, 128, 256),
}


def variants(count: int, seed: int) -> list[VtaSpec]:
    """`count` specifications that differ in more than their names, none of them a preset. The first
    of a larger count are those of a smaller one."""
    rng = np.random.default_rng(seed)
    taken = {VtaSpec.load(name).fingerprint for name in preset_files()}
    found: list[VtaSpec] = []
    while len(found) < count:
        try:
            spec = VtaSpec.from_mapping(_drawn(rng))
        except SpecError:  # its instructions do not fit their words
            continue
        if spec.fingerprint not in taken:
            taken.add(spec.fingerprint)
            found.append(spec.model_copy(update={"name": _name(spec)}))
    return found


def _drawn(rng: np.random.Generator) -> dict[str, object]:
    batch = int(rng.choice(_BATCH))
    if rng.random() < _SQUARE_SHARE:
        block_in = block_out = int(rng.choice(_SQUARE))
    else:
        block_in, block_out = (int(side) for side in _OBLONG[int(rng.integers(len(_OBLONG)))])
    depth = {name: int(rng.choice(list(choices))) for name, choices in _DEPTHS.items()}
    port = {name: int(rng.choice(list(choices))) for name, choices in _PORTS.items()}
    return {
        "log_batch": batch,
        "log_block_in": block_in,
        "log_block_out": block_out,
        "log_uop_buff_size": depth["uop"] + 2,  # micro-ops of 4 bytes
        "log_inp_buff_size": depth["inp"] + batch + block_in,
        "log_wgt_buff_size": depth["wgt"] + block_in + block_out,
        "log_acc_buff_size": depth["acc"] + batch + block_out + 2,  # sums of 4 bytes
        **port,
    }


def _name(spec: VtaSpec) -> str:
    shape = f"{spec.batch}x{spec.block_in}x{spec.block_out}"
    return f"vta-{shape}-{spec.fingerprint[:8]}"
