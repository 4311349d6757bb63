"""ML²Tuner as published (arXiv 2411.10764), with variants that lack one or two of its models.

Model P ranks configs by predicted latency, Model V vetoes configs that are probably invalid, and
Model A ranks compiled configs again by their hidden features, the counters from compilation. In
each round, (α+1)·N candidates are compiled, the best N are measured, and all three models are
retrained.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    ExplorerState,
    ModelInput,
    Scores,
)
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Configs, Lowered
from tilewright.targets.features import Features


class PublishedML2TunerOptions(Options):
    """Options of the published ML²Tuner.

    The paper does not specify many values. A default is the paper's only if its description says
    so.
    """

    alpha: float = Field(
        1.0, ge=0, description="configs lowered in addition to the batch, per trial (α)"
    )
    veto: float = Field(
        0.5, ge=0, le=1, description="V's threshold on the probability of being valid"
    )
    first: int = Field(16, ge=1, description="random trials before the models are used")
    explore: float = Field(
        0.0, ge=0, le=1, description="fraction of each batch that is drawn at random"
    )
    first_v: int = Field(
        0, ge=0, description="random trials before V vetoes; 0 for as many as `first`"
    )
    learner: Literal["xgboost", "lightgbm", "gaussian"] = Field(
        "xgboost",
        description="type of all three models; with 'gaussian', V still uses XGBoost's trees",
    )
    rounds: int = Field(120, ge=1, description="boosting rounds")
    pool: int = Field(
        4096,
        ge=16,
        description="number of candidates to score where a space is too large to score completely",
    )
    use_p: bool = Field(True, description="rank candidates by P; otherwise in random order")
    use_v: bool = Field(True, description="let V veto candidates")
    use_a: bool = Field(
        True, description="lower more configs than are measured and let A re-rank them"
    )


class PublishedML2Tuner(BaseExplorer[PublishedML2TunerOptions]):
    """ML²Tuner as published, with a performance model, a validity model and an advanced model.

    Model P proposes configs by predicted latency, Model V vetoes configs that are probably invalid,
    and Model A ranks the compiled configs by predicted latency from their hidden features.
    """

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the configs that Model P ranks best, or random configs before the first fit.

        The random part of the batch comes first. The arguments are those of `Explorer.generate`.
        """
        rng = problem.rng(history.round, "generate")
        tried = history.tried_indices(problem.space)
        if "P" not in state.models or not self.options.use_p:
            count = n if not state.models else self.options.pool
            flat = candidates.sample(problem.space, count, tried, rng)
            return Candidates(problem.space.unravel(flat))
        best = history.configs[history.fastest(8)]
        configs = candidates.pool(problem.space, tried, best, self.options.pool, rng)
        if len(drawn := self._draw_random_part(problem, history, n)):
            known = problem.space.ravel(configs)
            configs = problem.space.unravel(np.union1d(known, drawn))
        if not len(configs):
            return Candidates(configs)
        predicted = state.models["P"].predict(self._visible_features(problem, configs))
        order = np.lexsort((rng.random(len(configs)), predicted))
        lucky = self._in_random_part(problem, history, configs, n)[order]
        order = np.concatenate([order[lucky], order[~lucky]])
        return Candidates(configs[order], {"P": predicted[order]})

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Remove candidates that Model V predicts to be invalid.

        If too few candidates remain, the vetoed candidates with the highest probability of being
        valid are added. The random part of the batch is never vetoed. The arguments are those of
        `Explorer.veto`.
        """
        wanted = n if "A" not in state.models else int(np.ceil((self.options.alpha + 1) * n))
        if "V" not in state.models or not self.options.use_v:
            return candidates.take(np.arange(min(wanted, len(candidates))))
        features = self.learners.tree_features(problem, candidates.configs)
        chance = state.models["V"].predict(features)
        lucky = self._in_random_part(problem, history, candidates.configs, n)
        passed = np.flatnonzero((chance >= self.options.veto) | lucky)[:wanted]
        vetoed = int(passed[-1]) + 1 - len(passed) if len(passed) else 0
        if len(passed) < wanted:  # the veto was too strict: add the most probable of the rest
            rest = np.flatnonzero((chance < self.options.veto) & ~lucky)
            rest = rest[np.argsort(-chance[rest], kind="stable")]
            vetoed = len(rest)
            passed = np.concatenate([passed, rest[: wanted - len(passed)]])
        kept = candidates.take(passed)
        return Candidates(kept.configs, kept.scores | {"V": chance[passed]}, vetoed)

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose the `n` compiled programs that Model A ranks best.

        The random part of the batch is always chosen. If fewer than `n` configs compiled, configs
        that did not compile fill the batch. The arguments are those of `Explorer.choose`.
        """
        if "A" not in state.models:
            rows = np.arange(min(n, len(lowered)), dtype=np.int64)
            return BatchChoice(rows, self._scores(problem, state, lowered.rows(rows)))
        lucky = self._in_random_part(problem, history, lowered.configs, n)
        compiled, broken = np.flatnonzero(lowered.ok & ~lucky), np.flatnonzero(~lowered.ok & ~lucky)
        hidden = lowered.hidden.rows(compiled)
        features = self._with_hidden(problem, lowered.configs[compiled], hidden)
        predicted = state.models["A"].predict(features)
        # Configs that do not compile rank last, but they fill the batch if it is not full.
        ranked = compiled[np.argsort(predicted, kind="stable")]
        rows = np.concatenate([np.flatnonzero(lucky), ranked, broken])[:n]
        return BatchChoice(rows, self._scores(problem, state, lowered.rows(rows)))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Retrain Models P, V and A on all trials, once there are enough trials.

        The arguments are those of `Explorer.learn`.
        """
        early = 0 < self.options.first_v < self.options.first
        if len(history) < (self.options.first_v if early else self.options.first):
            return state
        seed, kind, rounds = problem.seed + history.round, self.options.learner, self.options.rounds
        valid = history.valid
        models = dict(state.models)
        if self.options.use_v:
            trees = "xgboost" if kind == "gaussian" else kind
            models["V"] = self.learners.classifier(trees, seed, rounds=rounds)
            features = self.learners.tree_features(problem, history.configs)
            models["V"].fit(features, valid.astype(np.float64))
        if len(history) >= self.options.first and valid.sum() >= 2:
            target, configs = history.log_latency[valid], history.configs[valid]
            models["P"] = self.learners.regressor(kind, seed, rounds=rounds)
            models["P"].fit(self._visible_features(problem, configs), target)
            if self.options.use_a:
                models["A"] = self.learners.regressor(kind, seed, rounds=rounds)
                hidden = history.hidden.rows(valid)
                models["A"].fit(self._with_hidden(problem, configs, hidden), target)
        return ExplorerState(models if early or "P" in models else {})

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return the input of each fitted model for the lowered configs, by the model's name.

        The arguments are those of `Explorer.model_inputs`.
        """
        seen = {"P": self._visible_features, "V": self.learners.tree_features}
        asked: dict[str, ModelInput] = {
            role: ModelInput.without_offset(view(problem, lowered.configs))
            for role, view in seen.items()
            if role in state.models
        }
        if "A" in state.models:
            features = self._with_hidden(problem, lowered.configs, lowered.hidden)
            asked["A"] = ModelInput.without_offset(features, np.flatnonzero(lowered.ok))
        return asked

    def _draw_random_part(self, problem: Problem, history: History, n: int) -> NDArray[np.int64]:
        """Draw the configs that are measured in this round regardless of the models' predictions.

        The draw depends only on the round and the trials so far, so all stages of a round get the
        same configs.

        Args:
            problem: the tuning problem.
            history: trials so far.
            n: batch size. Each trial of the batch is random with the probability of the option
                `explore`.

        Returns:
            Flat indices of shape (at most n,).
        """
        rng = problem.rng(history.round, "explore")
        places = int(rng.binomial(n, self.options.explore))
        if not places:
            return np.empty(0, dtype=np.int64)
        return candidates.sample(problem.space, places, history.tried_indices(problem.space), rng)

    def _in_random_part(
        self, problem: Problem, history: History, configs: Configs, n: int
    ) -> NDArray[np.bool_]:
        """Return which configs were drawn at random and are measured regardless of the models.

        Args:
            problem: the tuning problem.
            history: trials so far.
            configs: knob indices, shape (m, knobs).
            n: batch size.

        Returns:
            Bool array of shape (m,).
        """
        drawn = self._draw_random_part(problem, history, n)
        return np.isin(problem.space.ravel(configs), drawn)

    def _visible_features(self, problem: Problem, configs: Configs) -> Features:
        """Return the input of Model P, which predicts the latency before compilation.

        The features depend on the option `learner`: a Gaussian process gets other columns than
        trees.

        Args:
            problem: the tuning problem.
            configs: knob indices, shape (n, knobs).
        """
        if self.options.learner == "gaussian":
            return self.learners.gp_features(problem, configs)
        return self.learners.tree_features(problem, configs)

    def _with_hidden(self, problem: Problem, configs: Configs, hidden: Features) -> Features:
        """Return the input of Model A, which predicts the latency after compilation.

        If the option `learner` is a tree model, every counter of the compiled programs is a column.
        A Gaussian process gets sums and ratios of counters instead.

        Args:
            problem: the tuning problem.
            configs: configs of the programs, shape (n, knobs).
            hidden: counters of the programs, one row per config.
        """
        if self.options.learner == "gaussian":
            counts = self.learners.hidden_features(hidden)
        else:
            counts = hidden.with_prefix("hidden")
        return self._visible_features(problem, configs).append_columns(counts)

    def _scores(self, problem: Problem, state: ExplorerState, rows: Lowered) -> Scores:
        if not state.models or not len(rows):
            return {}
        seen = {"P": self._visible_features, "V": self.learners.tree_features}
        scores = {
            role: model.predict(seen[role](problem, rows.configs))
            for role, model in state.models.items()
            if role in seen
        }
        if "A" in state.models:
            features = self._with_hidden(problem, rows.configs, rows.hidden)
            scores["A"] = state.models["A"].predict(features)
        return scores


register(
    "ml2tuner-published", PublishedML2Tuner, PublishedML2TunerOptions,
    summary="ML²Tuner as published: P proposes, V vetoes, A re-ranks compiled configs",
)  # fmt: skip
register(
    "p", PublishedML2Tuner, PublishedML2TunerOptions,
    summary="published ML²Tuner with Model P only: proposes by predicted speed",
    use_v=False, use_a=False,
)  # fmt: skip
register(
    "p+v", PublishedML2Tuner, PublishedML2TunerOptions,
    summary="published ML²Tuner without Model A: P proposes, V vetoes configs that will "
        "probably fail",
    use_a=False,
)  # fmt: skip
register(
    "p+a", PublishedML2Tuner, PublishedML2TunerOptions,
    summary="published ML²Tuner without Model V: P proposes, A re-ranks, nothing is vetoed",
    use_v=False,
)  # fmt: skip
