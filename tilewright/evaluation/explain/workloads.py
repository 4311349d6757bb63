"""Explains a run's choices: which features moved P, V and A, and how accurate the models were.

The models are those of the run: fitted again, round by round, on its recorded trials. They are
judged twice: on each batch before they learned from it, and at the end on random configs that were
never tried. Those are measured here, at no cost to the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.explain.folder import TunedFolder
from tilewright.evaluation.explain.shapley import is_exact, shapley_values
from tilewright.evaluation.explain.trajectory import Trajectory, trajectory_of
from tilewright.evaluation.rank_statistics import rank_correlation
from tilewright.flows.tuning import learn, recorded_batch
from tilewright.search import (
    Explorer,
    ExplorerState,
    History,
    LocalRunner,
    Problem,
    Session,
    make_task,
)
from tilewright.search.candidates import sample
from tilewright.search.cost_model_protocols import CostModel
from tilewright.search.explorer import ROLES, ModelInput, veto_threshold
from tilewright.search.history import trials_of
from tilewright.targets.base import Lowered, Measurements, Target
from tilewright.targets.workload import Workload

_EXPLAINED = {True: 256, False: 96}  # rows explained by exact and by sampled values
_BACKGROUND = 128
Floats = NDArray[np.float64]


class ExplainError(TilewrightError):
    """A run there is nothing to explain of."""


@dataclass(frozen=True)
class Influence:
    """What moved a model: Shapley values (rows, names) of feature rows of the same shape. In log2
    cycles for P and A, for V log-odds (trees) or chance. `exact` unless they were sampled.
    `corrects` if the model learns only by how much an estimate is wrong."""

    names: tuple[str, ...]
    x: Floats
    values: Floats
    exact: bool
    corrects: bool
    texts: tuple[str, ...] = ()  # what each feature is, in words; "" where nobody says


@dataclass(frozen=True)
class JudgedWorkload:
    """Predictions beside what was measured. `P` and `A` are (predicted, simulated) log2 latency of
    valid configs, shape (2, n); `V` is (chance, 1 where valid, simulated log2 latency or NaN)."""

    pairs: dict[str, Floats]


@dataclass(frozen=True)
class Explained:
    """One workload of a run; `title` is what tables call it."""

    workload: Workload
    title: str
    trials: int
    valid_share: float  # of the space, estimated from random configs
    influences: dict[str, Influence]
    before: JudgedWorkload  # each batch, before the models learned from it
    unseen: JudgedWorkload  # random configs of the space, by the final models
    threshold: float  # of V's veto; 0 if it has none
    trajectory: Trajectory  # what the trials came to, one after the other


def explain_workload(folder: TunedFolder, workload: Workload, samples: int, seed: int) -> Explained:
    """Refit a workload's models and look at them. Raises `ExplainError` if the tuner has none, or
    asks them within its own search only."""
    target, explorer = folder.target, folder.tuner_config.explorer
    run, task = LocalRunner(), make_task(target, workload, explorer, folder.seed)
    session, problem = Session.start(task), task.problem
    before: dict[str, list[Floats]] = {}
    for done in folder.rounds(workload):
        session = learn(run, task, session)
        if session.models.models:
            rows = target.lower(workload, done.configs)
            asked = _asked(explorer, problem, session.models, session.history, rows)
            for role, pair in _judged(asked, done.measured).items():
                before.setdefault(role, []).append(pair)
        session = session.after(recorded_batch(task, done))
    session = learn(run, task, session)
    state, history = session.models, session.history
    if not set(ROLES) & set(state.models):
        raise ExplainError(
            f"'{explorer.name}' learned no model of {workload} in {len(history)} trials: there is "
            "nothing to explain; tune with 'default' or 'ml2tuner', or longer"
        )
    unseen, measured = _unseen(target, problem, history, samples, seed)
    asked = _asked(explorer, problem, state, history, unseen)
    if not asked:
        raise ExplainError(
            f"'{explorer.name}' asks its models only within its own search, never about configs "
            "put to it: there is nothing to judge; tune with 'default' or 'ml2tuner'"
        )
    learned = _asked(explorer, problem, state, history, trials_of(problem, history))
    return Explained(
        workload=workload,
        title=folder.titles[workload.id],
        trials=len(history),
        valid_share=float(measured.valid.mean()) if len(measured) else 1.0,
        influences={
            role: _influence(state.models[role], each, learned[role], seed)
            for role, each in asked.items()
        },
        before=JudgedWorkload(
            {role: np.concatenate(each, axis=1) for role, each in before.items()}
        ),
        unseen=JudgedWorkload(_judged(asked, measured)),
        threshold=veto_threshold(explorer, state),
        trajectory=trajectory_of(folder, workload),
    )


@dataclass(frozen=True)
class _Asked:
    """What a model was asked about some configs, and its answer, what the tuner adds included."""

    input: ModelInput
    said: Floats


def _asked(
    explorer: Explorer, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
) -> dict[str, _Asked]:
    """Put configs to P, V and A as the tuner would."""
    inputs = explorer.model_inputs(problem, state, history, lowered)
    return {
        role: _Asked(inputs[role], state.models[role].predict(inputs[role].features)
                     + inputs[role].offset)
        for role in ROLES
        if role in inputs
    }  # fmt: skip


def _judged(asked: dict[str, _Asked], measured: Measurements) -> dict[str, Floats]:
    """Answers beside the `measured` truth about all configs that were put to the tuner."""
    pairs = {}
    for role, each in asked.items():
        valid = measured.valid[each.input.rows]
        truth = np.log2(np.where(valid, measured.latency[each.input.rows], np.nan))
        if role == "V":
            pairs[role] = np.stack([each.said, valid.astype(np.float64), truth])
        else:
            pairs[role] = np.stack([each.said[valid], truth[valid]])
    return pairs


def _unseen(
    target: Target, problem: Problem, history: History, samples: int, seed: int
) -> tuple[Lowered, Measurements]:
    """Random configs that were never tried, and what they do."""
    rng = np.random.default_rng(seed)
    flat = sample(problem.space, samples, history.tried(problem.space), rng)
    lowered = target.lower(problem.workload, problem.space.unravel(flat))
    return lowered, target.measure(lowered)


def _influence(model: CostModel, asked: _Asked, learned: _Asked, seed: int) -> Influence:
    """Of the features on the model's answers; `learned` is what it was fitted on."""
    exact, features = is_exact(model), asked.input.features
    rng = np.random.default_rng(seed)
    some = features.rows(rng.permutation(len(features))[: _EXPLAINED[exact]])
    known = learned.input.features
    background = known.rows(rng.permutation(len(known))[:_BACKGROUND])
    values = shapley_values(model, some, background, seed)
    corrects = bool(np.abs(asked.input.offset).max(initial=0.0) > 1e-6)
    texts = tuple(column.text for column in features.columns)
    return Influence(features.names, some.matrix, values, exact, corrects, texts)


# -- figures over workloads ----------------------------------------------------------------------


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
