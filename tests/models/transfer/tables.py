"""Small tables of lowered and timed programs: three machines and four layers."""

from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.models.transfer.columns import columns_of
from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.features import Features
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import parse_workload

MACHINES = (
    VtaSpec(name="usual"),
    VtaSpec(name="wide", bus_bits=256, log_inp_buff_size=14),
    VtaSpec(name="far", memory_latency_cycles=128, log_wgt_buff_size=17),
)
LAYERS = (
    "conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=64,h=14,w=14,o=32,k=1,s=1,p=0",
    "conv2d:n=1,c=32,h=28,w=28,o=64,k=3,s=2,p=1",
    "dense:n=1,c=256,o=512",
)


@cache
def small_table(rows: int = 80) -> TrainingTable:
    """Return a table with at most `rows` programs per task, including those that do not compile."""
    rng = np.random.default_rng(0)
    parts: list[tuple[Features, np.ndarray, int, int]] = []
    for h, machine in enumerate(MACHINES):
        target = VtaTarget(machine)
        for w, text in enumerate(LAYERS):
            workload = parse_workload(text)
            space = target.space(workload)
            configs = space.unravel(np.unique(rng.integers(0, space.size, rows)))
            lowered = target.lower(workload, configs)
            measured = target.measure(lowered)
            features = columns_of(
                workload, space, configs, target.hardware_features(), lowered.hidden
            )
            latency = np.where(measured.valid, np.log2(np.maximum(measured.cycles, 1)), np.nan)
            parts.append((features, latency, w, h))
    names = list(dict.fromkeys(name for item, *_ in parts for name in item.names))
    return TrainingTable(
        Features.from_names(np.concatenate([_wide(item, names) for item, *_ in parts]), names),
        np.concatenate([latency for _, latency, _, _ in parts]),
        np.concatenate([np.full(len(item), 10 * h + w) for item, _, w, h in parts]),
        np.concatenate([np.full(len(item), w) for item, _, w, _ in parts]),
        np.concatenate([np.full(len(item), h) for item, _, _, h in parts]),
    )


def _wide(features: Features, names: list[str]) -> np.ndarray:
    matrix = np.full((len(features), len(names)), np.nan)
    matrix[:, [names.index(name) for name in features.names]] = features.matrix
    return matrix
