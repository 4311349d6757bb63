"""Tunes whole networks until they are as fast as a tuner without a model makes them.

This module is a part of `benchmarks.transfer.compare`. The goal is the network's latency after 64
trials per layer of the tuner `board`, which has a board but no model of it: no closed-form
estimates, and no compiled programs beyond its batches. There is one goal per network and target,
the median over the seeds of `board`. Every other tuner runs until the network is as fast as the
goal. Its trials are counted up to the end of the round. A layer without a valid trial counts with
the latency of the baseline.

`scheduled` allocates rounds by expected gain; otherwise, all layers get equally many. The warm
start is compared with `blind`, which may also compile beyond its batches, and with `default`, which
also has estimates. Controls show the cause of a saving: `formula` has the hand-written time formula
instead of a model, `shuffled` has a model that was trained on shuffled latencies, and `cold, equal
compiles` compiles as much as a warm start does.

Seconds are counted from before the model is loaded, as in a loop within one process in which all
modules are loaded. `processor_seconds` is the processor time of the process, which does not depend
on other load of the machine. The simulator measures a program in less than a millisecond, but a
board takes longer. The summary therefore also says what the seconds would be with slower
measurements.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.intervals import hierarchical
from benchmarks.results import KeptRows
from benchmarks.transfer.controls import controls
from tilewright.core.errors import TilewrightError
from tilewright.evaluation.datasets.folder import read_about
from tilewright.flows.tuning import learn, propose_batch
from tilewright.models import make_explorer
from tilewright.models.transfer.model import prior_from
from tilewright.models.transfer.registry import load_model
from tilewright.search import LocalRunner, Session
from tilewright.search.expected_gain import best_latency
from tilewright.search.problem import Problem, TransferredPrior
from tilewright.search.round_steps import measure_batch
from tilewright.search.task import GivenTask, problem_of
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload
from tilewright.tuning.network import Subgraph, extract_subgraphs, import_model
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.task_scheduler import SharingRules, TaskState, next_round
from tilewright.tuning.tuning_task import tuning_task_of
from tilewright.tuning.verification import measure_baseline

TARGETS = ("vta-de10", "evta-zcu102", "large")
NETWORKS = ("resnet50", "mobilenet_v3", "inception_v3")
TRIALS = 64
WARM_BATCH = 3
MEASURING = (0.002, 0.01, 0.1, 1.0)
"""Seconds per measurement on the assumed boards of the summary."""


@dataclass(frozen=True)
class Tuner:
    """A tuner configuration of this benchmark.

    It has the tuner's options, the trials per round, whether the tuner starts with the transfer
    model (`warm`), and whether rounds are allocated by expected gain (`scheduled`).
    """

    name: str
    explorer: str
    options: tuple[tuple[str, float], ...] = ()
    batch: int = 8
    warm: bool = False
    scheduled: bool = False
    control: str = ""
    """Name of the control model (`benchmarks.transfer.controls`) that replaces the trained
    model."""


_ALONE = (("alpha", 0.0), ("first", 1.0), ("warm_alpha", 0.0))  # no compiles beyond a batch
_AS_WARM = (("alpha", 23.0), ("first", 96.0))  # programs beyond a trial, as a warm start's
BOARD = Tuner("board", "default-blind", _ALONE)
TUNERS = (
    BOARD,
    Tuner("board, scheduled", "default-blind", _ALONE, scheduled=True),
    Tuner("blind", "default-blind"),
    Tuner("blind, scheduled", "default-blind", batch=WARM_BATCH, scheduled=True),
    Tuner("default", "default"),
    Tuner("default, scheduled", "default", batch=WARM_BATCH, scheduled=True),
    Tuner("warm", "default-blind", batch=WARM_BATCH, warm=True),
    Tuner("warm, scheduled", "default-blind", batch=WARM_BATCH, warm=True, scheduled=True),
    Tuner("warm, scheduled by 2", "default-blind", batch=2, warm=True, scheduled=True),
    Tuner("warm, no compiles", "default-blind", _ALONE, batch=WARM_BATCH, warm=True),
    Tuner("formula, scheduled by 2", "default-blind", (), 2, True, True, "formula"),
    Tuner("shuffled, scheduled by 2", "default-blind", (), 2, True, True, "shuffled"),
    Tuner("cold, equal compiles", "default-blind", _AS_WARM, batch=2, scheduled=True),
    Tuner("warm default, scheduled", "default", batch=WARM_BATCH, warm=True, scheduled=True),
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """One run: a network is tuned once, until its latency reaches `goal`."""

    target: str
    network: str
    seed: int
    tuner: Tuner
    model: str
    subgraphs: tuple[dict[str, Any], ...]
    goal: float = 0.0

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Identity of the run: target, network, seed and name of the tuner."""
        return self.target, self.network, self.seed, self.tuner.name


def _refuse_seen_hardware(dataset: Path, name: str) -> None:
    seen = {device.fingerprint for device in read_about(dataset).hardware}
    if make_target(name).fingerprint in seen:
        raise TilewrightError(f"{name} is part of {dataset}, so tuning for it would show nothing")


def measure(options: argparse.Namespace, rows: KeptRows) -> None:
    """Make the runs of every tuner, first those of `board`, which define the goals."""
    targets = (
        options.targets.split(",") if options.targets else TARGETS[: 1 if options.quick else 3]
    )
    networks = (
        options.networks.split(",") if options.networks else NETWORKS[: 1 if options.quick else 3]
    )
    names = options.tuners.split(";") if options.tuners else [tuner.name for tuner in TUNERS]
    for name in targets:
        _refuse_seen_hardware(options.dataset, name)
    first, second = [], []
    models = {"": options.model}
    if any(tuner.control for tuner in TUNERS if tuner.name in names):
        models |= controls(options)
    for seed in range(options.seeds):
        for target in targets:
            for network in networks:
                layers = layers_of(target, network)
                unit = partial(Unit, target, network, seed)
                first.append(unit(BOARD, model="", subgraphs=layers))
                second += [
                    unit(tuner, model=str(models[tuner.control]), subgraphs=layers)
                    for tuner in TUNERS
                    if tuner.name in names and tuner is not BOARD
                ]
    known = {_key(row): row for row in rows.rows["tuning"]}
    for row in _run_units([item for item in first if item.key not in known], options.jobs):
        rows.keep("tuning", row)
    known = {_key(row): row for row in rows.rows["tuning"]}
    goals = _goals(rows.rows["tuning"])
    left = [
        replace(item, goal=goals[item.target, item.network])
        for item in second
        if item.key not in known
    ]
    for row in _run_units(left, options.jobs):
        rows.keep("tuning", row)


def _goals(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the goal of each target and network in cycles.

    It is the median over the seeds of `board`.
    """
    boards: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["tuner"] == BOARD.name:
            boards.setdefault((row["target"], row["network"]), []).append(row["cycles"])
    return {pair: float(np.median(cycles)) for pair, cycles in boards.items()}


def _key(row: Mapping[str, Any]) -> tuple[str, str, int, str]:
    return row["target"], row["network"], row["seed"], row["tuner"]


def layers_of(target: str, network: str) -> tuple[dict[str, Any], ...]:
    """Return the layers of a network on a target, with their counts, as JSON."""
    here = make_target(target)
    options = TuningOptions(model=network, target=target)
    subgraphs = extract_subgraphs(
        import_model(network, {}), here, options.epilogue_mode, options.max_waste, {}
    )
    return tuple(subgraph.to_json() for subgraph in subgraphs.subgraphs)


def _run_units(units: Sequence[Unit], jobs: int) -> Iterator[dict[str, Any]]:
    """Make each run in a separate process, so that no run benefits from what another has loaded."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        yield from pool.map(perform, units)


def perform(unit: Unit) -> dict[str, Any]:
    """Tune a network until it is as fast as the goal or all trials are spent. Return a row."""
    run, target = LocalRunner(), make_target(unit.target)
    layers = [Subgraph.from_json(subgraph) for subgraph in unit.subgraphs]
    begin, computed = time.perf_counter(), time.process_time()
    model = load_model(Path(unit.model)) if unit.tuner.warm else None
    asked = (lambda problem: prior_from(model, problem)) if model is not None else None
    tasks = [_task(unit, target, layer.workload, asked) for layer in layers]
    sessions = [Session.start(task) for task in tasks]
    rules = SharingRules(TRIALS, unit.tuner.batch, 0.0)
    at: dict[str, float | None] = {}
    compiled = trials = 0
    paused = time.perf_counter(), time.process_time()
    # what a network without a valid trial of a layer runs there
    spare = [_baseline(unit, layer.workload) for layer in layers]
    total = np.inf
    begin += time.perf_counter() - paused[0]
    computed += time.process_time() - paused[1]
    for place, n in (_schedule_rounds if unit.tuner.scheduled else _in_turn)(
        sessions, layers, rules
    ):
        task, before = tasks[place], learn(run, tasks[place], sessions[place])
        batch = propose_batch(run, task, before, n)
        if batch is None:
            continue
        measured = run(measure_batch, task, batch, {})
        sessions[place] = before.extend(replace(batch, measured=measured))
        compiled += batch.unmeasured_count
        trials += len(batch.rows)
        total = sum(
            layer.count * (best_latency(session.history) or other)
            for layer, session, other in zip(layers, sessions, spare, strict=True)
        )
        for mean in (1, 2, 4, 8, 16, 32):
            if trials >= mean * len(layers) and str(mean) not in at:
                at[str(mean)] = total if np.isfinite(total) else None
        if total <= unit.goal:
            break
    return {
        **dict(zip(("target", "network", "seed", "tuner"), unit.key, strict=True)),
        "workloads": len(layers), "trials": trials, "cycles": float(total), "goal": unit.goal,
        "seconds": time.perf_counter() - begin,
        "processor_seconds": time.process_time() - computed, "compiled": compiled, "cycles_at": at,
        "options": asdict(unit.tuner), "model": unit.model if unit.tuner.warm else "",
    }  # fmt: skip


def _baseline(unit: Unit, workload: Workload) -> float:
    study = tuning_task_of(TuningOptions(model=unit.network, target=unit.target), workload)
    baseline = measure_baseline(study)
    known = [baseline.fallback, None if baseline.baseline is None else baseline.baseline.latency]
    return min((float(item.cycles) for item in known if item is not None), default=np.inf)


def _task(
    unit: Unit, target: Any, workload: Workload, asked: Callable[[Problem], TransferredPrior] | None
) -> GivenTask:
    problem = problem_of(target, workload, unit.seed)
    if asked is not None:
        problem = replace(problem, transferred=asked(problem))
    explorer = make_explorer(unit.tuner.explorer, dict(unit.tuner.options))
    return GivenTask(target, explorer, problem)


def _in_turn(
    sessions: Sequence[Session], layers: Sequence[Subgraph], rules: SharingRules
) -> Iterator[tuple[int, int]]:
    """Yield rounds of all layers in turn: the index of the layer and the number of trials."""
    for done in range(0, rules.trials, rules.batch):
        for place in range(len(sessions)):
            yield place, min(rules.batch, rules.trials - done)


def _schedule_rounds(
    sessions: Sequence[Session], layers: Sequence[Subgraph], rules: SharingRules
) -> Iterator[tuple[int, int]]:
    """Yield rounds as `tilewright tune --stop-gain 0` allocates them."""
    exhausted: set[int] = set()
    while True:
        states = [
            TaskState(layer.count, layer.macs, session.history, place not in exhausted)
            for place, (layer, session) in enumerate(zip(layers, sessions, strict=True))
        ]
        result = next_round(states, rules)
        if result is None:
            return
        before = len(sessions[result[0]].history)
        yield result
        if len(sessions[result[0]].history) == before:
            exhausted.add(result[0])


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary with one line per tuner.

    A line has the tuner's trials and seconds as fractions of those of `board`, and the number of
    runs that reached the goal. The fractions are means over runs, with 95 % intervals that resample
    pairs of target and network, and runs. Each pair has one goal, the median over the runs of
    `board`.
    """
    boards = {_key(row)[:3]: row for row in rows if row["tuner"] == BOARD.name}
    goals, lines = _goals(rows), []
    for name in dict.fromkeys(row["tuner"] for row in rows):
        pairs = [(row, boards[_key(row)[:3]]) for row in rows if row["tuner"] == name]
        if name == BOARD.name or not pairs:
            continue
        cells = [(row["target"], row["network"]) for row, _ in pairs]
        trials = np.array([row["trials"] / board["trials"] for row, board in pairs])
        seconds, computed = _ratios(pairs, "seconds"), _ratios(pairs, "processor_seconds")
        came = sum(
            row["cycles"] <= goals[cell] for (row, _), cell in zip(pairs, cells, strict=True)
        )
        lines.append(
            f"{name:22} {_mean(trials, cells)} of the trials, {_mean(seconds, cells)} of the "
            f"seconds, {_mean(computed, cells)} of the processor's; {came} of {len(pairs)} came "
            f"there; intervals over {len(set(cells))} pairs and their runs"
        )
        lines.append(
            "    on boards where a measurement takes "
            + ", ".join(f"{t:g} s: {_mean(_on_board(pairs, t), cells)}" for t in MEASURING)
            + " of the seconds"
        )
        for cell in dict.fromkeys(cells):
            some = np.array([item == cell for item in cells])
            own = [cell] * int(some.sum())
            lines.append(
                f"    {cell[0]:12} {cell[1]:14} {_mean(trials[some], own)}, "
                f"{_mean(seconds[some], own)} seconds, {_mean(computed[some], own)} the processor's"
            )
    return "\n".join(lines)


def _on_board(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], seconds: float
) -> NDArray[np.float64]:
    """Return the ratio of seconds per pair if each trial took `seconds` longer, shape (pairs,)."""
    seconds_of_pair = np.array(
        [[row["processor_seconds"] + seconds * row["trials"] for row in pair] for pair in pairs]
    )
    return np.asarray(seconds_of_pair[:, 0] / seconds_of_pair[:, 1])


def _ratios(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str
) -> NDArray[np.float64]:
    """Return a figure of each run relative to that of `board`, shape (pairs,).

    The ratio is NaN if one of the figures is missing.
    """
    return np.array([row.get(name, np.nan) / board.get(name, np.nan) for row, board in pairs])


def _mean(values: NDArray[np.float64], cells: Sequence[tuple[str, str]]) -> str:
    """Return the mean over pairs of means over runs, with its interval.

    `values` has shape (n,), and `cells` the pair of target and network of each run.
    """
    groups = [values[[item == cell for item in cells]] for cell in dict.fromkeys(cells)]
    runs = min(map(len, groups))  # of a measurement that is not complete, as many of each pair
    if not np.isfinite(values).all():
        return "unknown"
    grid = np.array([group[:runs] for group in groups])
    return str(hierarchical(lambda item: item.mean(axis=(-2, -1)), grid))
