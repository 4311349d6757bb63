"""Statistics of an explained run: the most influential features of each model, and its accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.explain.refitted_models import Explained, Floats, JudgedWorkload
from tilewright.search.explorer import ROLES

FASTEST = 0.1
"""Fraction of the valid configs that counts as the fastest. Model V should not reject them."""
MIXED = 0.25
"""Absolute rank correlation below which the effect of a feature has no clear direction."""


@dataclass(frozen=True)
class ModelSummary:
    """Influence of features on one of the tuner's models, averaged over the workloads.

    Attributes:
        role: the model: "P" (latency), "V" (validity) or "A" (latency from features of the compiled
            program).
        exact: True if the influences are exact, False if they are sampled.
        corrects: True if the model predicts only the error of a closed-form estimate.
        features: the features, most influential first.
    """

    role: str
    exact: bool
    corrects: bool
    features: tuple[Ranked, ...]

    def top_features(self, count: int) -> list[Ranked]:
        """Return the `count` most influential features, without features that have no influence.

        The result is empty if the model is constant.
        """
        return [feature for feature in self.features if feature.share > 0][:count]

    def effect(self, feature: Ranked) -> str:
        """Return one word for the effect of large values of a feature on the prediction.

        For latencies, the words are "slower" and "faster"; for validity, "likelier" and "less
        likely". If large values have no consistent effect, the word is "mixed".

        Args:
            feature: a feature of this model.
        """
        if abs(feature.direction) < MIXED:
            return "mixed"
        rises = feature.direction > 0
        if self.role == "V":
            return "likelier" if rises else "less likely"
        return "slower" if rises else "faster"


@dataclass(frozen=True)
class ModelAccuracy:
    """Accuracy of the models P, V and A. A value that cannot be computed is NaN.

    P predicts the latency of a schedule, V the probability that it is valid, and A the latency from
    features of the compiled program.

    Attributes:
        p_rmse: root-mean-square error of P in log2 of the latency.
        p_rank: Spearman's rank correlation between predicted and true latency within a workload,
            averaged over workloads.
        a_rmse: root-mean-square error of A in log2 of the latency.
        a_rank: rank correlation of A, computed like `p_rank`.
        v_auc: area under the ROC curve of V.
        v_brier: Brier score of V, the mean squared error of its probabilities.
    """

    p_rmse: float
    p_rank: float
    a_rmse: float
    a_rank: float
    v_auc: float
    v_brier: float


@dataclass(frozen=True)
class Vetoed:
    """Fractions of good configs that Model V, which predicts validity, would wrongly reject.

    The fractions refer to valid configs that the run never tried. They are NaN if there are none.

    Attributes:
        valid: rejected fraction of all valid configs.
        fast: rejected fraction of the fastest valid configs (see `FASTEST`).
    """

    valid: float
    fast: float


def model_summaries(explained: Sequence[Explained]) -> list[ModelSummary]:
    """Return one summary per model that the tuner trained, in the order of `ROLES`."""
    summaries = []
    for role in ROLES:
        influences = [
            explanation.influences[role]
            for explanation in explained
            if role in explanation.influences
        ]
        if influences:
            exact = influences[-1].exact
            corrects = any(influence.corrects for influence in influences)
            features = tuple(rank_features(explained, role))
            summaries.append(ModelSummary(role, exact, corrects, features))
    return summaries


def accuracy(judged: Sequence[JudgedWorkload]) -> ModelAccuracy:
    """Return the accuracy of the models P, V and A over all workloads.

    Args:
        judged: predictions and true values for each workload.
    """
    p, a, v = (pool_predictions(judged, role) for role in "PAV")
    return ModelAccuracy(
        p_rmse=rmse(p),
        p_rank=mean_rank(judged, "P"),
        a_rmse=rmse(a),
        a_rank=mean_rank(judged, "A"),
        v_auc=area_under_roc(v[1] == 1, v[0]),
        v_brier=brier(v),
    )


def vetoed_shares(explained: Sequence[Explained]) -> Vetoed:
    """Return the fractions of valid configs that Model V (validity) would wrongly reject.

    Only random configs that the run never tried are considered.

    Args:
        explained: the workloads.
    """
    return Vetoed(vetoed_fraction(explained), vetoed_fraction(explained, FASTEST))


# -- of single models ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked:
    """Influence of one feature on a model, averaged over workloads.

    Attributes:
        name: name of the feature.
        share: the feature's mean absolute Shapley value, as a fraction of the sum over all
            features.
        direction: rank correlation between the value of the feature and its Shapley value; 1 means
            that large values increase the prediction.
        text: description of the feature.
    """

    name: str
    share: float
    direction: float
    text: str = ""


def rank_features(explained: Sequence[Explained], role: str) -> list[Ranked]:
    """Return the features of a model, most influential first.

    Workloads for which the model is constant are left out. If the model is constant for every
    workload, all shares are 0.

    Args:
        explained: the workloads.
        role: the model: "P", "V" or "A".
    """
    shares: dict[str, list[float]] = {}
    directions: dict[str, list[float]] = {}
    texts: dict[str, str] = {}
    count = 0
    for explanation in explained:
        if role not in explanation.influences:
            continue
        influence = explanation.influences[role]
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
            sum(share) / max(count, 1),
            float(np.mean(directions.get(name, [0.0]))),
            texts.get(name, ""),
        )
        for name, share in shares.items()
    ]
    return sorted(rows, key=lambda row: -row.share)


def pool_predictions(judged: Sequence[JudgedWorkload], role: str) -> Floats:
    """Concatenate the predictions of a model and the true values over all workloads.

    Args:
        judged: predictions for each workload.
        role: the model: "P", "V" or "A".

    Returns:
        Float array of shape (2, n): predictions and true values. They are log2 of the latency for P
        and A; for V, the probability of being valid and the label 1 or 0.
    """
    parts = [workload.pairs[role][:2] for workload in judged if role in workload.pairs]
    return np.concatenate([np.empty((2, 0)), *parts], axis=1)


def rmse(pair: Floats) -> float:
    """Return the root-mean-square error of predictions; NaN if there are none.

    Args:
        pair: predictions and true values, float array of shape (2, n).
    """
    return float(np.sqrt(np.mean((pair[0] - pair[1]) ** 2))) if pair.shape[1] else float("nan")


def mean_rank(judged: Sequence[JudgedWorkload], role: str) -> float:
    """Return how well a model ranks the configs of a workload, averaged over workloads.

    This is Spearman's rank correlation between predicted and true latency; NaN if it is unknown for
    all workloads.

    Args:
        judged: predictions for each workload.
        role: the model: "P" or "A".
    """
    pairs = [workload.pairs[role] for workload in judged if role in workload.pairs]
    return float(np.mean([rank_correlation(*pair) for pair in pairs])) if pairs else float("nan")


def brier(pair: Floats) -> float:
    """Return the Brier score, the mean squared error of probabilities; NaN if there are none.

    Args:
        pair: predicted probabilities, and labels 1 or 0, float array of shape (2, n).
    """
    return float(np.mean((pair[0] - pair[1]) ** 2)) if pair.shape[1] else float("nan")


def vetoed_fraction(explained: Sequence[Explained], fastest: float = 1.0) -> float:
    """Return the fraction of valid untried configs that Model V (validity) would reject.

    Model V rejects a config if the predicted probability of being valid is below its threshold. The
    result is NaN if there are no valid untried configs.

    Args:
        explained: the workloads.
        fastest: consider only this fraction of each workload's valid configs, the fastest ones.
    """
    below: list[bool] = []
    for explanation in explained:
        if "V" not in explanation.unseen.pairs:
            continue
        chance, valid, cycles = explanation.unseen.pairs["V"]
        known = valid == 1
        if known.any():
            good = known & (cycles <= np.nanquantile(cycles, fastest))
            below += (chance[good] < explanation.threshold).tolist()
    return float(np.mean(below)) if below else float("nan")


def average_ranks(values: Floats) -> Floats:
    """Return the rank of each value, where 1 is the lowest. Equal values share their mean rank.

    Args:
        values: float array of shape (n,).

    Returns:
        Float array of shape (n,).
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2)[places]


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's rank correlation of two arrays; 0 if an array is constant or n < 3.

    Args:
        a: float array of shape (n,).
        b: float array of shape (n,).
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    middle = (len(a) + 1) / 2  # the mean rank
    x, y = average_ranks(a) - middle, average_ranks(b) - middle
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def area_under_roc(positive: NDArray[np.bool_], scores: Floats) -> float:
    """Return the area under the ROC curve; NaN if all rows belong to one class.

    The area is the probability that a positive row has a higher score than a negative row. It is
    computed from the Mann-Whitney statistic.

    Args:
        positive: True for positive rows, bool array of shape (n,).
        scores: score of each row, float array of shape (n,).
    """
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    above = average_ranks(scores)[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(positive) - count)))


def calibration(positive: Floats, chance: Floats, bins: int) -> tuple[Floats, Floats]:
    """Return the points of a calibration curve: mean probability and fraction of positives per bin.

    The bins hold about equally many rows.

    Args:
        positive: 1 for positive rows, 0 for others, float array of shape (n,).
        chance: predicted probabilities, float array of shape (n,).
        bins: number of bins.

    Returns:
        Mean probabilities and fractions of positives, two float arrays of shape (m,), m ≤ `bins`.
        Bins that are empty because of equal probabilities are left out.
    """
    edges = np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])
    place = np.searchsorted(edges, chance)
    total = np.bincount(place, minlength=bins)
    filled = total > 0
    sums = (np.bincount(place, item, minlength=bins)[filled] for item in (chance, positive))
    mean, share = (item / total[filled] for item in sums)
    return mean, share
