"""Why a run chose as it did: which features moved P, V and A, and how right the models were.

The models are those of the run: fitted again, round by round, on its recorded trials. They are
judged twice: on each batch before they learned from it, and at the end on random configs of the
space that were never tried (measured here for that purpose, at no cost to the run).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.compare.trace import ROLES, TracedLearners, TracedModel, traced
from evaluation.explain.folder import TunedFolder
from evaluation.explain.shapley import is_exact, shapley_values
from search import Candidates, Choice, Explorer, ExplorerState, History, Problem, problem_of
from search.candidates import sample
from search.learning import Matrix
from search.loop import Session
from targets.base import Lowered
from targets.errors import TilewrightError
from targets.vta.target import VtaTarget
from targets.workload import Workload

_EXPLAINED = {True: 256, False: 96}  # rows explained by exact and by sampled values
_BACKGROUND = 128
_BATCH = 32
Floats = NDArray[np.float64]


class ExplainError(TilewrightError):
    """A run there is nothing to explain of."""


@dataclass(frozen=True)
class Influence:
    """What moved a model: Shapley values (rows, names) of feature rows of the same shape. In log2
    cycles for P and A, for V log-odds (trees) or chance. `exact` unless they were sampled.
    `corrects` if the model learns only by how much an estimate is wrong."""

    names: tuple[str, ...]
    x: Matrix
    values: Matrix
    exact: bool
    corrects: bool


@dataclass(frozen=True)
class Judged:
    """Predictions beside what was simulated. `P` and `A` are (predicted, simulated) log2 cycles of
    valid configs, shape (2, n); `V` is (chance, 1 where valid, simulated log2 cycles or NaN)."""

    pairs: dict[str, Floats]


@dataclass(frozen=True)
class Explained:
    """One workload of a run."""

    workload: Workload
    trials: int
    valid_share: float  # of the space, estimated from random configs
    influences: dict[str, Influence]
    before: Judged  # each batch, before the models learned from it
    unseen: Judged  # random configs of the space, by the final models
    threshold: float  # of V's veto; 0 if it has none


def explain_workload(folder: TunedFolder, workload: Workload, samples: int, seed: int) -> Explained:
    """Refit a workload's models and look at them. Raises `ExplainError` if the tuner has none."""
    target = folder.target
    problem = problem_of(target, workload, folder.seed)
    explorer, learners = traced(folder.tuner_config, target, problem)
    session = Session(target, problem, explorer, ExplorerState())
    before: dict[str, list[Floats]] = {}
    for done in folder.rounds(workload):
        rows = target.lower(workload, done.configs)
        if session.state.models:
            asked = _asked(explorer, learners, problem, session.state, session.history, rows)
            known = np.where(done.measured.valid, done.measured.cycles, 0)
            for role, pair in _judged(asked, known).items():
                before.setdefault(role, []).append(pair)
        session.restore(done)
    models = {role: m for role, m in session.state.models.items() if role in ROLES}
    if not models:
        raise ExplainError(
            f"'{folder.tuner_config.tuner}' learned no model of {workload} in "
            f"{len(session.history)} trials: there is nothing to explain; tune with 'default' or 'ml2tuner', or longer"
        )
    unseen, cycles = _unseen(target, problem, session.history, samples, seed)
    asked = _asked(explorer, learners, problem, session.state, session.history, unseen)
    if not asked:
        raise ExplainError(
            f"'{folder.tuner_config.tuner}' asks its models only within its own search, never "
            "about configs put to it: there is nothing to judge; tune with 'default' or 'ml2tuner'"
        )
    return Explained(
        workload=workload,
        trials=len(session.history),
        valid_share=float((cycles > 0).mean()) if len(cycles) else 1.0,
        influences={role: _influence(models[role], each, seed) for role, each in asked.items()},
        before=Judged({role: np.concatenate(each, axis=1) for role, each in before.items()}),
        unseen=Judged(_judged(asked, cycles)),
        threshold=_threshold(models, folder),
    )


@dataclass(frozen=True)
class _Asked:
    """What a model was asked about `rows` of some configs: their features, and what the tuner took
    from its `own` answer (with estimates added, where it learns only how wrong these are)."""

    rows: NDArray[np.int64]
    x: Matrix
    own: Floats
    said: Floats


def _asked(
    explorer: Explorer,
    learners: TracedLearners,
    problem: Problem,
    state: ExplorerState,
    history: History,
    lowered: Lowered,
) -> dict[str, _Asked]:
    """Put configs to the tuner, a batch at a time, as if all of them were to be measured."""
    parts: dict[str, list[_Asked]] = {}
    for begin in range(0, len(lowered), _BATCH):
        part = lowered.rows(np.arange(begin, min(begin + _BATCH, len(lowered))))
        for role, each in _overheard(explorer, learners, problem, state, history, part).items():
            parts.setdefault(role, []).append(replace(each, rows=each.rows + begin))
    return {
        role: _Asked(*(np.concatenate([getattr(e, f.name) for e in each]) for f in fields(_Asked)))
        for role, each in parts.items()
    }


def _overheard(
    explorer: Explorer,
    learners: TracedLearners,
    problem: Problem,
    state: ExplorerState,
    history: History,
    lowered: Lowered,
) -> dict[str, _Asked]:
    """What models are asked when the tuner chooses among these configs, and what comes of it."""
    n = len(lowered)
    models = {
        role: model
        for role, model in state.models.items()
        if role in ROLES and isinstance(model, TracedModel)
    }
    for model in models.values():
        model.queries.clear()
    with learners.asking():
        choice = explorer.choose(problem, state, history, lowered, n)
        heard = {role: _question(model, lowered, choice, role) for role, model in models.items()}
        if "V" in models and (heard["V"] is None or len(heard["V"].rows) < n):
            # This tuner asks V earlier, of everything.
            explorer.veto(problem, state, history, Candidates(lowered.configs), n)
            heard["V"] = _question(models["V"], lowered, None, "V")
    return {role: each for role, each in heard.items() if each is not None}


def _question(
    model: TracedModel, lowered: Lowered, choice: Choice | None, role: str
) -> _Asked | None:
    """The question put to a model that is about all rows, or about all that compiled, or about
    those chosen in their order; the last are told from the others by the very same answers."""
    every, compiled = np.arange(len(lowered)), np.flatnonzero(lowered.ok)
    scores = choice.scores.get(role) if choice is not None else None
    for answer in reversed(model.queries):
        if choice is not None and scores is not None and np.array_equal(answer.predicted, scores):
            return _Asked(choice.rows, answer.x, answer.predicted, answer.predicted)
        for rows in (every, compiled):
            if len(answer.x) == len(rows) and len(rows):
                asked = _Asked(rows, answer.x, answer.predicted, answer.predicted)
                return _rescored(asked, choice, scores) if choice and scores is not None else asked
    return None


def _rescored(asked: _Asked, choice: Choice, scores: Floats) -> _Asked:
    """Of the rows that were chosen, with what the tuner made of the answer."""
    place = np.full(int(asked.rows.max()) + 1, -1, np.int64)
    known = choice.rows <= asked.rows.max()
    place[choice.rows[known]] = np.flatnonzero(known)
    scored = place[asked.rows] >= 0
    said = scores[place[asked.rows[scored]]]
    return _Asked(asked.rows[scored], asked.x[scored], asked.own[scored], said)


def _judged(asked: dict[str, _Asked], cycles: NDArray[np.int64]) -> dict[str, Floats]:
    """`cycles` of all configs that were put to the tuner, 0 where one is not valid."""
    pairs = {}
    for role, each in asked.items():
        truth = cycles[each.rows]
        valid = truth > 0
        simulated = np.where(valid, np.log2(np.maximum(truth, 1)), np.nan)
        if role == "V":
            pairs[role] = np.stack([each.said, valid.astype(np.float64), simulated])
        else:
            pairs[role] = np.stack([each.said[valid], simulated[valid]])
    return pairs


def _unseen(
    target: VtaTarget, problem: Problem, history: History, samples: int, seed: int
) -> tuple[Lowered, NDArray[np.int64]]:
    """Random configs that were never tried, and their cycles, 0 where not valid."""
    rng = np.random.default_rng(seed)
    flat = sample(problem.space, samples, history.tried(problem.space), rng)
    lowered = target.lower(problem.workload, problem.space.unravel(flat))
    measured = target.measure(lowered)
    return lowered, np.where(measured.valid, measured.cycles, 0)


def _influence(model: Any, asked: _Asked, seed: int) -> Influence:
    fit_record = model.fit_record
    exact = is_exact(model.inner)
    rng = np.random.default_rng(seed)
    x = np.nan_to_num(asked.x) if not exact else asked.x
    x = x[rng.permutation(len(x))[: _EXPLAINED[exact]]]
    background = fit_record.x[rng.permutation(len(fit_record.x))[:_BACKGROUND]]
    values = shapley_values(model.inner, x, np.nan_to_num(background), seed)
    corrects = bool(np.abs(asked.said - asked.own).max(initial=0.0) > 1e-6)
    return Influence(fit_record.names, x, values, exact, corrects)


def _threshold(models: dict[str, Any], folder: TunedFolder) -> float:
    own = float(getattr(models.get("V"), "threshold", 0.0) or 0.0)
    return own or float(getattr(folder.tuner_config.explorer.options, "veto", 0.0))


# -- figures over workloads ----------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked:
    """A feature's share of a model's total influence, mean over workloads, and how its value goes
    with what it does: rank correlation, 1 where large values raise the prediction."""

    name: str
    share: float
    direction: float


def ranked(explained: Sequence[Explained], role: str) -> list[Ranked]:
    """The features of a model by influence, largest first. Workloads where it learned a constant
    do not count; the share of every feature is 0 if it learned one everywhere."""
    shares: dict[str, list[float]] = {}
    directions: dict[str, list[float]] = {}
    count = 0
    for each in explained:
        if role not in each.influences:
            continue
        influence = each.influences[role]
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
        Ranked(name, sum(each) / max(count, 1), float(np.mean(directions.get(name, [0.0]))))
        for name, each in shares.items()
    ]
    return sorted(rows, key=lambda row: -row.share)


def pooled(judged: Sequence[Judged], role: str) -> Floats:
    """All workloads' predictions of a role and what was simulated, shape (2, n)."""
    parts = [each.pairs[role][:2] for each in judged if role in each.pairs]
    return np.concatenate([np.empty((2, 0)), *parts], axis=1)


def rmse(pair: Floats) -> float:
    """In log2 cycles; NaN without rows."""
    return float(np.sqrt(np.mean((pair[0] - pair[1]) ** 2))) if pair.shape[1] else float("nan")


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's; 0 if one of them is constant."""
    from scipy.stats import spearmanr

    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b).statistic)


def mean_rank(judged: Sequence[Judged], role: str) -> float:
    """Rank correlation within a workload, mean over them; NaN without any."""
    pairs = [each.pairs[role] for each in judged if role in each.pairs]
    return float(np.mean([rank_correlation(*pair) for pair in pairs])) if pairs else float("nan")


def brier(pair: Floats) -> float:
    """Mean squared error of a chance; NaN without rows."""
    return float(np.mean((pair[0] - pair[1]) ** 2)) if pair.shape[1] else float("nan")


def discrimination(pair: Floats) -> float:
    """Area under V's ROC curve; NaN if only one class occurred."""
    from sklearn.metrics import roc_auc_score

    if not pair.shape[1] or np.ptp(pair[1]) == 0:
        return float("nan")
    return float(roc_auc_score(pair[1], pair[0]))


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
