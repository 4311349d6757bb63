"""Predicts latencies and validity for `ml2tuner` after the rounds so far: by estimates or a
transferred model, by the tuner's own models, and by both. Also lists the features that these use.
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
from tilewright.search.prior import Prior, estimated, prior_of, weight_of
from tilewright.search.problem import Belief, Problem
from tilewright.search.shared_trials import SharedTrials, trials_in
from tilewright.search.tuners.ml2tuner_options import ML2TunerOptions
from tilewright.targets.base import Configs
from tilewright.targets.features import Feature, Features

_LEAST_CHANCE = 1e-3  # V is not believed beyond this
_TRUSTED = 0.5  # weight of a transferred model from which its choice of a space is kept
SCREENED = "screened"
"""The explorer's name for what it screened: flat indices, ascending."""
SAID = "said"
"""Its name for what a transferred model says of these: the parts of a `Belief`, a row each."""
WEIGHTS = "weights"
"""Its name for how far a transferred model is believed, by P and by A; shape (2,)."""
_DRAFT = Feature("draft", text="how much slower than the best so far by a price a count (log2)")
_FULLEST = Feature("estimate", text="estimated share of the fullest scratchpad (log2)")
_ESTIMATE = Feature("estimate by draft", text="estimated latency by the draft's (log2)")
PARTS_OF_V = ("compiles", "V", "runs")
"""Models of validity: whether a config compiles, and whether a program runs, by its knobs and also
by its hidden features."""


@dataclass(frozen=True)
class Beliefs:
    """All that is known of a problem between two rounds."""

    options: ML2TunerOptions
    learners: Learners
    problem: Problem
    state: ExplorerState

    @property
    def estimates(self) -> bool:
        """Whether closed-form estimates are at hand and allowed."""
        return self.options.estimates and self.problem.estimate is not None

    @property
    def informed(self) -> bool:
        """Whether anything is believed before the first trial."""
        return self.estimates or self.problem.transferred is not None

    @property
    def screened(self) -> NDArray[np.int64]:
        """Flat indices that looked best at the start, ascending, shape (m,); none if there are
        none, or if trials speak against the transferred model that chose them."""
        weights = self.state.arrays.get(WEIGHTS)
        if SCREENED not in self.state.arrays or (
            not self.estimates and weights is not None and weights[0] < _TRUSTED
        ):
            return np.empty(0, np.int64)
        return self.state.arrays[SCREENED].astype(np.int64)

    def looks(self, hidden: Features) -> bool:
        """Whether there is anything to see in lowered programs."""
        return self.options.use_a and len(hidden.columns) > 0

    # -- before any trial ----------------------------------------------------------------------

    def prior(
        self, configs: Configs, hidden: Features | None = None, said: Belief | None = None
    ) -> Prior | None:
        """What is believed of configs (n, knobs), also by what compiling revealed, if that is
        given: of a `hidden` a row a config. `said` is what `said` gives of these, if it is at
        hand."""
        weights = self.state.arrays.get(WEIGHTS)
        role = 0 if hidden is None else 1
        return prior_of(
            self.problem, configs, said or self.said(configs, hidden), self.options.estimates,
            1.0 if weights is None else float(weights[role]),
        )  # fmt: skip

    def revealed(
        self, configs: Configs, prior: Prior | None, features: Features, hidden: Features,
        said: Belief | None = None,
    ) -> tuple[Prior | None, Features]:  # fmt: skip
        """What is believed of configs (n, knobs), and their features, once they are compiled: the
        same as before, unless a transferred model looks at what that revealed. `said` is what
        `said` gives of these, if it is at hand."""
        if self.problem.transferred is None:
            return prior, features
        prior = self.prior(configs, hidden, said)
        return prior, self.features(configs, prior)

    def screen(self, flat: NDArray[np.int64], count: int) -> ExplorerState:
        """The state that remembers which `count` configs look best of these flat indices (n,), and
        what a transferred model says of them."""
        configs = self.problem.space.unravel(flat)
        said = self.said(configs)
        rows = self._promising(configs, said)[:count]
        rows = rows[np.argsort(flat[rows])]
        arrays = {**self.state.arrays, SCREENED: flat[rows]}
        if said is not None:
            arrays[SAID] = said.table[:, rows]
        return replace(self.state, arrays=arrays)

    def remembered(self, flat: NDArray[np.int64], count: int) -> ExplorerState:
        """The state that also remembers what a transferred model says of these flat indices (n,),
        none of them known; of what it remembered before the `count` that look best stay."""
        before, kept = self.state.arrays[SCREENED].astype(np.int64), self.state.arrays[SAID]
        new = self.said(self.problem.space.unravel(flat))
        assert new is not None, "there is a transferred model"
        rows = self._promising(self.problem.space.unravel(before), Belief(*kept))[:count]
        both = np.concatenate([before[rows], flat])
        order = np.argsort(both)
        said = np.concatenate([kept[:, rows], new.table], axis=1)[:, order]
        arrays = {**self.state.arrays, SCREENED: both[order], SAID: said}
        return replace(self.state, arrays=arrays)

    def _promising(self, configs: Configs, said: Belief | None) -> NDArray[np.int64]:
        """Rows of configs (n, knobs), those first that are believed to be fast and valid."""
        prior = prior_of(self.problem, configs, said, self.options.estimates)
        assert prior is not None, "something is believed"
        rough = prior.log_latency / prior.error - np.log(prior.chance)
        return np.argsort(rough, kind="stable")

    def weighed(self, history: History, *said: Belief | None) -> ExplorerState:
        """The state with what trials say of a transferred model: how far P and A are to believe it,
        by what it `said` of the valid ones before they were compiled and after."""
        latency = history.log_latency[history.valid]
        weights = [weight_of(each, latency) for each in said if each is not None]
        if not weights:
            return self.state
        return replace(self.state, arrays={**self.state.arrays, WEIGHTS: np.array(weights)})

    def said(self, configs: Configs, hidden: Features | None = None) -> Belief | None:
        """Of configs (n, knobs), compiled if `hidden` is given, by a transferred model, which is
        not asked twice about what was screened; None without one."""
        ask = self.problem.transferred
        if ask is None:
            return None
        if hidden is not None or SAID not in self.state.arrays:
            return ask(configs, hidden)
        screened, said = self.state.arrays[SCREENED].astype(np.int64), self.state.arrays[SAID]
        flat = self.problem.space.ravel(configs)
        places = np.minimum(np.searchsorted(screened, flat), len(screened) - 1)
        known = screened[places] == flat
        found = said[:, places].astype(np.float64)
        if not known.all():
            found[:, ~known] = ask(configs[~known], None).table
        return Belief(*found)

    # -- after trials --------------------------------------------------------------------------

    def scores(self, configs: Configs, prior: Prior | None, features: Features | None) -> Scores:
        """What is believed of configs (n, knobs) by all there is: `P` log2 latency, `V` chance."""
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
        """log2 latency that a new trial has to beat: the best one's, or, where measuring does not
        repeat, what the model believes of the best, not what the luckiest showed."""
        assert history.best is not None, "there is a valid trial"
        if self.problem.deterministic:
            return float(history.log_latency[history.best])
        configs, hidden = history.configs[history.valid], history.hidden.rows(history.valid)
        prior = self.prior(configs, hidden if role == "A" else None)
        features = self.features(configs, prior)
        asked = ModelInput(
            np.arange(len(configs)), features, estimated(prior, np.arange(len(configs)))
        )
        if role == "A":
            asked = self.compiled_input(history, configs, prior, features, hidden)
        return float((self.state.models[role].predict(asked.features) + asked.offset).min())

    def log_chance(self, chance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weighted log of chances (n,) of being valid. Where compiling is the slow part
        of a trial, a trial that fails costs a fraction of another one, and more may be risked."""
        slow = self.problem.affordable(self.options.looking) < 1
        weight = self.options.risk if slow else 1.0
        return np.asarray(weight * np.log(np.maximum(chance, _LEAST_CHANCE)))

    def runs(self, configs: Configs, prior: Prior | None, hidden: Features) -> NDArray[np.float64]:
        """Predict the chance that compiled programs (n,) are valid."""
        models = self.state.models
        trees = self.tree_features(configs, prior)
        if "runs" in models:
            return models["runs"].predict(trees.beside(hidden.named("hidden")))
        return models["V"].predict(trees) if "V" in models else np.ones(len(configs))

    # -- features ------------------------------------------------------------------------------

    def features(self, configs: Configs, prior: Prior | None) -> Features:
        """What P looks at, a row a config of (n, knobs)."""
        features = self.learners.gp_features(self.problem, configs)
        return features if prior is None else features.beside(prior.features)

    def compiled_input(
        self, history: History, configs: Configs, prior: Prior | None, features: Features,
        hidden: Features, said: Belief | None = None,
    ) -> ModelInput:  # fmt: skip
        """Return what Model A is asked about compiled programs (n,): the columns of P, counts of
        the program, and how much slower than the best so far the draft believes it to be. Its mean
        is what other workloads of the run teach, or else the estimate."""
        every, prior_before = np.arange(len(configs)), prior
        prior, features = self.revealed(configs, prior, features, hidden, said)
        mean = self.shared_mean(hidden, prior_before)
        best = 0.0 if history.best is None else history.log_latency[history.best]
        drafted = self.state.models["draft"].predict(hidden)
        counts = self.learners.hidden_features(hidden)
        columns = features.beside(counts, Features((drafted - best)[:, None], (_DRAFT,)))
        return ModelInput(every, columns, estimated(prior, every) if mean is None else mean)

    def shared_input(self, hidden: Features, prior: Prior | None) -> ModelInput:
        """Return what the Model A of other workloads is asked about compiled programs (n,). It
        learned how far the draft of these workloads is off, from columns that do not depend on a
        workload's size."""
        every = np.arange(len(hidden))
        latency = estimated(prior, every)
        columns = self.shared_features(hidden, latency)
        return ModelInput(every, columns, self.state.models["shared_draft"].predict(hidden))

    def shared_mean(self, hidden: Features, prior: Prior | None) -> NDArray[np.float64] | None:
        """Predict the log2 latency of compiled programs (n,) by the trials of other workloads, up
        to a constant; None if there are none."""
        if "shared_A" not in self.state.models or not self.others_with(hidden):
            return None
        asked = self.shared_input(hidden, prior)
        return self.state.models["shared_A"].predict(asked.features) + asked.offset

    @cached_property
    def others(self) -> list[SharedTrials]:
        """Trials of the workloads of this run that were tuned before. A model that learned on other
        hardware knows more of this workload, and takes their place."""
        sharing = self.options.share and self.problem.transferred is None
        return trials_in(self.state) if sharing else []

    def others_with(self, hidden: Features) -> list[SharedTrials]:
        """Return the trials of other workloads whose programs have the same hidden features."""
        names = hidden.names
        return [each for each in self.others if names and each.hidden.names == names]

    def shared_features(self, hidden: Features, latency: NDArray[np.float64]) -> Features:
        """Return the columns of a Model A that is shared by workloads: a row per program, with its
        estimated log2 latency (n,), if there are estimates."""
        draft = cast(Draft, self.state.models["shared_draft"])
        columns = self.learners.relative_features(hidden).beside(draft.shares(hidden))
        if self.estimates:
            apart = np.nan_to_num(latency - draft.predict(hidden))
            columns = columns.beside(Features(apart[:, None], (_ESTIMATE,)))
        return columns

    def bias(self, hidden: Features, log_latency: NDArray[np.float64]) -> float:
        """Return by how much the shared draft underestimates the log2 latency of one workload's
        valid trials (n,) on average."""
        return float((log_latency - self.state.models["shared_draft"].predict(hidden)).mean())

    def tree_features(self, configs: Configs, prior: Prior | None) -> Features:
        """What V looks at, a row a config of (n, knobs). V that is shared sees nothing that depends
        on the workload's space."""
        if self.others:
            return self.absolute_features(configs, prior)
        features = self.learners.tree_features(self.problem, configs)
        if prior is None:
            return features
        return features.beside(Features(prior.log_share[:, None], (_FULLEST,)))

    def absolute_features(self, configs: Configs, prior: Prior | None) -> Features:
        """Return the columns of a Model V that is shared by workloads, a row per config."""
        features = self.learners.absolute_features(self.problem, configs)
        if prior is None or not self.estimates:
            return features
        return features.beside(Features(prior.log_share[:, None], (_FULLEST,)))
