"""Draws Gemmini specifications at random: memories and their port, for models that know many.

Each choice is drawn by itself and evenly. Everything drawn is one of
`GemminiTarget.hardware_features`, so that a model can tell machines apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.targets.gemmini.spec import GemminiSpec, preset_files

_CHOICES: Mapping[str, Sequence[int]] = {
    "scratchpad_rows": (2048, 4096, 8192, 16384, 32768),
    "accumulator_rows": (256, 512, 1024, 2048),
    "memory_latency_cycles": (10, 20, 40, 60, 100, 200),
    "cycles_per_beat": (1, 2, 4),
}
DIFFERENT = int(np.prod([len(values) for values in _CHOICES.values()]))


def variants(count: int, seed: int) -> list[GemminiSpec]:
    """At most `count` specifications that differ, none of them a preset. The first of a larger
    count are those of a smaller one."""
    rng = np.random.default_rng(seed)
    taken = {GemminiSpec.load(name).fingerprint for name in preset_files()}
    found: list[GemminiSpec] = []
    while len(found) < min(count, DIFFERENT - len(taken)):
        drawn = {name: int(rng.choice(list(values))) for name, values in _CHOICES.items()}
        kib, sums = drawn["scratchpad_rows"] >> 6, drawn["accumulator_rows"] >> 4
        name = f"gemmini-{kib}k-{sums}k-{drawn['memory_latency_cycles']}"
        spec = GemminiSpec.from_mapping({"name": f"{name}-{drawn['cycles_per_beat']}", **drawn})
        if spec.fingerprint not in taken:
            taken.add(spec.fingerprint)
            found.append(spec)
    return found
