"""Compares co-design methods with the exact optimum of hardware and schedules.

    python -m benchmarks.codesign.methods --quick                     # digits_cnn, two seeds
    python -m benchmarks.codesign.methods --out FILE                  # hours; resumes from FILE
    python -m benchmarks.codesign.methods --truth built/truth --methods "autotvm;ours"
    python -m benchmarks.codesign.methods --sets "vgg16;resnet34"     # beside each other only
    python -m benchmarks.codesign.methods --sets "vgg16" --unsolved   # the same, at once
    python -m benchmarks.codesign.methods --redraw FILE               # the summary only

All runs search the same machines with the same number of measurements. The machines are those of an
exactly solved problem ("truth", see `benchmarks.codesign.truth`). Without `--truth`, it is built
below `--folder` first. An entry of `--methods` is the name of a method, or a name with options:
`ours:estimates=false,correct=false`. The networks of the truth are searched one by one and all
together. The optimum of other networks (`--sets`) is not known; there, methods are compared with
the best result of all methods. Each run takes place in one process after the compiled kernels were
loaded, and shares no machines, designs or caches with other runs.

The file stores for each run: the best latency within the allowed area and the hypervolume whenever
one of them improved, with the number of measurements and the CPU seconds until then; the number of
compiles; the wall-clock and CPU seconds, including simulation; and the Pareto front.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.codesign.truth import GRID, QUICK, complete_truth
from benchmarks.codesign.truth_store import Truth, read_truth
from benchmarks.intervals import hierarchical
from benchmarks.results import row_arguments
from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent, EvaluatedPoint
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method, method_names
from tilewright.hardware_search.pareto import front_of, hypervolume
from tilewright.hardware_search.problem import (
    CodesignProblem,
    Design,
    least_seconds,
    read_networks,
)
from tilewright.networks.network import Network
from tilewright.targets.registry import make_target

_NESTED = ("networks", "steps", "front")
"""Columns with lists, which the Parquet file stores as JSON."""


def main() -> None:
    """Make the runs that are missing in the file, and print the summary.

    The file is written after each run.
    """
    parser = row_arguments(__doc__, "built/codesign.json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("built/codesign"))
    parser.add_argument(
        "--truth", type=Path, help="folder of the truth; built below --folder by default"
    )
    parser.add_argument(
        "--unsolved",
        action="store_true",
        help="use only the machines of the truth, without their solutions; needs --sets",
    )
    parser.add_argument("--methods", default="", help="entries to compare, separated by semicolons")
    parser.add_argument("--sets", default="", help="sets of networks, such as a+b;c")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument(
        "--against", default="autotvm", help="the entry that the others are compared with"
    )
    given = parser.parse_args()
    if given.unsolved and not given.sets:
        parser.error(
            "--unsolved does not know the networks; name some with --sets, for example "
            "resnet18+alexnet"
        )
    given.seeds = given.seeds or (2 if given.quick else 10)
    given.trials = given.trials or (200 if given.quick else 1000)
    truth = _truth(given)
    entries = given.methods.split(";") if given.methods else method_names()
    for entry in entries:
        make_method(*parse_entry(entry))  # a wrong one is refused before anything runs
    rows = read_runs(given.redraw or given.out)
    if given.redraw is None:
        for row in _make_missing_runs(given, truth, entries, rows):
            rows.append(row)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            _write_runs(given.out, rows)
    print(summary(rows, truth, given.against))


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Read the runs of a JSON file or of a Parquet file, which is ten times smaller."""
    if not path.exists():
        return []
    if path.suffix != ".parquet":
        return list(json.loads(path.read_text())["runs"])
    rows = pd.read_parquet(path).to_dict("records")
    return [
        {str(name): json.loads(item) if name in _NESTED else item for name, item in row.items()}
        for row in rows
    ]


def _write_runs(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix != ".parquet":
        write_atomically(path, (json.dumps({"runs": rows}) + "\n").encode())
        return
    flat = [row | {name: json.dumps(row[name]) for name in _NESTED} for row in rows]
    pd.DataFrame(flat).to_parquet(path, index=False)


def parse_entry(entry: str) -> tuple[str, dict[str, object]]:
    """Split an entry `name:option=value,…` into the name and the options.

    A value is parsed as JSON if possible; otherwise it is text.
    """
    name, _, rest = entry.partition(":")
    options: dict[str, object] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return name, options


def _truth(given: argparse.Namespace) -> Truth:
    if given.truth is not None:
        return read_truth(given.truth)
    name, options = ("truth-quick", QUICK) if given.quick else ("truth", GRID)
    if given.unsolved:
        return Truth(options, pd.DataFrame())
    return complete_truth(given.folder / name, options)


def _make_missing_runs(
    given: argparse.Namespace, truth: Truth, entries: Sequence[str], rows: Any
) -> Any:
    """Make the runs that are not among the rows, seed by seed, and yield each row.

    All methods run with a seed before the next seed begins, so that a benchmark that is stopped
    early has results of every method.
    """
    sets = [tuple(part.split("+")) for part in filter(None, given.sets.split(";"))]
    if not sets:
        sets = [truth.networks]
        if len(truth.networks) > 1 and not given.quick:
            sets += [(name,) for name in truth.networks]
    loaded = read_networks(tuple(dict.fromkeys(name for names in sets for name in names)))
    known = {(r["entry"], tuple(r["networks"]), r["seed"], r["trials"]) for r in rows}
    warm = False
    for seed in range(given.seeds):
        for names in sets:
            for entry in entries:
                if (entry, names, seed, given.trials) in known:
                    continue
                if not warm:  # kernels are loaded once
                    _run(truth, loaded, names, "random", 0, 32)
                    warm = True
                row = _run(truth, loaded, names, entry, seed, given.trials)
                print(
                    f"{entry:24} {'+'.join(names):20} seed {seed}: {row['spent']} trials, "
                    f"{row['compiled']} compiles, {row['seconds']:.1f} s, best "
                    f"{1e3 * (row['steps'] or [[0, np.nan]])[-1][1]:.3f} ms",
                    flush=True,
                )
                yield row


def _run(
    truth: Truth, loaded: dict[str, Network], names: tuple[str, ...], entry: str, seed: int,
    trials: int,
) -> dict[str, Any]:  # fmt: skip
    problem = _problem(truth, {name: loaded[name] for name in names})
    look = Lookout(_reference(truth, problem, names))
    evaluator = BudgetedEvaluator(trials, listen=look)
    method, options = parse_entry(entry)
    wall, cpu, failed = time.perf_counter(), time.process_time(), ""
    try:
        make_method(method, options).search(problem, evaluator, seed)
    except BudgetSpent:
        pass
    except TilewrightError as error:  # e.g. a method that gives up; what it has found counts
        failed = str(error)
    return {
        "entry": entry, "networks": list(names), "seed": seed, "trials": trials,
        "spent": evaluator.spent, "compiled": evaluator.compiled,
        "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu,
        "machines": len(evaluator.designs()), "steps": look.steps,
        "front": [list(point.point) for point in front_of(evaluator)], "failed": failed,
    }  # fmt: skip


def _reference(
    truth: Truth, problem: CodesignProblem, names: tuple[str, ...]
) -> tuple[float, float]:
    """Return the reference point of hypervolumes: an area and a latency in seconds.

    If the networks are not part of the truth, the latency is the lower bound on the smallest
    machine.
    """
    if set(names) <= set(truth.networks):
        return truth.reference(names)
    machines = map(problem.design, range(len(problem.hardware.areas)))
    return truth.options.area, next(filter(np.isfinite, map(least_seconds, machines)))


def _problem(truth: Truth, networks: dict[str, Network]) -> CodesignProblem:
    """Return the co-design problem of the truth for some networks."""
    options = truth.options
    bounds = {name: (low, high) for name, low, high in options.bounds}
    hardware = HardwareSpace(make_target(options.base), options.area, bounds, options.clock)
    problem = CodesignProblem(networks, hardware)
    problem.check()
    return problem


class Lookout:
    """Listener that records the progress of a search in `steps`.

    A step holds the number of trials, the best latency, the hypervolume, and the CPU seconds since
    the listener was created. A step is added whenever the latency or the hypervolume improves.
    """

    def __init__(self, reference: tuple[float, float]) -> None:
        self.reference, self.steps = reference, list[list[float]]()
        self._begin = time.process_time()
        self._layers: dict[int, dict[str, float]] = {}
        self._points: dict[int, tuple[float, float]] = {}

    def __call__(self, measured: EvaluatedPoint) -> None:
        """Record a step if the measured point improves the best latency or the hypervolume."""
        if measured.found.status != "valid":
            return
        design, seconds = measured.design, measured.found.seconds
        layers = self._layers.setdefault(design.row, {})
        if seconds >= layers.get(measured.workload.id, np.inf):
            return
        layers[measured.workload.id] = seconds
        if len(layers) == len(design.layers):
            self._points[design.row] = design.area, self._latency(design, layers)
            self._note(measured.trial)

    @staticmethod
    def _latency(design: Design, layers: dict[str, float]) -> float:
        layer_seconds = np.array([layers[layer.workload.id] for layer in design.layers])
        return float(design.seconds(layer_seconds).sum())

    def _note(self, trial: int) -> None:
        points = np.array([*self._points.values()])
        point = [float(points[:, 1].min()), hypervolume(points, self.reference)]
        if not self.steps or self.steps[-1][1:3] != point:
            self.steps.append([float(trial), *point, time.process_time() - self._begin])


FINAL = 0.95
Run = Mapping[str, Any]


def summary(runs: Sequence[Run], truth: Truth, against: str) -> str:
    """Describe the runs of each set of networks, with one line per entry.

    A line has the hypervolume as a fraction of the truth's, the latency relative to the truth, and
    the trials, compiles and seconds. Each entry is then compared with the entry `against`, paired
    by set of networks and seed.
    """
    lines = []
    sets = list(dict.fromkeys(tuple(run["networks"]) for run in runs))
    for names in sets:
        matching = [run for run in runs if tuple(run["networks"]) == names]
        volumes, fastest = _known_best(matching, truth, names)
        known = "truth" if set(names) <= set(truth.networks) else "best of these runs"
        lines.append(
            f"{'+'.join(names)}: {known}: hypervolume {volumes[0]:.4f} to {volumes[1]:.4f}, "
            f"latency {1e3 * fastest[1]:.3f} to {1e3 * fastest[0]:.3f} ms"
        )
        for entry in dict.fromkeys(run["entry"] for run in runs):
            mine = [run for run in runs if (run["entry"], tuple(run["networks"])) == (entry, names)]
            if mine:
                lines.append(_line(entry, mine, volumes, fastest))
    others = [item for item in dict.fromkeys(run["entry"] for run in runs) if item != against]
    pairs = {entry: pair_runs(runs, entry, against) for entry in others}
    if any(pairs.values()):
        lines.append(f"relative to {against}, geometric means over networks and seeds:")
        lines += [_compare_entry(entry, pair) for entry, pair in pairs.items() if pair]
    return "\n".join(lines)


def _known_best(
    runs: Sequence[Run], truth: Truth, names: tuple[str, ...]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the hypervolume and latency of the best known designs, and the bounds of both.

    If the networks are not part of the truth, all of these are the best results among these runs.
    """
    if not set(names) <= set(truth.networks):
        latencies, volumes = zip(*map(final_metrics, runs), strict=True)
        return (max(volumes), max(volumes)), (min(latencies), min(latencies))
    best, bound = (truth.points(item, names) for item in ("best_cycles", "bound_cycles"))
    reference = truth.reference(names)
    return (
        (hypervolume(best, reference), hypervolume(bound, reference)),
        (float(best[:, 1].min()), float(bound[:, 1].min())),
    )


def _line(
    entry: str, runs: Sequence[Run], volumes: tuple[float, float], fastest: tuple[float, float]
) -> str:
    volume, latency = (np.array([final_metrics(run)[k] for run in runs]) for k in (1, 0))
    return (
        f"  {entry:28} {len(runs)} seeds; hypervolume {_mean(volume / volumes[0])} of the best "
        f"known, {np.mean(volume) / volumes[1]:.1%} of the bound; latency "
        f"{np.median(latency) / fastest[0]:.3f} x the best known (bound "
        f"{np.median(latency) / fastest[1]:.3f} x); {FINAL:.0%} of the final hypervolume after "
        f"{np.mean([trials_until(run) for run in runs]):.0f} of "
        f"{np.mean([r['spent'] for r in runs]):.0f} "
        f"trials; {np.mean([run['compiled'] for run in runs]):.0f} compiles, "
        f"{np.mean([run['seconds'] for run in runs]):.1f} s (CPU "
        f"{np.mean([run['cpu_seconds'] for run in runs]):.1f} s)"
    )


def final_metrics(run: Run) -> tuple[float, float]:
    """Return the final best latency of a run in seconds, and its final hypervolume.

    If the run found no complete design, the latency is infinite and the hypervolume is 0.
    """
    return (run["steps"][-1][1], run["steps"][-1][2]) if run["steps"] else (np.inf, 0.0)


def spent(run: Run) -> tuple[float, float]:
    """Return the total trials and CPU seconds of a run."""
    return run["spent"], run["cpu_seconds"]


def trials_until(run: Run, share: float = FINAL) -> float:
    """Return the trials after which the hypervolume is the fraction `share` of the final one."""
    goal = share * final_metrics(run)[1]
    return next((step[0] for step in run["steps"] if step[2] >= goal), float(run["spent"]))


def reached(run: Run, latency: float) -> tuple[float, float]:
    """Return the trials and CPU seconds until the best latency is at most `latency`.

    Both are infinite if the latency is never reached.
    """
    step = next((step for step in run["steps"] if step[1] <= latency), None)
    return (np.inf, np.inf) if step is None else (step[0], step[3])


Pair = tuple[int, Run, Run]


def pair_runs(runs: Sequence[Run], entry: str, against: str) -> list[Pair]:
    """Pair the runs of two entries with equal networks, seed and number of trials.

    Returns:
        The seed, the run of `entry` and the run of `against`, for each pair.
    """
    keys = ("networks", "seed", "trials")
    others = {str([run[k] for k in keys]): run for run in runs if run["entry"] == against}
    results = [
        (run, others.get(str([run[k] for k in keys]))) for run in runs if run["entry"] == entry
    ]
    return [(run["seed"], run, other) for run, other in results if other is not None]


def _compare_entry(entry: str, pairs: Sequence[Pair]) -> str:
    def ratios(of: Callable[[Run, Run], float]) -> str:
        sets = [tuple(a["networks"]) for _, a, _ in pairs]
        return interval(np.array([of(a, b) for _, a, b in pairs]), sets)

    def until_there(a: Run, b: Run, cost: int) -> float:
        return (
            min(reached(a, final_metrics(b)[0])[cost], spent(a)[cost])
            / reached(b, final_metrics(b)[0])[cost]
        )

    there = sum(np.isfinite(reached(a, final_metrics(b)[0])[0]) for _, a, b in pairs)
    with np.errstate(divide="ignore", invalid="ignore"):  # where one has no front at all
        volumes = ratios(lambda a, b: float(np.divide(final_metrics(a)[1], final_metrics(b)[1])))
    return (
        f"  {entry:28} throughput "
        f"{ratios(lambda a, b: final_metrics(b)[0] / final_metrics(a)[0])} x; hypervolume "
        f"{volumes} x; CPU seconds "
        f"{ratios(lambda a, b: a['cpu_seconds'] / b['cpu_seconds'])} x; compiles "
        f"{ratios(lambda a, b: a['compiled'] / b['compiled'])} x; as fast in {there} of "
        f"{len(pairs)}, after {ratios(lambda a, b: until_there(a, b, 0))} x the trials and "
        f"{ratios(lambda a, b: until_there(a, b, 1))} x the CPU seconds"
    )


def interval(ratios: NDArray[np.float64], sets: Sequence[tuple[str, ...]]) -> str:
    """Return the geometric mean of ratios, shape (runs,), with its 95 % interval, as text.

    The interval resamples sets of networks and the seeds within each set (`benchmarks.intervals`).
    With a single set, it resamples seeds only.
    """
    with np.errstate(divide="ignore"):  # of a run that found nothing
        logs = np.log(ratios)
    if not np.isfinite(logs).all():
        return f"{np.exp(np.median(logs)):.3f} (median, because some runs found nothing)"
    groups = [logs[[set_ == names for set_ in sets]] for names in dict.fromkeys(sets)]
    runs = min(map(len, groups))
    grid = np.array([group[:runs] for group in groups])
    result = hierarchical(lambda item: np.exp(item.mean(axis=(-2, -1))), grid)
    return result.text(3, "-")


def _mean(values: NDArray[np.float64]) -> str:
    return str(hierarchical(lambda item: item.mean(axis=(-2, -1)), values[None]))


if __name__ == "__main__":
    main()
