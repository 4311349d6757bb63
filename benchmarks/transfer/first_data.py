"""Measures what trials of earlier runs teach Models V and A about layers that have no trial yet.

    python -m benchmarks.transfer.first_data

On each target, `ml2tuner` tunes six development layers of other networks with 24 trials each. The
resulting shared models then predict random configs of six layers of ResNet-18 on vta-pynq. A row
has the rank correlation of Model A with the measured latency over valid configs, and the area under
the ROC curve of Model V for predicting that a config compiles. Both are means over layers, once
with the trials as they are, and once with the trials scaled to the bus and the scratchpads of
vta-pynq (`scale_to_hardware`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from benchmarks.tuners.enumerated_spaces import layers_named, make_space_target
from benchmarks.tuners.shared_models import DEVELOPMENT, OTHERS, tune_layers
from tilewright.flows.tuning import learn
from tilewright.models import make_explorer
from tilewright.search import ExplorerState, LocalRunner, Session, candidates, make_task
from tilewright.search.shared_trials import (
    SharedTrials,
    scale_to_hardware,
    trials_in,
    with_trials,
)
from tilewright.search.tuners.ml2tuner import ML2Tuner
from tilewright.targets import make_target

TRIALS, CONFIGS = 24, 300
DRAW = 7  # seed of the random configs


def main(
    targets: Annotated[
        str, typer.Option(help="Hardware of the earlier trials.")
    ] = "vta-pynq,vta-de10,evta-zcu102,small,large",
    seed: int = 0,
) -> None:
    """Print one row per target of the earlier trials."""
    table = Table(title="of six layers on vta-pynq that have no trial")
    for name in ("trials of", "A, as they are", "A, scaled", "V, as they are", "V, scaled"):
        table.add_column(name)
    here = make_space_target("extended")
    for name in targets.split(","):
        there, explorer = make_target(name, "extended"), make_explorer("ml2tuner")
        earlier = tune_layers(
            there, list(layers_named(OTHERS).values()), explorer, seed, TRIALS, TRIALS
        )
        plain = [
            trials
            for task, history in earlier
            for trials in trials_in(explorer.share(task.problem, ExplorerState(), history))
        ]
        hardware = there.hardware_features(), here.hardware_features()
        scaled = [scale_to_hardware(trials, *hardware) for trials in plain]
        (a, v), (scaled_a, scaled_v) = _judged(plain, seed), _judged(scaled, seed)
        table.add_row(name, *(f"{value:.2f}" for value in (a, scaled_a, v, scaled_v)))
    Console().print(table)


def _judged(earlier: Sequence[SharedTrials], seed: int) -> tuple[float, float]:
    """Return Model A's rank correlation and Model V's area under the ROC curve."""
    target, explorer, state = (
        make_space_target("extended"),
        make_explorer("ml2tuner"),
        ExplorerState(),
    )
    assert isinstance(explorer, ML2Tuner)
    for trials in earlier:
        state = with_trials(state, trials)
    ranks, areas = [], []
    for workload in layers_named(DEVELOPMENT).values():
        task = make_task(target, workload, explorer, seed)
        session = learn(LocalRunner(), task, Session.start(task).with_shared(state))
        beliefs = explorer._beliefs(task.problem, session.models)
        drawn = candidates.draw_configs(task.problem.space, CONFIGS, np.random.default_rng(DRAW))
        configs = task.problem.space.unravel(drawn)
        lowered = target.lower(workload, configs)
        measured = target.measure(lowered)
        valid = np.flatnonzero(measured.valid)
        predicted = beliefs.shared_mean(lowered.hidden.rows(valid), None)
        ranks.append(spearmanr(predicted, measured.cycles[valid]).statistic)
        visible = beliefs.absolute_features(configs, None)
        chance = session.models.models["compiles"].predict(visible)
        areas.append(roc_auc_score(lowered.ok, chance))
    return float(np.mean(ranks)), float(np.mean(areas))


if __name__ == "__main__":
    typer.run(main)
