"""Offers a transferred model to a tuner: predictions for configs of one workload on one target."""

from __future__ import annotations

from tilewright.models.transfer.columns import columns_of
from tilewright.models.transfer.model import Transferred
from tilewright.search.problem import Belief, Problem, TransferredPrior
from tilewright.targets.base import Configs
from tilewright.targets.features import Features


def prior_from(model: Transferred, problem: Problem) -> TransferredPrior:
    """What `model` says of configs of the problem, (n, knobs), before or after compiling. It is
    asked for the chance to run before: compiling reveals nothing of that."""

    def ask(configs: Configs, hidden: Features | None) -> Belief:
        known = columns_of(problem.workload, problem.space, configs, problem.hardware, hidden)
        said = model.predict(known, chance=hidden is None)
        return Belief(said.log_latency, said.spread, said.chance)

    return ask
