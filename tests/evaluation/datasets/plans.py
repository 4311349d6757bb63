"""A plan for a dataset of few rows. It needs no network to list the workloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tilewright.evaluation.datasets.build import measure_part
from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import (
    DatasetHardware,
    DatasetPlan,
    PlanCell,
    PlanPart,
    make_plan,
)
from tilewright.evaluation.datasets.rows import Progress
from tilewright.flows.dataset import build_dataset
from tilewright.search import LocalRunner
from tilewright.search.events import Listener, ignore
from tilewright.targets.registry import rebuild, target_kinds
from tilewright.targets.workload import parse_workload

T = TypeVar("T")

WORKLOADS = (
    "conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=64,h=14,w=14,o=64,k=1,s=1,p=0",
    "dense:n=1,c=128,o=256",
)
OPTIONS = DatasetOptions(rows=240, cpu_rows=0, seed=5, specs=2, workloads=3)


def small_plan(options: DatasetOptions = OPTIONS) -> DatasetPlan:
    """Return a plan with two accelerators, three workloads, and 40 rows per pair in two parts."""
    hardware = []
    for specification in target_kinds()["vta"].variants(2, 0):
        target = rebuild("vta", specification, "extended")
        hardware.append(
            DatasetHardware(
                target.fingerprint, "vta", target.name, target.hardware_features(),
                dict(specification), "extended",
            )
        )  # fmt: skip
    parts = [
        PlanPart(h, number, tuple(PlanCell(w, 40) for w in cells))
        for h in range(2)
        for number, cells in enumerate([(0, 1), (2,)])
    ]
    workloads = tuple(parse_workload(text).to_json() for text in WORKLOADS)
    return DatasetPlan(options, "0", tuple(hardware), workloads, tuple(parts))


class Steps(LocalRunner):
    """Runner that builds a dataset from a plan of few rows. It fails before part number `stop`."""

    def __init__(self, stop: int = 99) -> None:
        super().__init__()
        self.made, self.stop = 0, stop

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        own: dict[object, Callable[..., Any]] = {make_plan: self.plan, measure_part: self.part}
        return super().__call__(own[step], *given)

    def plan(self, options: DatasetOptions) -> DatasetPlan:
        return small_plan(options)

    def part(self, plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
        if self.made == self.stop:
            raise KeyboardInterrupt
        self.made += 1
        return measure_part(plan, part, tell)


def build(
    folder: Path, options: DatasetOptions, run: LocalRunner | None = None, emit: Listener = ignore
) -> DatasetMetadata:
    """Build a dataset in this process."""
    run = run or LocalRunner()
    run.emit = emit
    return build_dataset(run, folder, options)
