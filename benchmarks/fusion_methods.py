"""Compares methods that ask the model: the learned search by each, with several seeds.

    python -m benchmarks.fusion_methods --folder built/fusion --networks inception_v3 --seeds 5

Where everything fused is best all of them have it at once, so a network is worth looking at where
it is not. Models learned from other networks, as in `benchmarks.fusion`, whose examples and
schedules this reuses. A line a method: by how much it ends above the best that any found, and
labelled graphs that were simulated, on average and at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fusion import ASKING
from benchmarks.fusion_models import Trained
from benchmarks.fusion_pairs import NETWORKS, TARGETS, Counted, pair
from benchmarks.fusion_search import METHODS
from benchmarks.fusion_training import NETWORKS as TRAINING
from benchmarks.fusion_training import TRIALS, made
from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.learned.search import SearchPlan, learned_search


def main() -> None:
    """Print the comparison of each pair."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("built/fusion"))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for target in given.targets.split(","):
        examples = made(given.folder, TRAINING, [target], given.trials)
        for network in given.networks.split(","):
            models = Trained([each for (name, _), each in examples.items() if name != network])
            backing = pair(network, target, given.trials, given.folder)
            rows = {name: compared(backing, models, name, given.seeds) for name in ASKING}
            print(f"{network} on {target}\n{_shown(rows)}", flush=True)


def compared(backing: Evaluator, models: Trained, method: str, seeds: int) -> list[tuple[int, int]]:
    """Cycles that the learned search found by a method, and labelled graphs that it simulated, a
    pair a seed."""
    problem = backing.problem
    starts = [problem.none, problem.all, problem.greedy]
    found = []
    for seed in range(seeds):
        counted = Counted(backing)
        rng = np.random.default_rng([seed, 4])
        plan = SearchPlan(search=METHODS[method])
        labels = learned_search(problem, counted, *models.of("trees"), starts, rng, plan)
        found.append((backing(labels).cycles, counted.count))
    return found


def _shown(rows: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    best = min(cycles for each in rows.values() for cycles, _ in each)
    lines = []
    for name, each in rows.items():
        above = [cycles / best - 1 for cycles, _ in each]
        counts = [count for _, count in each]
        lines.append(
            f"    {name:12} {np.mean(above):+.4%} on average, {max(above):+.4%} at most; "
            f"{np.mean(counts):.1f} graphs on average, {max(counts)} at most"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
