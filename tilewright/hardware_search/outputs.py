"""Writes the results of a co-design run, each file at the end and at once.

`hardware_search.folder` names them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
import pandas as pd

from tilewright.core.files import write_atomically
from tilewright.core.options import OptionValue
from tilewright.hardware_search import folder
from tilewright.hardware_search.costs import METRICS
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.options import CodesignOptions, Objective
from tilewright.hardware_search.pareto import hypervolume, judged, reference_of
from tilewright.hardware_search.problem import CodesignProblem, Design
from tilewright.hardware_search.progress import ProgressCount
from tilewright.hardware_search.results import FrontRow, ProvenDesign, front_row
from tilewright.targets.workload import Workload
from tilewright.tuning.outputs import parquet

AREA_MODEL = (
    "relative to the stock 16x16 VTA, by a model of the RTL's structure with textbook gate "
    "weights, not fitted to a synthesis (docs/guides/codesign.md)"
)
_UNITS = {"seconds": 1e3, "joules": 1e6}
CLOCKS = {
    "fixed": "all machines run at the base machine's clock",
    "tree": "the clock falls with the levels of the adder tree",
}


class Best(TypedDict):
    """The best machine within the budget, by the objective; `milliseconds` of one inference of each
    network."""

    name: str
    area: float
    milliseconds: float


class CodesignSummary(TypedDict):
    """What `summary.json` holds. `hardware` counts points of the space and the machines of them
    that are within bounds and budget; `seen` those of which anything was measured. `hypervolume` is
    of area and the logarithm of the objective, from the `reference`: area, and milliseconds,
    microjoules (`energy`) or their product (`edp`). `wall_seconds` are this command's, whatever an
    earlier one had measured. The last two are those of a tracked run."""

    method: str
    method_options: dict[str, OptionValue]
    seed: int
    networks: list[str]
    target: str
    bounds: dict[str, list[int]]
    budget: float
    area_model: str
    clock: str
    clock_rule: str
    objective: Objective
    hardware: dict[str, int]
    trials: int
    measurements: int
    compiles: int
    wall_seconds: float
    front: int
    hypervolume: float
    reference: list[float]
    best: Best | None
    verified: bool
    run: str
    versions: dict[str, str]
    mlflow_run_id: NotRequired[str]
    prefect_flow_run_id: NotRequired[str]


class Beaten(NamedTuple):
    """A machine that was measured whole, and is not on the front: `milliseconds` of one inference
    of each network, by the best of what was measured."""

    name: str
    area: float
    milliseconds: float


@dataclass(frozen=True)
class CodesignOutcome:
    """What a run came to: the summary, the front by ascending area, the other machines, and the
    measurements, a row each."""

    summary: CodesignSummary
    front: list[FrontRow]
    beaten: list[Beaten]
    trials: pd.DataFrame


def outcome_of(
    options: CodesignOptions,
    problem: CodesignProblem,
    evaluator: BudgetedEvaluator,
    proven: Sequence[ProvenDesign],
) -> CodesignOutcome:
    """All but the seconds it took."""
    objective = options.objective
    reference, hardware = reference_of(problem, objective), problem.hardware
    points = np.array(
        [(each.judged.design.area, each.judged.cost(objective)) for each in proven]
    ).reshape(-1, 2)
    summary: CodesignSummary = {
        "method": options.method,
        "method_options": options.method_options,
        "seed": options.seed,
        "networks": list(problem.networks),
        "target": hardware.base.name,
        "bounds": {name: list(pair) for name, pair in sorted(options.bounds.items())},
        "budget": options.budget,
        "area_model": AREA_MODEL,
        "clock": options.clock,
        "clock_rule": CLOCKS[options.clock],
        "objective": options.objective,
        "hardware": {
            "points": hardware.space.size,
            "machines": len(hardware.points),
            "seen": len(evaluator.designs()),
        },
        "trials": options.trials,
        "measurements": evaluator.spent,
        "compiles": evaluator.compiled,
        "wall_seconds": 0.0,
        "front": len(proven),
        "hypervolume": hypervolume(points, reference),
        "reference": [
            reference[0],
            reference[1] * float(np.prod([_UNITS[metric] for metric in METRICS[objective]])),
        ],
        "best": _best(proven),
        "verified": all(layer.verified for each in proven for layer in each.layers),
        "run": folder.identity(options),
        "versions": _versions(hardware.base.fingerprint),
    }
    rows = [front_row(problem, each) for each in proven]
    names = {row["name"] for row in rows}
    beaten = [
        Beaten(each.design.name, each.design.area, 1e3 * each.latency)
        for each in judged(evaluator, objective)
        if each.design.name not in names
    ]
    return CodesignOutcome(summary, rows, beaten, trials_frame(problem, evaluator))


def _best(proven: Sequence[ProvenDesign]) -> Best | None:
    """All of a front are within the budget, and the last costs least."""
    if not proven:
        return None
    found = proven[-1].judged
    return {
        "name": found.design.name,
        "area": found.design.area,
        "milliseconds": 1e3 * found.latency,
    }


def write_outputs(options: CodesignOptions, outcome: CodesignOutcome) -> None:
    """Write all files, the summary last: a folder with a summary is complete. Raises `OSError`."""
    place = options.folder
    folder.forget_specs(place, {row["name"] for row in outcome.front})
    # The front first: the next run removes no specification that no front names.
    files = {place / folder.FRONT: _pretty(outcome.front)}
    files |= {folder.specification(place, row["name"]): spec_file(row) for row in outcome.front}
    files[place / folder.TRIALS] = parquet(outcome.trials)
    files[place / folder.SUMMARY] = _pretty(outcome.summary)
    for path, data in files.items():
        write_atomically(path, data)


def spec_file(row: FrontRow) -> bytes:
    """A machine as `--target` takes it; its `source` says where it comes from and what its area
    means."""
    source = f"tilewright codesign; area {row['area']:.4f}, {AREA_MODEL}"
    return folder.pretty({**row["spec"], "source": source})


def trials_frame(problem: CodesignProblem, evaluator: BudgetedEvaluator) -> pd.DataFrame:
    """A row a measurement, in order: the machine with its hardware knobs and area, what was
    measured on it, and the best latency of all networks together so far, in seconds (infinite
    before there was one)."""
    rows, count = [], ProgressCount(problem)
    for each in evaluator.log:
        design, found = each.design, each.found
        space = design.target.space(each.workload)
        schedule = space.describe(space.unravel(np.array([each.flat]))[0].tolist())
        rows.append(
            {
                "trial": each.trial,
                "machine": design.name,
                **_knobs(problem, design),
                "area": design.area,
                "workload": str(each.workload),
                "epilogue": each.workload.epilogue_text,
                "layers": _names(design, each.workload),
                "schedule": json.dumps(schedule),
                "status": found.status,
                "reason": found.reason,
                "cycles": found.cycles,
                "seconds": found.seconds,
                "best_seconds": count.add(each).latency,
            }
        )
    return pd.DataFrame(rows)


def _knobs(problem: CodesignProblem, design: Design) -> dict[str, int]:
    """Those of the hardware, by name."""
    hardware = problem.hardware
    return hardware.space.describe(hardware.points[design.row].tolist())


def _names(design: Design, workload: Workload) -> str:
    layer = next(each for each in design.layers if each.workload == workload)
    return ", ".join(f"{network}: {name}" for network, name in layer.names)


def _versions(fingerprint: str) -> dict[str, str]:
    return {
        "tilewright": version("tilewright"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "base_machine": fingerprint,
    }


def _pretty(document: CodesignSummary | list[FrontRow]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
