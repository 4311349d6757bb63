"""What tuning a workload came to, and the two stages around its rounds: the schedule a user has
without tuning, and the proof that the chosen one computes the right numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search import History
from targets.errors import TilewrightError
from targets.files import Json
from targets.vta.verify import mismatches
from tasks.stage import reuse_or_do, stage
from tasks.store import Manifest
from tuning.study import Study


class WrongSchedule(TilewrightError):
    """A schedule that simulates well and computes wrong numbers."""


@dataclass(frozen=True)
class Schedule:
    """A chosen schedule. `source` is `trial`, or where the default came from if no trial beat it;
    `space` is the one its knobs belong to, `config` its row of knob indices there."""

    source: str
    space: str
    config: tuple[int, ...]
    knobs: dict[str, int]
    cycles: int


@dataclass(frozen=True)
class Outcome:
    """A tuned workload. Cycles are of one call; `lowered` counts configs that were compiled beyond
    the trials, `invalid_trials` the trials that did not end in a valid measurement."""

    study: Study
    count: int
    names: tuple[str, ...]
    default: Schedule
    chosen: Schedule
    roofline_cycles: int
    trials: int
    invalid_trials: int
    lowered: int
    failed_compiles: int
    reused_trials: int
    wall_seconds: float

    def summary(self) -> dict[str, Json]:
        """The row of `summary.json`."""
        workload = self.study.workload
        return {
            "id": workload.id,
            "operator": workload.operator,
            "workload": str(workload),
            "count": self.count,
            "macs": workload.macs,
            "default_cycles": self.default.cycles,
            "default_source": self.default.source,
            "tuned_cycles": self.chosen.cycles,
            "tuned_source": self.chosen.source,
            "roofline_cycles": self.roofline_cycles,
            "trials": self.trials,
            "invalid_trials": self.invalid_trials,
            "lowered": self.lowered,
            "failed_compiles": self.failed_compiles,
            "reused_trials": self.reused_trials,
            "wall_seconds": round(self.wall_seconds, 3),
        }

    def schedule(self) -> dict[str, Json]:
        """The row of `schedules.json`."""
        return {
            "id": self.study.workload.id,
            "workload": str(self.study.workload),
            "epilogue": ", ".join(str(op) for op in self.study.workload.epilogue),
            "names": list(self.names),
            "source": self.chosen.source,
            "space": self.chosen.space,
            "config": list(self.chosen.config),
            "knobs": self.chosen.knobs,
            "cycles": self.chosen.cycles,
        }


@stage("default schedule")
def measure_default(study: Study) -> Manifest:
    """The stock schedule and its cycles, lowered and timed like every other."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        cycles, found = study.target.baseline(study.workload)
        space = found.lowering.space
        config = [
            knob.values.index(int(value))
            for knob, value in zip(space.knobs, found.values, strict=True)
        ]
        return {
            "source": found.source, "space": "template", "config": config,
            "knobs": space.describe(config), "cycles": cycles,
        }, {}  # fmt: skip

    return reuse_or_do(
        "measure_default", 1, study.target.fingerprint, {"workload": study.workload.id}, work
    )


@stage("verify")
def verify_schedule(study: Study, chosen: Schedule) -> Manifest:
    """Run the schedule's program on random tensors. Raises `WrongSchedule` if a bit differs from
    the integer reference."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        wrong = _mismatches(study, chosen)
        if wrong:
            raise WrongSchedule(
                f"{study.workload}: schedule {chosen.knobs} computes {wrong} wrong values; "
                "please report this, with the seed and the target's specification"
            )
        return {"mismatches": wrong}, {}

    return reuse_or_do(
        "verify_schedule", 1, study.target.fingerprint,
        {"workload": study.workload.id, "space": chosen.space, "config": list(chosen.config)}, work,
    )  # fmt: skip


def choose_schedule(study: Study, history: History, default: Schedule) -> Schedule:
    """The fastest valid trial, unless the default is faster still."""
    best = history.best
    if best is None or int(history.cycles[best]) > default.cycles:
        return default
    config = tuple(int(index) for index in history.configs[best])
    return Schedule(
        source="trial",
        space=study.space_name,
        config=config,
        knobs=study.problem.space.describe(config),
        cycles=int(history.cycles[best]),
    )


def read_default(manifest: Manifest) -> Schedule:
    values = manifest.values
    return Schedule(
        str(values["source"]), str(values["space"]), tuple(values["config"]),
        dict(values["knobs"]), int(values["cycles"]),
    )  # fmt: skip


def _mismatches(study: Study, chosen: Schedule) -> int:
    if chosen.space == study.space_name:
        configs = np.array([chosen.config], dtype=np.int32)
        return int(study.target.verify(study.workload, configs)[0])
    _, found = study.target.baseline(study.workload)
    return mismatches(found.lowering, found.values)
