"""Predictions of latency and validity that the tuner `ml2tuner` makes between rounds.

The predictions combine three sources: closed-form estimates of the target, a transferred model
(trained on other workloads or hardware), and the tuner's own models. The module also computes the
input features of the tuner's own models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.search.cost_model_protocols import Draft, Learners
from tilewright.search.explorer import ExplorerState, ModelInput, Scores
from tilewright.search.history import History
from tilewright.search.prior import Prior, prior_estimates, prior_of, weight_of
from tilewright.search.problem import Belief, Problem
from tilewright.search.shared_trials import SharedTrials, trials_in
from tilewright.search.tuners.ml2tuner_options import ML2TunerOptions
from tilewright.targets.base import Configs
from tilewright.targets.features import Feature, Features

_LEAST_CHANCE = 1e-3  # lower probabilities of Model V are treated as this one
_TRUSTED = 0.5  # a transferred model with a lower weight no longer selects the candidates
SCREENED = "screened"
"""Name of the array in the tuner's state that holds the flat indices of the screened (most
promising) configs, ascending, shape (m,)."""
SAID = "said"
"""Name of the array in the tuner's state that holds the transferred model's predictions for the
screened configs, shape (3, m). The rows are the fields of `Belief`."""
WEIGHTS = "weights"
"""Name of the array in the tuner's state that holds the transferred model's weights before and
after compilation, for Models P and A, shape (2,)."""
_DRAFT = Feature(
    "draft", text="slowdown against the best so far, predicted by the counter regression (log2)"
)
_FULLEST = Feature("estimate", text="estimated usage of the fullest scratchpad (log2)")
_ESTIMATE = Feature(
    "estimate by draft",
    text="estimated latency relative to the counter regression's prediction (log2)",
)
PARTS_OF_V = ("compiles", "V", "runs")
"""Names of the classifiers that form Model V. `compiles` predicts whether a config compiles. `V`
and `runs` predict whether a compiled program is valid: `V` from its knobs, `runs` from its knobs
and hidden features."""


@dataclass(frozen=True)
class Beliefs:
    """All predictions of latency and validity that `ml2tuner` can make between two rounds.

    Attributes:
        options: options of the tuner.
        learners: source of features and untrained models.
        problem: the workload and its search space.
        state: the tuner's state: fitted models by name, and stored predictions as arrays.
    """

    options: ML2TunerOptions
    learners: Learners
    problem: Problem
    state: ExplorerState

    @property
    def estimates(self) -> bool:
        """True if the target offers closed-form estimates and the options allow them."""
        return self.options.estimates and self.problem.estimate is not None

    @property
    def is_informed(self) -> bool:
        """True if latencies can be predicted before the first trial.

        This is the case if there are closed-form estimates or a transferred model.
        """
        return self.estimates or self.problem.transferred is not None

    @property
    def screened_indices(self) -> NDArray[np.int64]:
        """Flat indices of the most promising configs, ascending, shape (m,).

        These configs were chosen before the first trial and may have been extended since. The array
        is empty if no configs were screened, or if a transferred model chose them and the trials
        contradict it.
        """
        weights = self.state.arrays.get(WEIGHTS)
        if SCREENED not in self.state.arrays or (
            not self.estimates and weights is not None and weights[0] < _TRUSTED
        ):
            return np.empty(0, np.int64)
        return self.state.arrays[SCREENED].astype(np.int64)

    def uses_model_a(self, hidden: Features) -> bool:
        """Return whether Model A, which ranks compiled programs, is enabled and has input.

        Args:
            hidden: counters of lowered programs, the input of Model A. Only their columns are used.
        """
        return self.options.use_a and len(hidden.columns) > 0

    # -- before any trial ----------------------------------------------------------------------

    def prior(
        self, configs: Configs, hidden: Features | None = None, said: Belief | None = None
    ) -> Prior | None:
        """Predict configs without measuring them.

        The predictions are closed-form estimates or those of a transferred model, which was trained
        on other workloads or hardware. The transferred model is weighted by how well it predicted
        the trials so far.

        Args:
            configs: knob indices, int array of shape (n, knobs).
            hidden: counters of the compiled programs, one row per config; None if the configs have
                not been compiled.
            said: result of `predict_transferred` for these configs, if it is already known.

        Returns:
            The predictions, or None if there are neither estimates nor a transferred model.
        """
        weights = self.state.arrays.get(WEIGHTS)
        role = 0 if hidden is None else 1
        return prior_of(
            self.problem, configs, said or self.predict_transferred(configs, hidden),
            self.options.estimates,
            1.0 if weights is None else float(weights[role]),
        )  # fmt: skip

    def update_compiled(
        self, configs: Configs, prior: Prior | None, features: Features, hidden: Features,
        said: Belief | None = None,
    ) -> tuple[Prior | None, Features]:  # fmt: skip
        """Update the predictions and features of configs after their compilation.

        Only a transferred model changes them, because it can also use the counters of the programs.
        If there is no such model, `prior` and `features` are returned unchanged.

        Args:
            configs: knob indices, int array of shape (n, knobs).
            prior: predictions before compilation.
            features: input of Model P before compilation.
            hidden: counters of the compiled programs, one row per config.
            said: result of `predict_transferred` for the compiled programs, if it is already known.

        Returns:
            The updated predictions and the updated input of Model P.
        """
        if self.problem.transferred is None:
            return prior, features
        prior = self.prior(configs, hidden, said)
        return prior, self.features(configs, prior)

    def screen(self, flat: NDArray[np.int64], count: int) -> ExplorerState:
        """Select the most promising configs and store their flat indices in the tuner's state.

        Configs are ranked by latency and validity, as predicted without any trial. If there is a
        transferred model, its predictions for the selected configs are stored too, so that they are
        computed only once.

        Args:
            flat: flat indices of the configs to select from, shape (n,).
            count: number of configs to select.

        Returns:
            The new state.
        """
        configs = self.problem.space.unravel(flat)
        said = self.predict_transferred(configs)
        rows = self._promising(configs, said)[:count]
        rows = rows[np.argsort(flat[rows])]
        arrays = {**self.state.arrays, SCREENED: flat[rows]}
        if said is not None:
            arrays[SAID] = said.table[:, rows]
        return replace(self.state, arrays=arrays)

    def remember_screened(self, flat: NDArray[np.int64], count: int) -> ExplorerState:
        """Replace the less promising part of the stored list of promising configs by new configs.

        The transferred model's predictions for the new configs are stored with them.

        Args:
            flat: flat indices of the new configs, shape (n,).
            count: number of configs that stay in the list, the most promising ones.

        Returns:
            The new state.
        """
        before, kept = self.state.arrays[SCREENED].astype(np.int64), self.state.arrays[SAID]
        new = self.predict_transferred(self.problem.space.unravel(flat))
        assert new is not None, "there is a transferred model"
        rows = self._promising(self.problem.space.unravel(before), Belief(*kept))[:count]
        both = np.concatenate([before[rows], flat])
        order = np.argsort(both)
        said = np.concatenate([kept[:, rows], new.table], axis=1)[:, order]
        arrays = {**self.state.arrays, SCREENED: both[order], SAID: said}
        return replace(self.state, arrays=arrays)

    def _promising(self, configs: Configs, said: Belief | None) -> NDArray[np.int64]:
        """Rank configs by predicted latency and validity, without using trials.

        Args:
            configs: knob indices, shape (n, knobs).
            said: predictions of the transferred model for these configs (`predict_transferred`), or
                None if there is no such model.

        Returns:
            Row indices of `configs`, best first.
        """
        prior = prior_of(self.problem, configs, said, self.options.estimates)
        assert prior is not None, "something is believed"
        rough = prior.log_latency / prior.error - np.log(prior.chance)
        return np.argsort(rough, kind="stable")

    def fit_weights(self, history: History, *said: Belief | None) -> ExplorerState:
        """Fit the weights of the transferred model to the trials.

        If the predictions disagree with the trials, the weight is low.

        Args:
            history: trials so far.
            *said: predictions of the transferred model for the valid trials. The first item holds
                the predictions before compilation, which determine the weight for Model P. The
                second item holds the predictions after compilation, for Model A.

        Returns:
            The tuner's state with the weights; unchanged if there is no transferred model.
        """
        latency = history.log_latency[history.valid]
        weights = [weight_of(item, latency) for item in said if item is not None]
        if not weights:
            return self.state
        return replace(self.state, arrays={**self.state.arrays, WEIGHTS: np.array(weights)})

    def predict_transferred(
        self, configs: Configs, hidden: Features | None = None
    ) -> Belief | None:
        """Predict configs with the transferred model.

        Stored predictions of screened configs are reused.

        Args:
            configs: knob indices, int array of shape (n, knobs).
            hidden: counters of the compiled programs, one row per config; None if the configs have
                not been compiled.

        Returns:
            The predictions, or None if there is no transferred model.
        """
        ask = self.problem.transferred
        if ask is None:
            return None
        if hidden is not None or SAID not in self.state.arrays:
            return ask(configs, hidden)
        screened, said = self.state.arrays[SCREENED].astype(np.int64), self.state.arrays[SAID]
        flat = self.problem.space.ravel(configs)
        places = np.minimum(np.searchsorted(screened, flat), len(screened) - 1)
        known = screened[places] == flat
        result = said[:, places].astype(np.float64)
        if not known.all():
            result[:, ~known] = ask(configs[~known], None).table
        return Belief(*result)

    # -- after trials --------------------------------------------------------------------------

    def scores(self, configs: Configs, prior: Prior | None, features: Features | None) -> Scores:
        """Predict the latency and validity of configs with the prior and all fitted models.

        Args:
            configs: knob indices, shape (n, knobs).
            prior: result of the method `prior` for these configs.
            features: input of Model P for `configs`; None to leave Model P out.

        Returns:
            Predictions of shape (n,) by name: `P`, the log2 latency, and `V`, the probability of
            being valid. A prediction that cannot be made is left out.
        """
        scores: Scores = {}
        models = self.state.models
        if prior is not None:
            scores["P"] = prior.log_latency
        if "P" in models and features is not None:
            scores["P"] = models["P"].predict(features) + scores.get("P", 0.0)
        parts = [models[name] for name in ("compiles", "V") if name in models]
        if parts:
            trees = self.tree_features(configs, prior)
            scores["V"] = np.prod([part.predict(trees) for part in parts], axis=0)
        elif prior is not None:
            scores["V"] = prior.chance
        return scores

    def goal(self, history: History, role: Literal["P", "A"]) -> float:
        """Return the log2 latency that a new trial has to beat.

        On a deterministic target, it is the latency of the best trial. If measurements vary, the
        lowest measurement may be a lucky one. The goal is then the lowest latency that the model
        predicts for a valid trial.

        Args:
            history: trials so far; at least one must be valid.
            role: model that predicts, "P" (before compilation) or "A" (after compilation).
        """
        assert history.best is not None, "there is a valid trial"
        if self.problem.deterministic:
            return float(history.log_latency[history.best])
        configs, hidden = history.configs[history.valid], history.hidden.rows(history.valid)
        prior = self.prior(configs, hidden if role == "A" else None)
        features = self.features(configs, prior)
        asked = ModelInput(
            np.arange(len(configs)), features, prior_estimates(prior, np.arange(len(configs)))
        )
        if role == "A":
            asked = self.compiled_input(history, configs, prior, features, hidden)
        return float((self.state.models[role].predict(asked.features) + asked.offset).min())

    def log_chance(self, chance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weighted log probability that configs are valid.

        The tuner adds it to the log expected improvement of each config. The weight is 1, or the
        option `risk` if compiling a config is slower than measuring it, because a failed trial then
        costs little in comparison.

        Args:
            chance: predicted probabilities that configs are valid, shape (n,).

        Returns:
            Array of shape (n,).
        """
        slow = self.problem.affordable_configs(self.options.looking) < 1
        weight = self.options.risk if slow else 1.0
        return np.asarray(weight * np.log(np.maximum(chance, _LEAST_CHANCE)))

    def runs(self, configs: Configs, prior: Prior | None, hidden: Features) -> NDArray[np.float64]:
        """Predict the probability that compiled programs run and give correct results.

        The prediction comes from the classifier `runs`, or from the classifier `V` if `runs` has
        not been fitted.

        Args:
            configs: configs of the programs, shape (n, knobs).
            prior: result of the method `prior` for these configs.
            hidden: counters of the programs, one row per config.

        Returns:
            Probabilities of shape (n,); 1 if no validity model has been fitted.
        """
        models = self.state.models
        trees = self.tree_features(configs, prior)
        if "runs" in models:
            return models["runs"].predict(trees.append_columns(hidden.with_prefix("hidden")))
        return models["V"].predict(trees) if "V" in models else np.ones(len(configs))

    # -- features ------------------------------------------------------------------------------

    def features(self, configs: Configs, prior: Prior | None) -> Features:
        """Return the input of Model P, which predicts the latency before compilation.

        Args:
            configs: knob indices, shape (n, knobs).
            prior: result of the method `prior` for these configs; its features become columns.

        Returns:
            Features with one row per config.
        """
        features = self.learners.gp_features(self.problem, configs)
        return features if prior is None else features.append_columns(prior.features)

    def compiled_input(
        self, history: History, configs: Configs, prior: Prior | None, features: Features,
        hidden: Features, said: Belief | None = None,
    ) -> ModelInput:  # fmt: skip
        """Return the input of Model A, which predicts the latency of compiled programs.

        The columns are:

        - the columns of Model P;
        - sums and ratios of the program's counters;
        - the latency relative to the best trial, as predicted by the draft model, a regression with
          one price per counter.

        The offset, which is added to Model A's predictions, is the latency that the models shared
        between workloads predict. Without shared models, it is the latency that the prior predicts.

        Args:
            history: trials so far.
            configs: configs of the programs, shape (n, knobs).
            prior: result of the method `prior` for these configs before compilation.
            features: input of Model P for `configs`.
            hidden: counters of the programs, one row per config.
            said: result of `predict_transferred` for the programs, if it is already known.
        """
        every, prior_before = np.arange(len(configs)), prior
        prior, features = self.update_compiled(configs, prior, features, hidden, said)
        mean = self.shared_mean(hidden, prior_before)
        best = 0.0 if history.best is None else history.log_latency[history.best]
        drafted = self.state.models["draft"].predict(hidden)
        counts = self.learners.hidden_features(hidden)
        columns = features.append_columns(counts, Features((drafted - best)[:, None], (_DRAFT,)))
        return ModelInput(every, columns, prior_estimates(prior, every) if mean is None else mean)

    def shared_input(self, hidden: Features, prior: Prior | None) -> ModelInput:
        """Return the input of the Model A that all workloads of a run share.

        This model was trained on other workloads to predict the error of the shared draft model, a
        regression with one price per counter. Its columns do not depend on the size of the
        workload. The offset is the draft model's prediction.

        Args:
            hidden: counters of n compiled programs.
            prior: result of the method `prior` for the programs before compilation.
        """
        every = np.arange(len(hidden))
        latency = prior_estimates(prior, every)
        columns = self.shared_features(hidden, latency)
        return ModelInput(every, columns, self.state.models["shared_draft"].predict(hidden))

    def shared_mean(self, hidden: Features, prior: Prior | None) -> NDArray[np.float64] | None:
        """Predict the log2 latency of compiled programs with the models that workloads share.

        Args:
            hidden: counters of n compiled programs.
            prior: result of the method `prior` for the programs before compilation.

        Returns:
            Array of shape (n,), accurate up to a constant; None if there are no trials of other
            workloads.
        """
        if "shared_A" not in self.state.models or not self.workloads_with_counters(hidden):
            return None
        asked = self.shared_input(hidden, prior)
        return self.state.models["shared_A"].predict(asked.features) + asked.offset

    @cached_property
    def earlier_workloads(self) -> list[SharedTrials]:
        """Trials of the workloads that were tuned before this workload.

        The list is empty if there is a transferred model, because a transferred model predicts this
        workload better than models trained on these trials.
        """
        sharing = self.options.share and self.problem.transferred is None
        return trials_in(self.state) if sharing else []

    def workloads_with_counters(self, hidden: Features) -> list[SharedTrials]:
        """Return the trials of those earlier workloads whose programs have the same counters.

        Args:
            hidden: counters of this workload's programs. Only the names of the counters are used.

        Returns:
            Trials of each such workload; empty if there are no counters.
        """
        names = hidden.names
        return [item for item in self.earlier_workloads if names and item.hidden.names == names]

    def shared_features(self, hidden: Features, latency: NDArray[np.float64]) -> Features:
        """Return the input columns of the Model A that workloads share, one row per program.

        Args:
            hidden: counters of the programs.
            latency: log2 latency of the programs by closed-form estimates, shape (n,). It is used
                only if the target offers estimates.
        """
        draft = cast(Draft, self.state.models["shared_draft"])
        columns = self.learners.relative_features(hidden).append_columns(draft.shares(hidden))
        if self.estimates:
            apart = np.nan_to_num(latency - draft.predict(hidden))
            columns = columns.append_columns(Features(apart[:, None], (_ESTIMATE,)))
        return columns

    def bias(self, hidden: Features, log_latency: NDArray[np.float64]) -> float:
        """Return the mean error of the shared draft model on one workload's valid trials, in log2.

        The draft model predicts the latency with one price per counter. A positive value means that
        its predictions are too low.

        Args:
            hidden: counters of the trials' programs, one row per trial.
            log_latency: measured log2 latencies of the trials, shape (n,).
        """
        return float((log_latency - self.state.models["shared_draft"].predict(hidden)).mean())

    def tree_features(self, configs: Configs, prior: Prior | None) -> Features:
        """Return the input of Model V, which predicts whether a config is valid.

        If Model V is shared with other workloads, the columns are those of `absolute_features`.

        Args:
            configs: knob indices, shape (n, knobs).
            prior: result of the method `prior` for these configs. Its estimate of the fullest
                scratchpad becomes a column.

        Returns:
            Features with one row per config.
        """
        if self.earlier_workloads:
            return self.absolute_features(configs, prior)
        features = self.learners.tree_features(self.problem, configs)
        if prior is None:
            return features
        return features.append_columns(Features(prior.log_share[:, None], (_FULLEST,)))

    def absolute_features(self, configs: Configs, prior: Prior | None) -> Features:
        """Return the input of a Model V that all workloads of a run share.

        Args:
            configs: knob indices, shape (n, knobs).
            prior: result of the method `prior` for these configs. Its estimate of the fullest
                scratchpad becomes a column if it is a closed-form estimate.

        Returns:
            Features with one row per config. All spaces with the same knobs have the same columns.
        """
        features = self.learners.absolute_features(self.problem, configs)
        if prior is None or not self.estimates:
            return features
        return features.append_columns(Features(prior.log_share[:, None], (_FULLEST,)))
