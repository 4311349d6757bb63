"""Computes the accuracy of a run's cost models and the influence of each feature on them.

The models are P (latency), V (validity) and A (latency from features of the compiled program). They
are trained again, round by round, on the recorded trials of the run. They are evaluated twice: on
each batch before they learn from it, and at the end on random configs that the run never tried.
Those configs are measured here, in addition to the trials of the run.

The influence of a feature on a prediction is its Shapley value. XGBoost and LightGBM compute it
exactly for boosted trees (`pred_contribs`), in the unit of the raw prediction, which is log-odds
for a classifier. See Lundberg et al., Consistent Individualized Feature Attribution for Tree
Ensembles, 2018. For other models, it is estimated by sampling. Starting from a random background
row, the features are replaced one by one, in random order, by those of the explained row; each
order is used forwards and backwards. See Štrumbelj & Kononenko, Explaining prediction models and
individual predictions with feature contributions, 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.thread_pools import BLAS_ON_ONE_THREAD
from tilewright.evaluation.explain.finished_run import Trajectory, TunedFolder, trajectory_of
from tilewright.flows.tuning import learn
from tilewright.search import (
    Explorer,
    ExplorerState,
    History,
    LocalRunner,
    Problem,
    Session,
    make_task,
    recorded_batch,
)
from tilewright.search.candidates import sample
from tilewright.search.cost_model_protocols import Boosted, CostModel
from tilewright.search.explorer import ROLES, ModelInput, veto_threshold
from tilewright.search.history import trials_of
from tilewright.targets.base import Lowered, Measurements, Target
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

_EXPLAINED = {True: 256, False: 96}  # number of explained rows: exact and sampled Shapley values
_BACKGROUND = 128  # number of rows from which absent features take their values
Floats = NDArray[np.float64]


class ExplainError(TilewrightError):
    """Error for a run that cannot be explained, for example because it has no cost models."""


@dataclass(frozen=True)
class Influence:
    """Influence of features on the predictions of a model, as Shapley values.

    Attributes:
        names: names of the features.
        x: values of the features, float array of shape (rows, features).
        values: Shapley values, float array of shape (rows, features): in log2 of the latency for P
            and A, and in log-odds (trees) or probability for V.
        exact: True if the values are exact, False if they are sampled.
        corrects: True if the model predicts only the error of a closed-form estimate.
        texts: description of each feature; "" if there is none.
    """

    names: tuple[str, ...]
    x: Floats
    values: Floats
    exact: bool
    corrects: bool
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class JudgedWorkload:
    """Predictions of each model for configs of one workload, together with the true values.

    Attributes:
        pairs: arrays by model. For P and A: predicted and true log2 latency of valid configs, float
            array of shape (2, n). For V: the predicted probability, the label (1 for valid configs,
            0 for others), and the true log2 latency (NaN for invalid configs), float array of shape
            (3, n).
    """

    pairs: dict[str, Floats]


@dataclass(frozen=True)
class Explained:
    """Explanation of one workload of a run.

    Attributes:
        workload: the workload.
        title: name of the workload in tables.
        trials: number of trials.
        valid_share: fraction of valid configs in the space, estimated from random untried configs;
            1 if there are none.
        influences: influence of features on each model, by model.
        before: predictions for each batch before the models learned from it.
        unseen: predictions of the final models for random untried configs.
        threshold: probability below which Model V rejects a config; 0 if it rejects none.
        trajectory: progress of the search.
    """

    workload: Workload
    title: str
    trials: int
    valid_share: float
    influences: dict[str, Influence]
    before: JudgedWorkload
    unseen: JudgedWorkload
    threshold: float
    trajectory: Trajectory


def explain_workload(folder: TunedFolder, workload: Workload, samples: int, seed: int) -> Explained:
    """Train the cost models of a workload again and evaluate them.

    Args:
        folder: the run.
        workload: the workload.
        samples: number of random untried configs, on which the final models are evaluated. They are
            compiled and measured here.
        seed: seed for drawing these configs.

    Returns:
        The influence of features, the predictions, and the progress of the search.

    Raises:
        ExplainError: the tuner has no trained models, or its models cannot predict given configs.
        FolderError: no trial of the workload is stored.
        WorkloadError: the target has no schedule for the workload.
        TrialStoreError: the trials cannot be read.
    """
    target, explorer = folder.target, folder.tuner_config.explorer
    run, task = LocalRunner(), make_task(target, workload, explorer, folder.seed)
    session, problem = Session.start(task), task.problem
    before: dict[str, list[Floats]] = {}
    for done in folder.rounds(workload):
        session = learn(run, task, session)
        if session.models.models:
            rows = target.lower(workload, done.configs)
            asked = _predict_configs(explorer, problem, session.models, session.history, rows)
            for role, pair in _pair_with_results(asked, done.measured).items():
                before.setdefault(role, []).append(pair)
        session = session.extend(recorded_batch(task, done))
    session = learn(run, task, session)
    state, history = session.models, session.history
    if not set(ROLES) & set(state.models):
        raise ExplainError(
            f"'{explorer.name}' has no model of {workload} after {len(history)} trials, so "
            "there is nothing to explain; tune with 'default' or 'ml2tuner', or with more "
            "trials"
        )
    unseen, measured = _measure_unseen(target, problem, history, samples, seed)
    asked = _predict_configs(explorer, problem, state, history, unseen)
    if not asked:
        raise ExplainError(
            f"the models of '{explorer.name}' cannot predict given configs, so they cannot "
            "be evaluated; tune with 'default' or 'ml2tuner'"
        )
    learned = _predict_configs(explorer, problem, state, history, trials_of(problem, history))
    return Explained(
        workload=workload,
        title=folder.titles[workload.id],
        trials=len(history),
        valid_share=float(measured.valid.mean()) if len(measured) else 1.0,
        influences={
            role: _influence(state.models[role], item, learned[role], seed)
            for role, item in asked.items()
        },
        before=JudgedWorkload(
            {role: np.concatenate(item, axis=1) for role, item in before.items()}
        ),
        unseen=JudgedWorkload(_pair_with_results(asked, measured)),
        threshold=veto_threshold(explorer, state),
        trajectory=trajectory_of(folder, workload),
    )


@dataclass(frozen=True)
class _Asked:
    """Predictions of a model for some configs.

    Attributes:
        input: features of the configs, in the form that the model gets.
        said: prediction for each config, shape (n,). If the model predicts the error of a
            closed-form estimate, the estimate (`input.offset`) is already added.
    """

    input: ModelInput
    said: Floats


def _predict_configs(
    explorer: Explorer, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
) -> dict[str, _Asked]:
    """Predict the latency and validity of configs with the models P, V and A, as the tuner does.

    Args:
        explorer: the tuner.
        problem: the workload and its space.
        state: state of the tuner, which contains the trained models.
        history: trials that the models have learned from.
        lowered: the compiled configs.

    Returns:
        The predictions by model ("P", "V" and "A"), without models that cannot predict the configs.
    """
    inputs = explorer.model_inputs(problem, state, history, lowered)
    return {
        role: _Asked(inputs[role], state.models[role].predict(inputs[role].features)
                     + inputs[role].offset)
        for role in ROLES
        if role in inputs
    }  # fmt: skip


def _pair_with_results(asked: dict[str, _Asked], measured: Measurements) -> dict[str, Floats]:
    """Combine predictions with the measured results of the same configs.

    Args:
        asked: predictions by model.
        measured: the measurements.

    Returns:
        The arrays of `JudgedWorkload.pairs`, by model.
    """
    pairs = {}
    for role, item in asked.items():
        valid = measured.valid[item.input.rows]
        truth = np.log2(np.where(valid, measured.latency[item.input.rows], np.nan))
        if role == "V":
            pairs[role] = np.stack([item.said, valid.astype(np.float64), truth])
        else:
            pairs[role] = np.stack([item.said[valid], truth[valid]])
    return pairs


def _measure_unseen(
    target: Target, problem: Problem, history: History, samples: int, seed: int
) -> tuple[Lowered, Measurements]:
    """Draw random configs that the run has never tried, and measure them.

    Args:
        target: the target.
        problem: the workload and its space.
        history: trials of the run.
        samples: number of configs to draw.
        seed: seed of the draw.

    Returns:
        The compiled configs and their measurements.
    """
    rng = np.random.default_rng(seed)
    flat = sample(problem.space, samples, history.tried_indices(problem.space), rng)
    lowered = target.lower(problem.workload, problem.space.unravel(flat))
    return lowered, target.measure(lowered)


def _influence(model: CostModel, asked: _Asked, learned: _Asked, seed: int) -> Influence:
    """Return the influence of features on the predictions of a model.

    Args:
        model: the model.
        asked: predictions to explain; at most `_EXPLAINED` of their configs are drawn.
        learned: predictions for the configs on which the model was trained. Their features
            represent the model's usual inputs.
        seed: seed for drawing configs and for sampled Shapley values.
    """
    exact, features = is_exact(model), asked.input.features
    rng = np.random.default_rng(seed)
    some = features.rows(rng.permutation(len(features))[: _EXPLAINED[exact]])
    known = learned.input.features
    background = known.rows(rng.permutation(len(known))[:_BACKGROUND])
    values = shapley_values(model, some, background, seed)
    corrects = bool(np.abs(asked.input.offset).max(initial=0.0) > 1e-6)
    texts = tuple(column.text for column in features.columns)
    return Influence(features.names, some.matrix, values, exact, corrects, texts)


xgboost = lazy_module("xgboost")

# Random orders of the features per explained row. Each order is also used in reverse, which reduces
# the variance of the sampled values.
_ORDERS = 8


def shapley_values(model: CostModel, x: Features, background: Features, seed: int = 0) -> Floats:
    """Return the Shapley value of each feature for the prediction of each row.

    The values of a row sum to the difference between its prediction and a mean prediction. For
    boosted trees, the mean is the base value of XGBoost or LightGBM. For other models, it is the
    mean prediction over the background rows that were drawn for the row.

    Args:
        model: the model.
        x: features of the n rows to explain.
        background: features of rows that represent the usual inputs of the model; not used for
            boosted trees.
        seed: seed for sampled values; not used for boosted trees.

    Returns:
        Float array of shape (n, features).
    """
    if not isinstance(model, Boosted):
        return _sample_influences(model, x, background, seed)
    if model.suffix == ".ubj":
        data = xgboost.DMatrix(x.matrix, nthread=1)
        return np.asarray(
            model.booster.predict(data, pred_contribs=True, validate_features=False), np.float64
        )[:, :-1]
    result = model.booster.predict(x.matrix, pred_contrib=True, num_threads=1)
    return np.asarray(result, np.float64)[:, :-1]


def is_exact(model: CostModel) -> bool:
    """Return whether the Shapley values of a model are exact, as for boosted trees, or sampled."""
    return isinstance(model, Boosted)


def _sample_influences(model: CostModel, x: Features, background: Features, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    here, there = np.nan_to_num(x.matrix), np.nan_to_num(background.matrix)
    rows, features = here.shape
    total = np.zeros_like(here)
    for _ in range(_ORDERS):
        order = rng.permutation(features)
        start = there[rng.integers(0, len(there), rows)]
        for walk in (order, order[::-1]):
            # In step k, the first k features of the order are those of x, the rest background.
            taken = np.zeros((features + 1, 1, features), dtype=np.bool_)
            for k, feature in enumerate(walk):
                taken[k + 1 :, 0, feature] = True
            steps = np.where(taken, here[None], start[None]).reshape(-1, features)
            predicted = model.predict(Features(steps, x.columns)).reshape(features + 1, rows)
            total[:, walk] += np.diff(predicted, axis=0).T
    return total / (2 * _ORDERS)


def explain_run(
    folder: TunedFolder,
    samples: int,
    seed: int,
    progress: Callable[[int, Workload], None] = lambda place, workload: None,
) -> list[Explained]:
    """Train the cost models of every workload again and evaluate them.

    Args:
        folder: the run.
        samples: number of random untried configs per workload, on which the final models are
            evaluated. They are compiled and measured here.
        seed: seed for drawing these configs.
        progress: function that is called before each workload, with its index and the workload.

    Returns:
        One explanation per workload.

    Raises:
        ExplainError: `samples` is less than 1, or a workload has no models that can be evaluated.
        FolderError: trials are missing.
        WorkloadError: the target has no schedule for a workload.
        TrialStoreError: the trials cannot be read.
    """
    if samples < 1:
        raise ExplainError(
            f"--samples {samples} is too small; evaluate the models on at least 1 config"
        )
    explained = []
    with BLAS_ON_ONE_THREAD:  # with small matrices, threads mostly wait for each other
        for place, workload in enumerate(folder.workloads):
            progress(place, workload)
            explained.append(explain_workload(folder, workload, samples, seed))
    return explained
