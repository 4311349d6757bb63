"""Results of a co-design run: machines of the front, summary, table of trials, and their files.

Each layer of a machine of the front was measured anew (`verification`). All files are written at
the end, the summary last; `output_folder` names them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.core.files import Json, write_atomically
from tilewright.core.options import OptionValue
from tilewright.hardware_search import output_folder
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.objectives import METRICS
from tilewright.hardware_search.options import CodesignOptions, Objective
from tilewright.hardware_search.pareto import JudgedFront, hypervolume, judge_designs, reference_of
from tilewright.hardware_search.problem import CodesignLayer, CodesignProblem, Design
from tilewright.hardware_search.progress import ProgressCount
from tilewright.targets.capabilities import PARTS, specification_of
from tilewright.targets.workload import Workload
from tilewright.tuning.outputs import parquet

UNKNOWN = "unknown"
"""The bottleneck of a machine that does not see where the time of its programs goes."""
AREA_MODEL = (
    "relative to the stock 16x16 VTA, by a model of the RTL's structure with textbook gate "
    "weights, not fitted to a synthesis (docs/guides/codesign.md)"
)
_UNITS = {"seconds": 1e3, "joules": 1e6}
CLOCKS = {
    "fixed": "all machines run at the base machine's clock",
    "tree": "the clock falls with the levels of the adder tree",
}


@dataclass(frozen=True)
class ProvenLayer:
    """A layer's best schedule, lowered and measured anew: knobs, cycles and seconds a call, what
    was counted, cycles by `PARTS` (none where the machine does not see that), the bound in cycles
    (-1 if unknown), whether its output was compared bit for bit, and microjoules a call by what
    spends them (none where the machine does not know)."""

    layer: CodesignLayer
    knobs: Mapping[str, int]
    cycles: int
    seconds: float
    counters: Mapping[str, int]
    parts: Mapping[str, int]
    bound: int
    verified: bool
    energy: Mapping[str, float]


@dataclass(frozen=True)
class ProvenDesign:
    """A machine of the front with all its layers."""

    judged: JudgedFront
    layers: tuple[ProvenLayer, ...]

    @property
    def name(self) -> str:
        """The name of the machine."""
        return self.judged.design.name

    def parts(self) -> dict[str, float]:
        """Return the shares of the cycles of one inference of each network, by `PARTS`; empty if
        the machine does not break its time down."""
        if not all(each.parts for each in self.layers):
            return {}
        total = np.zeros(len(PARTS))
        for each in self.layers:
            total += each.layer.calls * np.array([each.parts[name] for name in PARTS], float)
        shares = total / max(total.sum(), 1.0)
        return dict(zip(PARTS, shares.tolist(), strict=True))

    @property
    def bottleneck(self) -> str:
        """The part that most cycles go to."""
        return largest(self.parts())

    def microjoules(self) -> NDArray[np.float64]:
        """Of the accelerator, one inference of each network, shape (networks,); 0 where the machine
        does not know."""
        counts = np.array([each.layer.counts for each in self.layers], np.float64)
        return np.asarray(np.array([sum(each.energy.values()) for each in self.layers]) @ counts)

    def cycles(self) -> NDArray[np.int64]:
        """Of the accelerator, one inference of each network, shape (networks,)."""
        counts = np.array([each.layer.counts for each in self.layers], np.int64)
        return np.asarray(np.array([each.cycles for each in self.layers], np.int64) @ counts)


class LayerRow(TypedDict):
    """A layer of a machine in `front.json`; `names` are the operators it stands for and `calls` how
    often an inference runs it, by network; `share` is of the accelerator's time, one inference of
    each network; `parts` are cycles of a call by what they go to."""

    workload: str
    epilogue: str
    names: dict[str, list[str]]
    calls: dict[str, int]
    cycles: int
    bound_cycles: int
    share: float
    bottleneck: str
    parts: dict[str, int]
    counters: dict[str, int]
    microjoules: dict[str, float]
    schedule: dict[str, int]
    verified: bool


class FrontRow(TypedDict):
    """A machine in `front.json`. `milliseconds` are cycles at the machine's clock and
    `cpu_milliseconds`, an estimate of what stays on the CPU. `microjoules` are an estimate of what
    the accelerator and its memory spend (`targets.vta.energy`)."""

    name: str
    spec: dict[str, Json]
    area: float
    cycles: dict[str, int]
    milliseconds: dict[str, float]
    cpu_milliseconds: dict[str, float]
    microjoules: dict[str, float]
    bottleneck: str
    shares: dict[str, float]
    layers: list[LayerRow]


def largest(parts: Mapping[str, float]) -> str:
    """Return the part that takes most; `UNKNOWN` without any."""
    return max(parts, key=lambda name: parts[name]) if parts else UNKNOWN


def front_row(problem: CodesignProblem, proven: ProvenDesign) -> FrontRow:
    """Return a machine of the front as `front.json` has it."""
    design, names = proven.judged.design, list(problem.networks)
    spec = specification_of(design.target) or {}
    whole = float(sum(each.layer.calls * each.cycles for each in proven.layers))
    return {
        "name": design.name,
        "spec": {key: value for key, value in spec.items() if value is not None},
        "area": design.area,
        "cycles": dict(zip(names, proven.cycles().tolist(), strict=True)),
        "milliseconds": _milliseconds(names, proven.judged.seconds.tolist()),
        "cpu_milliseconds": _milliseconds(names, list(design.cpu_seconds)),
        "microjoules": dict(zip(names, proven.microjoules().round(4).tolist(), strict=True)),
        "bottleneck": proven.bottleneck,
        "shares": {name: round(share, 6) for name, share in proven.parts().items()},
        "layers": [_layer_row(names, each, whole) for each in proven.layers],
    }


def _layer_row(networks: list[str], each: ProvenLayer, whole: float) -> LayerRow:
    layer = each.layer
    return {
        "workload": str(layer.workload),
        "epilogue": layer.workload.epilogue_text,
        "names": {
            name: [operator for network, operator in layer.names if network == name]
            for name, count in zip(networks, layer.counts, strict=True)
            if count
        },
        "calls": {name: n for name, n in zip(networks, layer.counts, strict=True) if n},
        "cycles": each.cycles,
        "bound_cycles": each.bound,
        "share": round(layer.calls * each.cycles / max(whole, 1.0), 6),
        "bottleneck": largest(each.parts),
        "parts": dict(each.parts),
        "counters": dict(each.counters),
        "microjoules": {name: round(spent, 6) for name, spent in each.energy.items()},
        "schedule": dict(each.knobs),
        "verified": each.verified,
    }


def _milliseconds(names: list[str], seconds: list[float]) -> dict[str, float]:
    return {name: 1e3 * each for name, each in zip(names, seconds, strict=True)}


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
    """Return the outcome of a run, with 0 as the seconds it took."""
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
        "run": output_folder.identity(options),
        "versions": _versions(hardware.base.fingerprint),
    }
    rows = [front_row(problem, each) for each in proven]
    names = {row["name"] for row in rows}
    beaten = [
        Beaten(each.design.name, each.design.area, 1e3 * each.latency)
        for each in judge_designs(evaluator, objective)
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
    output_folder.forget_specs(place, {row["name"] for row in outcome.front})
    # The front first: the next run removes no specification that no front names.
    files = {place / output_folder.FRONT: output_folder.pretty_json(cast(Json, outcome.front))}
    files |= {
        output_folder.specification(place, row["name"]): spec_file(row) for row in outcome.front
    }
    files[place / output_folder.TRIALS] = parquet(outcome.trials)
    files[place / output_folder.SUMMARY] = output_folder.pretty_json(cast(Json, outcome.summary))
    for path, data in files.items():
        write_atomically(path, data)


def spec_file(row: FrontRow) -> bytes:
    """Return a machine's specification as `--target` takes it. Its `source` says where it comes
    from and what its area means."""
    source = f"tilewright codesign; area {row['area']:.4f}, {AREA_MODEL}"
    return output_folder.pretty_json({**row["spec"], "source": source})


def trials_frame(problem: CodesignProblem, evaluator: BudgetedEvaluator) -> pd.DataFrame:
    """Return one row per measurement, in order: the machine with its hardware knobs and area, what
    was measured on it, and the best latency of all networks together so far, in seconds
    (infinite before there was one)."""
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
