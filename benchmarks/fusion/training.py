"""Trains the fusion models that Tilewright ships, on labelled graphs of networks.

    python -m benchmarks.fusion.training --folder built/fusion         # examples, then models
    python -m benchmarks.fusion.training --folder built/fusion --ship  # models beside the code

Training examples are made once per network and target and kept in the folder, so that a stopped run
resumes. `benchmarks.fusion.decisions` trains on the same examples, without those of the network
that it evaluates.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.fusion.examples import (
    Examples,
    graphs_of,
    read_examples,
    units_of_all,
    write_examples,
)
from benchmarks.fusion.tuned_pairs import make_examples, make_pair_evaluator
from tilewright.fusion.learned.graph_model import GraphModel
from tilewright.fusion.learned.policy import Policy
from tilewright.fusion.learned.pretrained import FOLDER, MODEL, POLICY

NETWORKS = ("digits_cnn", "resnet18", "mobilenet_v2", "resnet50", "vit_tiny", "inception_v3")
TARGETS = ("vta-pynq", "large", "huge")
TRIALS = 16


def main() -> None:
    """Make the missing examples, train the models, and write them if they are to be shipped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("built/fusion"))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--ship", action="store_true")
    given = parser.parse_args()
    several = load_examples(
        given.folder, given.networks.split(","), given.targets.split(","), given.trials
    )
    model, policy = trained(list(several.values()))
    if given.ship:
        FOLDER.mkdir(parents=True, exist_ok=True)
        model.save(FOLDER / MODEL)
        policy.save(FOLDER / POLICY)


def load_examples(
    folder: Path, networks: Iterable[str], targets: Iterable[str], trials: int
) -> dict[tuple[str, str], Examples]:
    """Return the examples by network and target, after making those that the folder lacks."""
    result: dict[tuple[str, str], Examples] = {}
    names = list(networks)
    for target in targets:
        for network in names:
            path = folder / f"examples-{network}-{target}-{trials}.npz"
            if not path.exists():
                examples = make_examples(make_pair_evaluator(network, target, trials, folder))
                write_examples(path, examples)
                print(f"{network} on {target}: {len(examples.graphs)} graphs, "
                      f"{int(examples.better.sum())} of {len(examples.better)} units better fused",
                      flush=True)  # fmt: skip
            result[network, target] = read_examples(path)
    return result


def trained(several: list[Examples], seed: int = 0) -> tuple[GraphModel, Policy]:
    """Return both models, trained on the examples."""
    model, policy = GraphModel(seed), Policy(seed)
    model.fit(graphs_of(several))
    policy.fit(*units_of_all(several))
    return model, policy


class Trained:
    """Models that are trained once. Each search gets a copy, which it may correct."""

    def __init__(self, examples: list[Examples]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "trees"
        model, self._policy = trained(examples)
        model.save(self._path)

    def copy_models(self) -> tuple[GraphModel, Policy]:
        """Return a copy of the graph model, and the policy, which searches do not change."""
        model = GraphModel()
        model.load(self._path)
        return model, self._policy


if __name__ == "__main__":
    main()
