"""Targets and layers whose schedule spaces benchmarks enumerate, and their measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import track

from benchmarks.layers import DEVELOPMENT, JUDGED
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.ground_truth import ground_truth_table
from tilewright.targets.replay import MeasurementTable
from tilewright.targets.workload import Workload

SpaceName = Literal["unchecked", "extended"]
TARGETS: dict[SpaceName, str] = {"unchecked": "evta-zcu102", "extended": "vta-pynq"}
"""Target whose schedules are enumerated, by space: ML²Tuner's own space, and the default space."""


def layers_named(names: str) -> dict[str, Workload]:
    """Return layers by their names, separated by commas; the held-out layers for an empty text."""
    known = DEVELOPMENT | JUDGED
    return {name: known[name] for name in names.split(",") if name} or JUDGED


def make_space_target(where: SpaceName) -> Target:
    """Return the target whose space is enumerated."""
    return make_target(TARGETS[where], where)


def enumerate_layers(
    where: SpaceName, names: str, folder: Path
) -> Iterator[tuple[str, Workload, MeasurementTable]]:
    """Yield each named layer with the measurements of all its schedules.

    Measurements that are not yet below `folder` are made, with a progress bar on the terminal.
    """
    target = make_space_target(where)
    layers = layers_named(names)
    for name in track(layers, console=Console(stderr=True), transient=True):
        yield name, layers[name], ground_truth_table(target, layers[name], folder)
