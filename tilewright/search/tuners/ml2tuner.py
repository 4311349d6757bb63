"""Implements `ml2tuner`: Models P, V and A of ML²Tuner, with candidates chosen by expected
improvement.

The published method (arXiv 2411.10764, `ml2tuner-published`) ranks candidates greedily, and spends
its first trials on random configs. This tuner keeps the three models and chooses differently:

1. The first round compiles configs that are spread over the space, drops those that do not compile
   or that are equal programs, and measures a few of the rest.
2. Models P and A are Gaussian processes. P proposes configs to compile by expected improvement,
   weighted by Model V's chance that a config is valid.
3. Model A chooses the batch among all programs that were compiled and not measured, in this round
   or in an earlier one.
4. Model V learns from every compile and from every trial.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.acquisition import in_turn, spread_out
from tilewright.search.cost_model_protocols import CostModel, Surrogate
from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    ExplorerState,
    ModelInput,
    Scores,
)
from tilewright.search.history import History, new_programs, noise_of
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Configs, Lowered
from tilewright.targets.features import Feature, Features

_FIRST_TRIALS = 4  # trials of the first round, at least
_LEAST_WORK = 0.75  # share of these that has the least work; the rest is spread over the space
_SPREAD_OVER = 4096  # configs that the first round is chosen from
_SHORT_LIST = 1500  # candidates that expected improvement is computed for
_FASTEST = 8  # trials whose neighbours are candidates
_FIRST_A = 3  # valid trials before Model A is asked
_CHECKS = 1 / 6  # share of what is compiled beyond the batch that is drawn at random
_LEAST_CHANCE = 1e-3  # Model V is not believed beyond this
_DRAFT = Feature("draft", text="how much slower than the best so far by a price a count (log2)")


class ML2TunerOptions(Options):
    """The defaults were chosen on ResNet-18's layers C4, C5, C7, C8, C9 and C10."""

    alpha: float = Field(3.0, ge=0, description="configs lowered beyond the batch, per trial (α)")
    first: int = Field(96, ge=1, description="configs lowered before the first trial")
    batch: int = Field(
        2, ge=1, description="trials of a round at most, whatever the batch of the run"
    )
    looking: float = Field(
        1.0, ge=0,
        description="time for lowering beyond a batch at most, as a multiple of the batch's",
    )  # fmt: skip
    pool: int = Field(16384, ge=64, description="candidates scored where a space is too large")
    use_v: bool = Field(True, description="weigh candidates by the chance of being valid")
    use_a: bool = Field(True, description="choose among compiled configs by hidden features")


class ML2Tuner(BaseExplorer[ML2TunerOptions]):
    """ML²Tuner's three models, with expected improvement and reuse of compiled programs."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        space, rng = problem.space, problem.rng(history.round, "generate")
        batch = self._batch_size(history, n)
        seen = history.tried(space)
        if history.compiled is not None:
            seen = np.union1d(seen, space.ravel(history.compiled))
        if "P" not in state.models:
            flat = candidates.sample(space, _SPREAD_OVER, seen, rng)
            configs = space.unravel(flat)
        else:
            best = history.configs[history.fastest(_FASTEST)]
            size = self.options.pool
            configs = candidates.pool(space, seen, best, size, rng, size)
        if not len(configs):  # everything was lowered: only compiled programs are left
            return Candidates(history.unmeasured(space)[0][:batch])
        wanted = self._compiles(problem, history, batch)
        scores = self._visible_scores(problem, state, configs)
        chance = np.log(np.maximum(scores.get("V", np.ones(len(configs))), _LEAST_CHANCE))
        if "P" not in state.models:
            rows = np.argsort(-chance, kind="stable")[: max(4 * wanted, _SPREAD_OVER // 4)]
            rows = np.arange(len(configs)) if not len(history) else np.sort(rows)
            logs = np.log2(np.maximum(space.values(configs[rows]), 0.5))
            return Candidates(configs, scores).take(rows[spread_out(logs, wanted, rng)])
        value = chance - scores["P"]
        short = np.argsort(-value, kind="stable")[: max(_SHORT_LIST, wanted)]
        model = cast(Surrogate, state.models["P"])
        features = self.learners.gp_features(problem, configs[short])
        goal = self._goal(problem, state, history, "P", scores["P"])
        checks = int(np.ceil(_CHECKS * (wanted - batch)))
        none = np.zeros(len(short))
        sure = short[model.propose(features, none, goal, chance[short], wanted - checks)]
        drawn = np.argsort(-(value + rng.gumbel(size=len(value))), kind="stable")
        drawn = drawn[~np.isin(drawn, sure)][:checks]
        return Candidates(configs, scores).take(np.concatenate([sure, drawn]))

    def veto(
        self, problem: Problem, state: ExplorerState, history: History, candidates: Candidates,
        n: int,
    ) -> Candidates:  # fmt: skip
        return candidates  # Model V has weighed them

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        batch = self._batch_size(history, n)
        rows = np.flatnonzero(lowered.ok)
        earlier, earlier_hidden = history.unmeasured(problem.space)
        flat = problem.space.ravel
        fresh_again = np.isin(flat(earlier), flat(lowered.configs))
        earlier, earlier_hidden = earlier[~fresh_again], earlier_hidden.rows(~fresh_again)
        hidden = lowered.hidden.rows(rows)
        if earlier_hidden.columns == hidden.columns and len(rows):
            matrix = np.concatenate([hidden.matrix, earlier_hidden.matrix])
            hidden = Features(matrix, hidden.columns)
        elif not len(rows):
            hidden = earlier_hidden
        else:
            earlier = earlier[:0]
        configs = np.concatenate([lowered.configs[rows], earlier])
        distinct = new_programs(history, hidden)
        chosen = distinct[:0]
        if len(distinct):
            some, seen = configs[distinct], hidden.rows(distinct)
            chosen = distinct[self._order(problem, state, history, some, seen, batch)]
        # A place that no new program takes is spent on an equal one, then on a failure.
        equal = np.setdiff1d(np.arange(len(configs)), distinct)
        chosen = np.concatenate([chosen, equal])[:batch]
        made, kept = chosen[chosen < len(rows)], chosen[chosen >= len(rows)]
        failed = np.flatnonzero(~lowered.ok)[: batch - len(chosen)]
        picked = np.concatenate([rows[made], failed])
        everything = np.concatenate([lowered.configs[picked], configs[kept]])
        scores = self._visible_scores(problem, state, everything)
        if {"A", "draft"} <= set(state.models) and not len(failed):
            order = np.concatenate([made, kept])
            features = self._features(
                problem, state, history, configs[order], hidden.rows(order), "A"
            )
            scores["A"] = state.models["A"].predict(features)
        return BatchChoice(picked, scores, configs[kept], keep_compiled=True)

    def _order(
        self, problem: Problem, state: ExplorerState, history: History, configs: Configs,
        hidden: Features, n: int,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Return the rows of `n` compiled programs to measure."""
        chance = np.log(np.maximum(self._chance(problem, state, configs, hidden), _LEAST_CHANCE))
        role = "A" if {"A", "draft"} <= set(state.models) else "P"
        if role in state.models:
            features = self._features(problem, state, history, configs, hidden, role)
            model = cast(Surrogate, state.models[role])
            goal = self._goal(problem, state, history, role, model.predict(features))
            return model.propose(features, np.zeros(len(configs)), goal, chance, n)
        if not hidden.columns:
            return np.argsort(-chance, kind="stable")[:n]
        least = np.argsort(self.learners.work(hidden) - chance, kind="stable")
        return in_turn(least, np.arange(len(configs)), _LEAST_WORK)[:n]

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        models, valid = dict(state.models), history.valid
        if self.options.use_v:
            models = {name: model for name, model in models.items() if name not in _PARTS_OF_V}
            self._learn_validity(problem, models, history)
        if valid.sum() >= 2:
            configs, target = history.configs[valid], history.log_latency[valid]
            noise = noise_of(problem, history)
            surrogate = self.learners.surrogate(problem.seed)
            surrogate.fit(self.learners.gp_features(problem, configs), target, noise)
            models["P"] = surrogate
            hidden = history.hidden.rows(valid)
            if self.options.use_a and valid.sum() >= _FIRST_A and hidden.columns:
                models["draft"] = self.learners.draft(hidden)
                models["draft"].fit(hidden, target)
                drafted = ExplorerState(models)
                features = self._features(problem, drafted, history, configs, hidden, "A")
                surrogate = self.learners.surrogate(problem.seed)
                surrogate.fit(features, target, noise)
                models["A"] = surrogate
        return ExplorerState(models)

    def _learn_validity(
        self, problem: Problem, models: dict[str, CostModel], history: History
    ) -> None:
        """Fit the parts of Model V: `compiles` on all that was lowered, `V` on the trials that
        compiled, by their knobs, and `runs` on the same, also by their hidden features. A part
        whose labels are all equal is left out, except for `V`."""
        ran = history.status != "compile_error"
        compiled = history.configs[:0] if history.compiled is None else history.compiled
        lowered = np.concatenate([history.configs, compiled, history.failed])
        label = np.concatenate([ran, np.ones(len(compiled)), np.zeros(len(history.failed))])
        if label.min(initial=1.0) < label.max(initial=0.0):
            models["compiles"] = self._classifier(problem)
            features = self.learners.tree_features(problem, lowered)
            models["compiles"].fit(features, label.astype(np.float64))
        if not ran.any():
            return
        features = self.learners.tree_features(problem, history.configs[ran])
        label = history.valid[ran].astype(np.float64)
        models["V"] = self._classifier(problem)
        models["V"].fit(features, label)
        hidden = history.hidden.rows(ran)
        if label.min() < label.max() and hidden.columns:
            models["runs"] = self._classifier(problem)
            models["runs"].fit(features.beside(hidden.named("hidden")), label)

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        trees = self.learners.tree_features(problem, configs)
        asked = {
            "P": ModelInput.plain(self.learners.gp_features(problem, configs)),
            "V": ModelInput.plain(trees),
            "compiles": ModelInput.plain(trees),
        }
        if lowered.hidden.columns:
            with_hidden = trees.beside(lowered.hidden.named("hidden"))
            asked["runs"] = ModelInput.plain(with_hidden, compiled)
        if {"A", "draft"} <= set(state.models):
            features = self._features(problem, state, history, configs, lowered.hidden, "A")
            asked["draft"] = ModelInput.plain(lowered.hidden, compiled)
            asked["A"] = ModelInput.plain(features, compiled)
        return {role: given for role, given in asked.items() if role in state.models}

    # -- how many -------------------------------------------------------------------------------

    def _batch_size(self, history: History, n: int) -> int:
        """Return the number of trials of the round to come, at most `n`."""
        return min(
            n, self.options.batch if len(history) else max(self.options.batch, _FIRST_TRIALS)
        )

    def _compiles(self, problem: Problem, history: History, batch: int) -> int:
        """Return how many configs to lower for a batch."""
        first = not len(history)
        alpha = max(self.options.first / batch - 1.0, 0.0) if first else self.options.alpha
        return problem.compiles(batch, alpha, self.options.looking)

    # -- what the models say --------------------------------------------------------------------

    def _visible_scores(self, problem: Problem, state: ExplorerState, configs: Configs) -> Scores:
        """Predict latency and validity of configs (n, knobs) before they are compiled."""
        scores: Scores = {}
        if "P" in state.models:
            features = self.learners.gp_features(problem, configs)
            scores["P"] = state.models["P"].predict(features)
        parts = [state.models[name] for name in ("compiles", "V") if name in state.models]
        if parts:
            features = self.learners.tree_features(problem, configs)
            scores["V"] = np.prod([part.predict(features) for part in parts], axis=0)
        return scores

    def _chance(
        self, problem: Problem, state: ExplorerState, configs: Configs, hidden: Features
    ) -> NDArray[np.float64]:
        """Predict the chance that compiled programs (n,) are valid."""
        trees = self.learners.tree_features(problem, configs)
        if "runs" in state.models:
            return state.models["runs"].predict(trees.beside(hidden.named("hidden")))
        if "V" in state.models:
            return state.models["V"].predict(trees)
        return np.ones(len(configs))

    def _goal(
        self, problem: Problem, state: ExplorerState, history: History, role: str,
        predicted: NDArray[np.float64],
    ) -> float:  # fmt: skip
        """Return the log2 latency that a new trial has to beat: the best trial's, or where
        measurements vary, what the model of this role believes of the best. Before any valid trial
        it is the least that is `predicted`."""
        if history.best is None:
            return float(predicted.min())
        if problem.deterministic:
            return float(history.log_latency[history.best])
        configs, hidden = history.configs[history.valid], history.hidden.rows(history.valid)
        features = self._features(problem, state, history, configs, hidden, role)
        return float(state.models[role].predict(features).min())

    def _features(
        self, problem: Problem, state: ExplorerState, history: History, configs: Configs,
        hidden: Features, role: str,
    ) -> Features:  # fmt: skip
        """Return the features of a Gaussian process: knobs for P; for A also the hidden features
        and how much slower than the best trial the draft believes a program to be."""
        features = self.learners.gp_features(problem, configs)
        if role == "P":
            return features
        best = 0.0 if history.best is None else history.log_latency[history.best]
        draft = state.models["draft"].predict(hidden) - best
        counts = self.learners.hidden_features(hidden)
        return features.beside(counts, Features(draft[:, None], (_DRAFT,)))

    def _classifier(self, problem: Problem) -> CostModel:
        return self.learners.validity(problem.seed, calibrate=0)


_PARTS_OF_V = ("compiles", "V", "runs")


register(
    "ml2tuner", ML2Tuner, ML2TunerOptions,
    summary="ML²Tuner's models P, V and A, with expected improvement among compiled programs",
)  # fmt: skip
