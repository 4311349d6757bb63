"""Results of a co-design run: machines on the front, summary, table of trials, and their files.

Every layer of a machine on the front was measured again (see `verification`). All files are written
at the end of the run, the summary last. `output_folder` lists the files.
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
"""Bottleneck of a machine that does not break down the time of its programs."""
AREA_MODEL = (
    "relative to the stock 16x16 VTA, by a model of the RTL's structure with textbook gate "
    "weights that was not fitted to a synthesis (docs/guides/codesign.md)"
)
_UNITS = {"seconds": 1e3, "joules": 1e6}  # reports show milliseconds and microjoules
CLOCKS = {
    "fixed": "all machines run at the base machine's clock",
    "tree": "the more levels the adder tree has, the slower the clock",
}


@dataclass(frozen=True)
class ProvenLayer:
    """The best schedule of a layer on a machine, which was lowered and measured again as a check.

    Attributes:
        layer: the layer.
        knobs: knob values of the schedule, by name.
        cycles: cycles per call.
        seconds: seconds per call.
        counters: hardware counters of one call.
        parts: cycles per call, by activity (`PARTS`); empty if the machine does not provide this
            breakdown.
        bound: lower bound of the cycles; -1 if it is unknown.
        verified: True if the program was executed and its output equals the reference bit for bit.
        energy: microjoules per call, by component; empty if the machine has no energy model.
    """

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
    """A machine on the Pareto front whose schedules were all lowered and measured again.

    Attributes:
        judged: the machine, its best schedules and their costs.
        layers: its layers with their schedules.
    """

    judged: JudgedFront
    layers: tuple[ProvenLayer, ...]

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.judged.design.name

    def parts(self) -> dict[str, float]:
        """Return each activity's share of the cycles of one inference of each network.

        Returns:
            The shares by activity (`PARTS`); empty if the machine does not break down its time.
        """
        if not all(layer.parts for layer in self.layers):
            return {}
        total = np.zeros(len(PARTS))
        for layer in self.layers:
            total += layer.layer.calls * np.array([layer.parts[name] for name in PARTS], float)
        shares = total / max(total.sum(), 1.0)
        return dict(zip(PARTS, shares.tolist(), strict=True))

    @property
    def bottleneck(self) -> str:
        """Activity, such as computing or loading, that takes the most cycles."""
        return largest(self.parts())

    def microjoules(self) -> NDArray[np.float64]:
        """Return the energy that the accelerator needs for one inference of each network.

        Returns:
            Microjoules, float array of shape (networks,); 0 if the machine has no energy model.
        """
        counts = np.array([layer.layer.counts for layer in self.layers], np.float64)
        return np.asarray(np.array([sum(layer.energy.values()) for layer in self.layers]) @ counts)

    def cycles(self) -> NDArray[np.int64]:
        """Return the cycles that the accelerator needs for one inference of each network.

        Returns:
            Cycles, int array of shape (networks,).
        """
        counts = np.array([layer.layer.counts for layer in self.layers], np.int64)
        return np.asarray(np.array([layer.cycles for layer in self.layers], np.int64) @ counts)


class LayerRow(TypedDict):
    """Entry of a layer of a machine in `front.json`.

    Attributes:
        workload: the workload as text.
        epilogue: fused post-operations as text.
        names: operators that run the workload, by network.
        calls: calls per inference, by network.
        cycles: cycles per call.
        bound_cycles: lower bound of the cycles; -1 if it is unknown.
        share: fraction of the accelerator's time for one inference of each network.
        bottleneck: activity that takes the most cycles.
        parts: cycles per call, by activity.
        counters: hardware counters of one call.
        microjoules: microjoules per call, by component.
        schedule: knob values of the schedule.
        verified: True if the output was compared with the reference bit for bit.
    """

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
    """Entry of a machine in `front.json`.

    Attributes:
        name: name of the machine.
        spec: specification of the machine.
        area: area relative to the stock machine.
        cycles: cycles of the accelerator per inference, by network.
        milliseconds: latency of an inference at the machine's clock, including operators on the
            CPU, by network.
        cpu_milliseconds: estimated time of the operators on the CPU, by network.
        microjoules: estimated energy of the accelerator and its memory (`targets.vta.energy`), by
            network.
        bottleneck: activity that takes the most cycles.
        shares: fraction of the cycles, by activity.
        layers: the layers.
    """

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
    """Return the name of the activity with the largest value; `UNKNOWN` if there is none.

    Args:
        parts: values by the name of the activity.
    """
    return max(parts, key=lambda name: parts[name]) if parts else UNKNOWN


def front_row(problem: CodesignProblem, proven: ProvenDesign) -> FrontRow:
    """Return the entry of a machine on the Pareto front in `front.json`.

    Args:
        problem: the co-design problem, which has the names of the networks.
        proven: the machine.

    Returns:
        The entry.
    """
    design, names = proven.judged.design, list(problem.networks)
    spec = specification_of(design.target) or {}
    whole = float(sum(layer.layer.calls * layer.cycles for layer in proven.layers))
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
        "layers": [_layer_row(names, layer, whole) for layer in proven.layers],
    }


def _layer_row(networks: list[str], proven_layer: ProvenLayer, whole: float) -> LayerRow:
    layer = proven_layer.layer
    return {
        "workload": str(layer.workload),
        "epilogue": layer.workload.epilogue_text,
        "names": {
            name: [operator for network, operator in layer.names if network == name]
            for name, count in zip(networks, layer.counts, strict=True)
            if count
        },
        "calls": {name: n for name, n in zip(networks, layer.counts, strict=True) if n},
        "cycles": proven_layer.cycles,
        "bound_cycles": proven_layer.bound,
        "share": round(layer.calls * proven_layer.cycles / max(whole, 1.0), 6),
        "bottleneck": largest(proven_layer.parts),
        "parts": dict(proven_layer.parts),
        "counters": dict(proven_layer.counters),
        "microjoules": {name: round(spent, 6) for name, spent in proven_layer.energy.items()},
        "schedule": dict(proven_layer.knobs),
        "verified": proven_layer.verified,
    }


def _milliseconds(names: list[str], seconds: list[float]) -> dict[str, float]:
    return {name: 1e3 * second for name, second in zip(names, seconds, strict=True)}


class Best(TypedDict):
    """The machine on the Pareto front with the lowest objective.

    Attributes:
        name: name of the machine.
        area: area relative to the stock machine.
        milliseconds: time of one inference of each network, summed over the networks.
    """

    name: str
    area: float
    milliseconds: float


class CodesignSummary(TypedDict):
    """Content of `summary.json`.

    Attributes:
        method: name of the search method.
        method_options: options of the method.
        seed: seed of the search.
        networks: names of the networks.
        target: name of the base machine.
        bounds: lowest and highest value of hardware knobs, by name of the knob.
        budget: maximum area, relative to the stock machine.
        area_model: description of the area model.
        clock: name of the clock rule.
        clock_rule: description of the clock rule.
        objective: the objective that is minimised besides the area.
        hardware: number of points in the hardware space (`points`), of machines within bounds and
            budget (`machines`), and of machines that were measured (`seen`).
        trials: maximum number of measurements.
        measurements: number of measurements.
        compiles: number of compilations.
        wall_seconds: duration of this command, without earlier runs that it resumed.
        front: number of machines on the front.
        hypervolume: hypervolume of area and the logarithm of the objective.
        reference: reference point of the hypervolume: the area, and the objective in milliseconds
            ("latency"), microjoules ("energy") or their product ("edp").
        best: the machine on the front with the lowest objective; None if the front is empty.
        verified: True if all outputs were compared with the reference bit for bit.
        run: name of the search in the trial store.
        versions: versions of the software.
        mlflow_run_id: ID of the MLflow run, if the run was tracked.
        prefect_flow_run_id: ID of the Prefect flow run, if the run was tracked.
    """

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
    """A completely measured machine that is not on the Pareto front, because another one beats it.

    Attributes:
        name: name of the machine.
        area: area relative to the stock machine.
        milliseconds: time of one inference of each network with the best measured schedules, summed
            over the networks.
    """

    name: str
    area: float
    milliseconds: float


@dataclass(frozen=True)
class CodesignOutcome:
    """Results of a co-design run.

    Attributes:
        summary: content of `summary.json`.
        front: machines on the front, by ascending area.
        beaten: the other machines whose layers were all measured.
        trials: table with one row per measurement.
    """

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
    """Collect the results of a co-design run.

    The duration in the summary is 0 until `steps.log_codesign` sets it.

    Args:
        options: options of the run.
        problem: the co-design problem.
        evaluator: the measurements of the search.
        proven: the verified machines on the Pareto front, by ascending area.

    Returns:
        The results.
    """
    objective = options.objective
    reference, hardware = reference_of(problem, objective), problem.hardware
    points = np.array(
        [(design.judged.design.area, design.judged.cost(objective)) for design in proven]
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
        "best": _best_machine(proven),
        "verified": all(layer.verified for design in proven for layer in design.layers),
        "run": output_folder.identity(options),
        "versions": _versions(hardware.base.fingerprint),
    }
    rows = [front_row(problem, design) for design in proven]
    names = {row["name"] for row in rows}
    beaten = [
        Beaten(design.design.name, design.design.area, 1e3 * design.latency)
        for design in judge_designs(evaluator, objective)
        if design.design.name not in names
    ]
    return CodesignOutcome(summary, rows, beaten, trials_frame(problem, evaluator))


def _best_machine(proven: Sequence[ProvenDesign]) -> Best | None:
    """Return the machine on the Pareto front with the lowest objective; None for an empty front.

    Args:
        proven: the machines on the front, by ascending area. The last one has the lowest objective.
    """
    if not proven:
        return None
    result = proven[-1].judged
    return {
        "name": result.design.name,
        "area": result.design.area,
        "milliseconds": 1e3 * result.latency,
    }


def write_outputs(options: CodesignOptions, outcome: CodesignOutcome) -> None:
    """Write all result files of a co-design run to its output directory.

    The specification files of machines that are no longer on the front are removed first. The
    summary is written last. A folder with a summary is therefore complete.

    Args:
        options: options of the run.
        outcome: the results.

    Raises:
        OSError: a file cannot be written or removed.
    """
    place = options.folder
    output_folder.forget_specs(place, {row["name"] for row in outcome.front})
    # `front.json` comes first, because the next run removes only the specifications that it lists.
    files = {place / output_folder.FRONT: output_folder.pretty_json(cast(Json, outcome.front))}
    files |= {
        output_folder.specification(place, row["name"]): spec_file(row) for row in outcome.front
    }
    files[place / output_folder.TRIALS] = parquet(outcome.trials)
    files[place / output_folder.SUMMARY] = output_folder.pretty_json(cast(Json, outcome.summary))
    for path, data in files.items():
        write_atomically(path, data)


def spec_file(row: FrontRow) -> bytes:
    """Return the content of a machine's specification file, in the format of `--target`.

    The field `source` describes the origin of the machine and the area model.

    Args:
        row: entry of the machine in `front.json`.
    """
    source = f"tilewright codesign; area {row['area']:.4f}, {AREA_MODEL}"
    return output_folder.pretty_json({**row["spec"], "source": source})


def trials_frame(problem: CodesignProblem, evaluator: BudgetedEvaluator) -> pd.DataFrame:
    """Return a table with one row per measurement, in the order of the search.

    The columns describe the machine with its hardware knobs and its area, the layer, the schedule
    and the result. The column `best_seconds` is the lowest latency of a machine so far, summed over
    the networks; it is infinite until all layers of a machine have a valid trial.

    Args:
        problem: the co-design problem.
        evaluator: the measurements of the search.

    Returns:
        The table.
    """
    rows, count = [], ProgressCount(problem)
    for point in evaluator.log:
        design, result = point.design, point.found
        space = design.target.space(point.workload)
        schedule = space.describe(space.unravel(np.array([point.flat]))[0].tolist())
        rows.append(
            {
                "trial": point.trial,
                "machine": design.name,
                **_knobs(problem, design),
                "area": design.area,
                "workload": str(point.workload),
                "epilogue": point.workload.epilogue_text,
                "layers": _names(design, point.workload),
                "schedule": json.dumps(schedule),
                "status": result.status,
                "reason": result.reason,
                "cycles": result.cycles,
                "seconds": result.seconds,
                "best_seconds": count.add(point).latency,
            }
        )
    return pd.DataFrame(rows)


def _knobs(problem: CodesignProblem, design: Design) -> dict[str, int]:
    """Return the values of a machine's hardware knobs, by name.

    Args:
        problem: the co-design problem, which has the hardware space.
        design: the machine.
    """
    hardware = problem.hardware
    return hardware.space.describe(hardware.points[design.row].tolist())


def _names(design: Design, workload: Workload) -> str:
    layer = next(layer for layer in design.layers if layer.workload == workload)
    return ", ".join(f"{network}: {name}" for network, name in layer.names)


def _versions(fingerprint: str) -> dict[str, str]:
    return {
        "tilewright": version("tilewright"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "base_machine": fingerprint,
    }
