"""Measures what noise does to a tuner, and what countermeasures gain, where the truth is known.

    .venv/bin/python -m benchmarks.noisy_target
    .venv/bin/python -m benchmarks.noisy_target --trees

A machine's latencies, simulated, are taken for the truth of one that is measured in seconds with
lognormal noise: most trials are quiet, some are disturbed. Five repeats a measurement, part of
whose noise is common to all five, as a clock's drift is. Regret is the true latency of the pick
above the optimum of the whole space. `told` is a target as it is. `untold` one that keeps its
repeats to itself. `believed` one that says that measuring repeats, as if nothing were known of
noise.

With `--trees`: boosted trees that are fitted to 64 such trials with weights by their noise, and
without, on all other configs of the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.layers import RESNET18
from tilewright.flows.tuning import tune_round
from tilewright.models import make_explorer
from tilewright.models.model_registry import LEARNERS
from tilewright.search import LocalRunner, Session, make_task
from tilewright.search.history import figure_variance
from tilewright.search.round_steps import trial_at
from tilewright.search.validation_records import TRIAL, ValidationMeasurement
from tilewright.targets import make_target
from tilewright.targets.base import Capabilities, Configs, Lowered, Measurements, Ragged, Space
from tilewright.targets.capabilities import Enumerates, Latency, capability
from tilewright.targets.workload import Workload
from tilewright.tuning.final_validation import choose_validated
from tilewright.tuning.results import Schedule

LAYERS = ("C2", "C4", "C8", "C10")
REPEATS, LEADERS = 5, 5
DISTURBED = 0.2  # share of the measurements
LEVELS = {"calm": (0.02, 0.1, 0.01), "busy": (0.1, 0.5, 0.05)}
"""Standard deviation of the log of a repeat: of a quiet trial, of a disturbed one, and common."""
ARMS = ("told", "untold", "believed")


class NoisyMachine:
    """A VTA that is measured in seconds, with noise."""

    def __init__(self, level: str, arm: str, seed: int) -> None:
        self.machine = make_target("vta-pynq", "template")
        self.level, self.arm = LEVELS[level], arm
        self.rng = np.random.default_rng(seed)
        self.name = f"noisy {self.machine.name}"
        self.fingerprint = self.machine.fingerprint
        self.capabilities: Capabilities = {}
        self.deterministic = arm == "believed"

    def hardware_features(self) -> dict[str, float]:
        return self.machine.hardware_features()

    def space(self, workload: Workload) -> Space:
        return self.machine.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        return self.machine.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        true = self.machine.measure(lowered)
        repeats = noisy(np.nan_to_num(true.seconds, nan=1.0), self.level, self.rng)
        seconds = np.where(true.valid, np.median(repeats, axis=1), np.nan)
        rows = Ragged.of(
            [row if ok else row[:0] for row, ok in zip(repeats, true.valid, strict=True)]
        )
        return replace(
            true, cycles=np.full(len(true), -1), seconds=seconds, counters={},
            repeats=rows if self.arm == "told" else None,
        )  # fmt: skip


def noisy(
    true: NDArray[np.float64], level: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Repeats, shape (configs, repeats), of true seconds (configs,)."""
    quiet, disturbed, common = level
    spread = np.where(rng.random(len(true)) < DISTURBED, disturbed, quiet)[:, None]
    shared = rng.normal(0.0, common, (len(true), 1))
    found = np.exp(shared + spread * rng.normal(size=(len(true), REPEATS)))
    return np.asarray(true[:, None] * found)


@dataclass(frozen=True)
class Picks:
    """Of one run: how far the fastest trial and the final choice truly are above the optimum, and
    what is said of each over what is true."""

    fastest: float
    chosen: float
    said: float
    reported: float


def picks(tuner: str, layer: str, level: str, arm: str, seed: int, trials: int) -> Picks:
    """One run, and both ways of ending it."""
    workload = RESNET18[layer][0]
    target, best = NoisyMachine(level, arm, seed), optimum(layer)
    run, task = LocalRunner(), make_task(target, workload, make_explorer(tuner), seed)
    session = Session.start(task)
    while len(session.history) < trials and (done := tune_round(run, task, session, 8)):
        session = done
    history = session.history

    def truth(config: Sequence[int]) -> float:
        lowered = target.lower(workload, np.array([config], np.int32))
        return float(target.machine.measure(lowered).seconds[0])

    def bench(
        block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        configs = np.array([each.config for each in contenders], np.int32)
        batches = [target.measure(target.lower(workload, configs)) for _ in range(turns)]
        return [
            ValidationMeasurement(
                block, turn, slot, TRIAL, each.config, trial_at(measured, slot), 0.0
            )
            for turn, measured in enumerate(batches)
            for slot, each in enumerate(contenders)
        ]

    leaders = [
        Schedule(TRIAL, "", tuple(history.configs[row].tolist()), {}, Latency(1.0))
        for row in history.fastest(LEADERS)
    ]
    final = choose_validated(leaders, None, bench).chosen
    assert final is not None, "a valid trial"
    first, last = truth(leaders[0].config), truth(final.config)
    said = float(history.latency[history.best])
    return Picks(first / best - 1, last / best - 1, said / first, final.latency.seconds / last)


_OPTIMA: dict[str, float] = {}


def optimum(layer: str) -> float:
    """The least true seconds of a layer's whole space."""
    if layer not in _OPTIMA:
        _OPTIMA[layer] = float(np.nanmin(whole(layer)[1].seconds))
    return _OPTIMA[layer]


def whole(layer: str) -> tuple[Lowered, Measurements]:
    """All configs of a layer's space, without noise."""
    target = capability(make_target("vta-pynq", "template"), Enumerates)
    assert target is not None, "a VTA enumerates"
    return target.enumerate(RESNET18[layer][0])


def trees(level: str, seeds: int) -> tuple[float, float]:
    """Root mean squared error in log2 latency of XGBoost on unseen configs: with weights by the
    noise of each of 64 trials, and without."""
    import xgboost as xgb

    errors: list[tuple[float, float]] = []
    for layer in LAYERS:
        lowered, true = whole(layer)
        rows, workload = np.flatnonzero(true.valid), RESNET18[layer][0]
        problem = make_task(
            make_target("vta-pynq", "template"), workload, make_explorer("random"), 0
        ).problem
        x = LEARNERS.tree_features(problem, lowered.configs[rows]).matrix
        y = np.log2(true.seconds[rows])
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            seen = rng.permutation(len(rows))[:64]
            unseen = np.setdiff1d(np.arange(len(rows)), seen)
            repeats = noisy(true.seconds[rows[seen]], LEVELS[level], rng)
            variance = figure_variance(Ragged.of(list(repeats)))
            assert variance is not None, "there are repeats"
            figures = np.log2(np.median(repeats, axis=1))
            pair = []
            for weight in (1.0 / (variance + np.median(variance)), None):
                data = xgb.DMatrix(x[seen], figures, weight=weight, nthread=1)
                base = float(figures.mean())
                fixed = {"max_depth": 6, "eta": 0.15, "nthread": 1, "base_score": base}
                if weight is not None:
                    data.set_weight(weight / weight.mean())
                booster = xgb.train(fixed, data, 120)
                off = booster.inplace_predict(x[unseen]) - y[unseen]
                pair.append(float(np.sqrt(np.mean(off**2))))
            errors.append((pair[0], pair[1]))
    weighted, plain = np.array(errors).mean(axis=0)
    return float(weighted), float(plain)


def main(
    tuners: Annotated[str, typer.Option(help="NAME,NAME,…")] = "default-blind,random",
    seeds: Annotated[int, typer.Option(help="Runs of each.")] = 10,
    trials: Annotated[int, typer.Option(help="Of a run.")] = 64,
    with_trees: Annotated[bool, typer.Option("--trees", help="Weights of trees instead.")] = False,
) -> None:
    """Tables of mean regrets, and of what is said over what is true."""
    console = Console()
    if with_trees:
        for level in LEVELS:
            weighted, plain = trees(level, seeds)
            console.print(f"{level}: weighted {weighted:.4f}, plain {plain:.4f} (log2 latency)")
        return
    table = Table("noise", "tuner", "target", "fastest trial", "said / true", "validated",
                  "reported / true")  # fmt: skip
    for level in LEVELS:
        for tuner in tuners.split(","):
            for arm in ARMS if tuner != "random" else ARMS[:1]:
                runs = [
                    picks(tuner, layer, level, arm, seed, trials)
                    for layer in LAYERS
                    for seed in range(seeds)
                ]
                means = np.array([list(vars(run).values()) for run in runs]).mean(axis=0)
                fastest, chosen, said, reported = means
                table.add_row(
                    level, tuner, arm, f"{fastest:.2%}", f"{said:.3f}", f"{chosen:.2%}",
                    f"{reported:.3f}",
                )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
