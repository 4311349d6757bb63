"""Sums up an explained run in figures: what drove each model, and how accurate the models were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.evaluation.explain.workloads import (
    Explained,
    JudgedWorkload,
    Ranked,
    brier,
    mean_rank,
    pooled,
    ranked,
    rmse,
    vetoed,
)
from tilewright.evaluation.rank_statistics import area_under_roc
from tilewright.search.explorer import ROLES

FASTEST = 0.1
"""The fastest part of the valid configs that a veto should not touch."""
MIXED = 0.25
"""Rank correlation below which a feature's effect has no direction."""


@dataclass(frozen=True)
class ModelSummary:
    """What drove a model: its features by influence, largest first, over all workloads.

    `exact` unless the influences were sampled; `corrects` if the model learns only by how much a
    closed-form estimate is wrong.
    """

    role: str
    exact: bool
    corrects: bool
    features: tuple[Ranked, ...]

    def most(self, count: int) -> list[Ranked]:
        """The first `count` features that have any influence; none if it learned a constant."""
        return [feature for feature in self.features if feature.share > 0][:count]

    def effect(self, feature: Ranked) -> str:
        """What a large value of a feature makes of the prediction, in a word."""
        if abs(feature.direction) < MIXED:
            return "mixed"
        rises = feature.direction > 0
        if self.role == "V":
            return "likelier" if rises else "less likely"
        return "slower" if rises else "faster"


@dataclass(frozen=True)
class ModelAccuracy:
    """How right the models were; NaN where there is nothing to judge by.

    `p_rmse` and `a_rmse` in log2 cycles, ranks Spearman's correlation within a workload (mean over
    workloads), `v_auc` the area under V's ROC curve, `v_brier` the mean squared error of what it
    takes for the chance of valid.
    """

    p_rmse: float
    p_rank: float
    a_rmse: float
    a_rank: float
    v_auc: float
    v_brier: float


@dataclass(frozen=True)
class Vetoed:
    """Shares of the valid unseen configs that V's veto would cost: of all, and of the fastest part
    (`FASTEST`); NaN where there are none."""

    valid: float
    fast: float


def model_summaries(explained: Sequence[Explained]) -> list[ModelSummary]:
    """Of the models that the tuner learned, in the order of `ROLES`."""
    summaries = []
    for role in ROLES:
        influences = [each.influences[role] for each in explained if role in each.influences]
        if influences:
            exact = influences[-1].exact
            corrects = any(influence.corrects for influence in influences)
            features = tuple(ranked(explained, role))
            summaries.append(ModelSummary(role, exact, corrects, features))
    return summaries


def accuracy(judged: Sequence[JudgedWorkload]) -> ModelAccuracy:
    """Of all these predictions together."""
    p, a, v = (pooled(judged, role) for role in "PAV")
    return ModelAccuracy(
        p_rmse=rmse(p),
        p_rank=mean_rank(judged, "P"),
        a_rmse=rmse(a),
        a_rank=mean_rank(judged, "A"),
        v_auc=area_under_roc(v[1] == 1, v[0]),
        v_brier=brier(v),
    )


def vetoed_shares(explained: Sequence[Explained]) -> Vetoed:
    """What V's veto would cost on the unseen configs."""
    return Vetoed(vetoed(explained), vetoed(explained, FASTEST))
