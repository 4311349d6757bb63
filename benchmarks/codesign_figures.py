"""Computes figures of co-design runs, relative to the truth and to one of the methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.exact_codesign.store import Truth
from benchmarks.intervals import hierarchical
from tilewright.hardware_search.pareto import hypervolume

FINAL = 0.95
Run = Mapping[str, Any]


def summary(runs: Sequence[Run], truth: Truth, against: str) -> str:
    """Per network set a line an entry: shares of the truth's hypervolume, latency over the truth's,
    trials, compiles, seconds; then each entry beside `against`, paired by network set and seed."""
    lines = []
    sets = list(dict.fromkeys(tuple(run["networks"]) for run in runs))
    for names in sets:
        own = [run for run in runs if tuple(run["networks"]) == names]
        volumes, fastest = _known(own, truth, names)
        known = "truth" if set(names) <= set(truth.networks) else "best of these runs"
        lines.append(
            f"{'+'.join(names)}: {known}: hypervolume {volumes[0]:.4f} to {volumes[1]:.4f}, "
            f"latency {1e3 * fastest[1]:.3f} to {1e3 * fastest[0]:.3f} ms"
        )
        for entry in dict.fromkeys(run["entry"] for run in runs):
            mine = [run for run in runs if (run["entry"], tuple(run["networks"])) == (entry, names)]
            if mine:
                lines.append(_line(entry, mine, volumes, fastest))
    others = [each for each in dict.fromkeys(run["entry"] for run in runs) if each != against]
    pairs = {entry: paired(runs, entry, against) for entry in others}
    if any(pairs.values()):
        lines.append(f"beside {against}, geometric means over networks and seeds:")
        lines += [_beside(entry, found) for entry, found in pairs.items() if found]
    return "\n".join(lines)


def _known(
    runs: Sequence[Run], truth: Truth, names: tuple[str, ...]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Hypervolume and latency of the best that is known, and of what nothing beats; the best of
    these runs where there is no truth of these networks."""
    if not set(names) <= set(truth.networks):
        latencies, volumes = zip(*map(last, runs), strict=True)
        return (max(volumes), max(volumes)), (min(latencies), min(latencies))
    best, bound = (truth.points(each, names) for each in ("best_cycles", "bound_cycles"))
    reference = truth.reference(names)
    return (
        (hypervolume(best, reference), hypervolume(bound, reference)),
        (float(best[:, 1].min()), float(bound[:, 1].min())),
    )


def _line(
    entry: str, runs: Sequence[Run], volumes: tuple[float, float], fastest: tuple[float, float]
) -> str:
    volume, latency = (np.array([last(run)[k] for run in runs]) for k in (1, 0))
    return (
        f"  {entry:28} {len(runs)} seeds; hypervolume {_mean(volume / volumes[0])} of the best "
        f"known, {np.mean(volume) / volumes[1]:.1%} of the bound; latency "
        f"{np.median(latency) / fastest[0]:.3f} x the best known (bound "
        f"{np.median(latency) / fastest[1]:.3f} x); {FINAL:.0%} of the final hypervolume after "
        f"{np.mean([until(run) for run in runs]):.0f} of {np.mean([r['spent'] for r in runs]):.0f} "
        f"trials; {np.mean([run['compiled'] for run in runs]):.0f} compiles, "
        f"{np.mean([run['seconds'] for run in runs]):.1f} s (CPU "
        f"{np.mean([run['cpu_seconds'] for run in runs]):.1f} s)"
    )


def last(run: Run) -> tuple[float, float]:
    """Best latency in seconds, and hypervolume, at the end; infinite and 0 without a whole
    design."""
    return (run["steps"][-1][1], run["steps"][-1][2]) if run["steps"] else (np.inf, 0.0)


def spent(run: Run) -> tuple[float, float]:
    """All trials and CPU seconds of a run."""
    return run["spent"], run["cpu_seconds"]


def until(run: Run, share: float = FINAL) -> float:
    """Trials after which the hypervolume is that share of the run's last."""
    goal = share * last(run)[1]
    return next((step[0] for step in run["steps"] if step[2] >= goal), float(run["spent"]))


def reached(run: Run, latency: float) -> tuple[float, float]:
    """Trials and CPU seconds after which the best latency is that one; infinite if it never is."""
    step = next((step for step in run["steps"] if step[1] <= latency), None)
    return (np.inf, np.inf) if step is None else (step[0], step[3])


Pair = tuple[int, Run, Run]


def paired(runs: Sequence[Run], entry: str, against: str) -> list[Pair]:
    """Seed, run, and the other entry's run, of equal networks, seeds and trials."""
    keys = ("networks", "seed", "trials")
    others = {str([run[k] for k in keys]): run for run in runs if run["entry"] == against}
    found = [
        (run, others.get(str([run[k] for k in keys]))) for run in runs if run["entry"] == entry
    ]
    return [(run["seed"], run, other) for run, other in found if other is not None]


def _beside(entry: str, pairs: Sequence[Pair]) -> str:
    def ratios(of: Callable[[Run, Run], float]) -> str:
        sets = [tuple(a["networks"]) for _, a, _ in pairs]
        return interval(np.array([of(a, b) for _, a, b in pairs]), sets)

    def until_there(a: Run, b: Run, cost: int) -> float:
        return min(reached(a, last(b)[0])[cost], spent(a)[cost]) / reached(b, last(b)[0])[cost]

    there = sum(np.isfinite(reached(a, last(b)[0])[0]) for _, a, b in pairs)
    with np.errstate(divide="ignore", invalid="ignore"):  # where one has no front at all
        volumes = ratios(lambda a, b: float(np.divide(last(a)[1], last(b)[1])))
    return (
        f"  {entry:28} throughput {ratios(lambda a, b: last(b)[0] / last(a)[0])} x; hypervolume "
        f"{volumes} x; CPU seconds "
        f"{ratios(lambda a, b: a['cpu_seconds'] / b['cpu_seconds'])} x; compiles "
        f"{ratios(lambda a, b: a['compiled'] / b['compiled'])} x; as fast in {there} of "
        f"{len(pairs)}, after {ratios(lambda a, b: until_there(a, b, 0))} x the trials and "
        f"{ratios(lambda a, b: until_there(a, b, 1))} x the CPU seconds"
    )


def interval(ratios: NDArray[np.float64], sets: Sequence[tuple[str, ...]]) -> str:
    """Geometric mean of ratios (runs,) of these sets of networks, and its 95 % interval over sets
    and over seeds of each (`benchmarks.intervals`); of one set, over seeds alone."""
    with np.errstate(divide="ignore"):  # of a run that found nothing
        logs = np.log(ratios)
    if not np.isfinite(logs).all():
        return f"{np.exp(np.median(logs)):.3f} (median; some runs found nothing)"
    groups = [logs[[each == names for each in sets]] for names in dict.fromkeys(sets)]
    runs = min(map(len, groups))
    grid = np.array([group[:runs] for group in groups])
    found = hierarchical(lambda each: np.exp(each.mean(axis=(-2, -1))), grid)
    return f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})"


def _mean(values: NDArray[np.float64]) -> str:
    return str(hierarchical(lambda each: each.mean(axis=(-2, -1)), values[None]))
