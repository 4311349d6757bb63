"""Computes figures of an explained run: what drove each model, and how accurate the models were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.explain.refitted_models import Explained, Floats, JudgedWorkload
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


# -- of single models ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked:
    """A feature's share of a model's total influence, mean over workloads, and how its value goes
    with what it does: rank correlation, 1 where large values raise the prediction. `text` says
    what it is in words."""

    name: str
    share: float
    direction: float
    text: str = ""


def ranked(explained: Sequence[Explained], role: str) -> list[Ranked]:
    """The features of a model by influence, largest first. Workloads where it learned a constant
    do not count; the share of every feature is 0 if it learned one everywhere."""
    shares: dict[str, list[float]] = {}
    directions: dict[str, list[float]] = {}
    texts: dict[str, str] = {}
    count = 0
    for each in explained:
        if role not in each.influences:
            continue
        influence = each.influences[role]
        texts |= dict(zip(influence.names, influence.texts, strict=False))
        size = np.abs(influence.values).mean(axis=0)
        learned = bool(size.sum() > 0)
        count += learned
        for k, name in enumerate(influence.names):
            shares.setdefault(name, []).append(float(size[k] / size.sum()) if learned else 0.0)
            if learned:
                directions.setdefault(name, []).append(
                    rank_correlation(influence.x[:, k], influence.values[:, k])
                )
    rows = [
        Ranked(
            name,
            sum(each) / max(count, 1),
            float(np.mean(directions.get(name, [0.0]))),
            texts.get(name, ""),
        )
        for name, each in shares.items()
    ]
    return sorted(rows, key=lambda row: -row.share)


def pooled(judged: Sequence[JudgedWorkload], role: str) -> Floats:
    """All workloads' predictions of a role and what was simulated, shape (2, n)."""
    parts = [each.pairs[role][:2] for each in judged if role in each.pairs]
    return np.concatenate([np.empty((2, 0)), *parts], axis=1)


def rmse(pair: Floats) -> float:
    """Of a model's predictions of log2 latency, as `pooled`, (2, n); NaN without rows."""
    return float(np.sqrt(np.mean((pair[0] - pair[1]) ** 2))) if pair.shape[1] else float("nan")


def mean_rank(judged: Sequence[JudgedWorkload], role: str) -> float:
    """Rank correlation within a workload, mean over them; NaN without any."""
    pairs = [each.pairs[role] for each in judged if role in each.pairs]
    return float(np.mean([rank_correlation(*pair) for pair in pairs])) if pairs else float("nan")


def brier(pair: Floats) -> float:
    """Mean squared error of V's chances, as `pooled`, (2, n); NaN without rows."""
    return float(np.mean((pair[0] - pair[1]) ** 2)) if pair.shape[1] else float("nan")


def vetoed(explained: Sequence[Explained], fastest: float = 1.0) -> float:
    """Share of the valid configs among the unseen, of each workload the `fastest` part of them,
    that lie below V's threshold; NaN if there are none."""
    below: list[bool] = []
    for each in explained:
        if "V" not in each.unseen.pairs:
            continue
        chance, valid, cycles = each.unseen.pairs["V"]
        known = valid == 1
        if known.any():
            good = known & (cycles <= np.nanquantile(cycles, fastest))
            below += (chance[good] < each.threshold).tolist()
    return float(np.mean(below)) if below else float("nan")


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1, shape (n,), equal values their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2)[places]


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's, of two rows (n,); 0 if one is constant or n < 3."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    middle = (len(a) + 1) / 2  # the mean rank
    x, y = average_ranks(a) - middle, average_ranks(b) - middle
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def area_under_roc(positive: NDArray[np.bool_], scores: Floats) -> float:
    """The chance that a positive row scores above a negative one, both (n,), by the Mann-Whitney
    statistic; NaN if only one class occurs."""
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    above = average_ranks(scores)[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(positive) - count)))


def calibration(positive: Floats, chance: Floats, bins: int) -> tuple[Floats, Floats]:
    """Of rows (n,) in `bins` of equal size by their `chance`: the mean chance and the share that is
    positive, both (m,); bins that equal chances leave empty are left out."""
    edges = np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])
    place = np.searchsorted(edges, chance)
    total = np.bincount(place, minlength=bins)
    filled = total > 0
    sums = (np.bincount(place, each, minlength=bins)[filled] for each in (chance, positive))
    mean, share = (each / total[filled] for each in sums)
    return mean, share
