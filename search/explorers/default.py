"""Tilewright's own tuner: expected improvement of a Gaussian process times the chance of valid.

What it does beyond ML²Tuner: the performance models know their own uncertainty and which features
matter; a batch is chosen together, each member knowing the others; Model A sees what a price a
counted thing would predict; failed compiles teach the validity model; the veto is calibrated to
cost hardly any good config. `default` also starts from closed-form estimates of the target, where
it offers them: they rank the first batch, and the models learn only by how much they are wrong.
`default-blind` looks at no estimate: its first batch is what does least work among programs spread
over the space. Neither uses anything learned on other workloads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from search import candidates
from search.acquisition import in_turn, spread_out
from search.explorer import (
    BaseExplorer,
    Candidates,
    Choice,
    ExplorerState,
    History,
    ModelInput,
    Scores,
    noise_of,
)
from search.learning import Learners, Surrogate, VetoModel
from search.prior import ESTIMATE_ERROR, Prior, estimated, prior_of, weight_of
from search.problem import Problem
from search.programs import new_programs
from search.registry import Options, register
from targets.base import Configs, Lowered
from targets.features import Feature, Features

_LEAST_CHANCE = 1e-3  # V is not believed beyond this
_NEAR = 4.0  # expected errors from the best estimate within which the first batch is spread
_SPREAD_OVER = 4096  # configs that a blind first batch is spread over
_BELIEVED = 0.5  # part of a first batch that a transferred model names, of what is not spread
SCREENED = "screened"
"""The explorer's name for what it screened."""
WEIGHTS = "weights"
"""Its name for how far a transferred model is believed, by P and by A; shape (2,)."""
_DRAFT = Feature("draft", text="how much slower than the best so far by a price a count (log2)")
_FULLEST = Feature("estimate", text="estimated share of the fullest scratchpad (log2)")
_SHORT_LIST = 1500  # candidates a batch is chosen from
_DOUBT = 1.0  # log2 latency by which checks allow anything to be wrong
_DRAWN = 2048  # configs that checks are chosen from


class DefaultOptions(Options):
    """Chosen on the recorded tables and on C4, C8, C11 of the larger spaces (`first_alpha`: on all
    sixteen layers of the extended one);
    `benchmarks/sample_efficiency.py --tuners default:alpha=7,default` repeats an ablation."""

    alpha: float = Field(3.0, ge=0, description="configs lowered beyond the batch, per trial")
    first_alpha: float = Field(47.0, ge=0, description="the same, of a first batch chosen blindly")
    looking: float = Field(
        1.0, ge=0, description="at most so much time for lowering beyond a batch, per time of it"
    )
    estimates: bool = Field(True, description="start from closed-form estimates, if there are any")
    chance_weight: float = Field(1.0, ge=0, description="weight of log P(valid) beside log EI")
    risk: float = Field(0.5, ge=0, description="part of it where compiles are dearer than runs")
    use_a: bool = Field(True, description="choose among compiled configs by hidden features")
    first_a: int = Field(4, ge=2, description="valid trials before Model A is asked")
    trust: float = Field(0.5, gt=0, lt=1, description="part of a first batch that looks best")
    checks: float = Field(
        0.17, ge=0, lt=1, description="part of what is compiled beyond a batch, to check models"
    )
    pool: int = Field(16384, ge=64, description="candidates scored where a space is too large")
    screen: int = Field(16384, ge=64, description="configs estimated where a space is too large")
    passed: int = Field(2048, ge=64, description="of those screened, the best that are scored")


class Default(BaseExplorer):
    """Gaussian process × calibrated validity, on top of estimates where allowed."""

    def __init__(self, name: str, options: DefaultOptions, learners: Learners) -> None:
        super().__init__(name, options, learners)
        self.table = options

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Screens a large space once: flat indices, ascending, of what is estimated to be best."""
        if not self._estimates(problem) or 2 * self.table.passed >= problem.space.size:
            return state
        flat = candidates.drawn(problem.space, self.table.screen, problem.rng(0, "screen"))
        prior = self._prior(problem, state, problem.space.unravel(flat))
        assert prior is not None
        rough = prior.log_latency / prior.error - np.log(prior.chance)
        rows = np.argsort(rough, kind="stable")[: self.table.passed]
        return replace(state, arrays={**state.arrays, SCREENED: np.sort(flat[rows])})

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        rng = problem.rng(history.round, "generate")
        wanted = self._wanted(problem, state, n)
        configs, prior = self._pool(problem, state, history, rng)
        if not len(configs):
            return Candidates(configs)
        if not state.models and prior is None:
            configs = configs[np.sort(rng.permutation(len(configs))[:_SPREAD_OVER])]
            rows = spread_out(self.learners.gp_features(problem, configs).matrix, wanted, rng)
            return Candidates(configs[rows])
        features = self._features(problem, configs, prior) if "P" in state.models else None
        scores = self._scores(problem, state, configs, prior, features)
        chance = self._log_chance(problem, scores)
        rough = (
            -scores["P"] / (ESTIMATE_ERROR if prior is None else prior.error)
            if "P" in scores
            else 0.0
        )
        rows = np.argsort(-(rough + chance), kind="stable")[: max(_SHORT_LIST, wanted)]
        if features is not None and history.best is not None:
            model = cast(Surrogate, state.models["P"])
            offset = estimated(prior, rows)
            goal = self._goal(problem, state, history, "P")
            sure = wanted - int(self.table.checks * (wanted - n))
            rows = rows[model.propose(features.rows(rows), offset, goal, chance[rows], sure)]
            promising = Candidates(configs, scores).take(rows)
            return self._checked(problem, state, history, promising, wanted)
        if prior is not None:
            rows = self._first(problem, configs, rows, (rough + chance)[rows], wanted, rng)
        return Candidates(configs, scores).take(rows[: 2 * wanted])

    def _pool(
        self, problem: Problem, state: ExplorerState, history: History, rng: np.random.Generator
    ) -> tuple[Configs, Prior | None]:
        """What the models are asked about, of a large space a part: what is estimated to be good,
        or else a random part and the neighbours of the best."""
        space, size = problem.space, self.table.pool
        tried = history.tried(space)
        best = history.configs[history.fastest(8)]
        if SCREENED in state.arrays:
            near = candidates.neighbours(space, best)
            screened = state.arrays[SCREENED].astype(np.int64)
            flat = candidates.without(np.union1d(screened, near), tried)
            if len(flat):
                configs = space.unravel(flat)
                return configs, self._prior(problem, state, configs)
        configs = candidates.pool(space, tried, best, size, rng, 2 * size)
        return configs, self._prior(problem, state, configs)

    def _first(
        self,
        problem: Problem,
        configs: Configs,
        rows: NDArray[np.int64],
        value: NDArray[np.float64],
        wanted: int,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """The first batch on estimates: some are believed, the others find out where they err."""
        near = rows[value > value[0] - _NEAR]
        spread = near[
            spread_out(self.learners.gp_features(problem, configs[near]).matrix, wanted, rng)
        ]
        return in_turn(rows, spread, self.table.trust)

    def _checked(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        promising: Candidates,
        wanted: int,
    ) -> Candidates:
        """What looks promising, then, in the places left, draws from the whole space: so models are
        put to the test where they know nothing. What is believed to be fast and valid is drawn
        more often."""
        if len(promising) >= wanted:
            return promising
        space, rng = problem.space, problem.rng(history.round, "check")
        known = np.union1d(history.tried(space), space.ravel(promising.configs))
        configs = space.unravel(candidates.sample(space, _DRAWN, known, rng))
        if not len(configs):
            return promising
        prior = self._prior(problem, state, configs)
        features = self._features(problem, configs, prior)
        scores = self._scores(problem, state, configs, prior, features)
        weight = self._log_chance(problem, scores) - scores["P"] / _DOUBT
        drawn = np.argsort(-(weight + rng.gumbel(size=len(weight))), kind="stable")
        return promising.before(Candidates(configs, scores).take(drawn[: wanted - len(promising)]))

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        wanted = self._wanted(problem, state, n)
        if "V" not in state.models:
            return candidates.take(np.arange(min(wanted, len(candidates))))
        threshold = cast(VetoModel, state.models["V"]).threshold
        passed = candidates.scores["V"] >= threshold
        order = np.concatenate([np.flatnonzero(passed), np.flatnonzero(~passed)])[:wanted]
        kept = candidates.take(order)
        looked_at = int(order[passed[order]].max(initial=-1)) + 1
        return Candidates(kept.configs, kept.scores, int((~passed[:looked_at]).sum()))

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> Choice:
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        prior = self._prior(problem, state, configs)
        features = self._features(problem, configs, prior)
        scores = self._scores(problem, state, configs, prior, features)
        prior, features = self._revealed(problem, state, configs, prior, features, lowered.hidden)
        fresh = compiled
        if self._looks(lowered.hidden):
            fresh = compiled[new_programs(history, lowered.hidden.rows(compiled))]
        if {"A", "draft"} <= set(state.models) and history.best is not None and len(fresh):
            model = cast(Surrogate, state.models["A"])
            features = self._with_hidden(state, history, features, lowered.hidden)
            scores["A"] = model.predict(features) + estimated(prior, np.arange(len(configs)))
            chance = self._log_chance(problem, scores)[fresh]
            goal = self._goal(problem, state, history, "A")
            promising = fresh[
                model.propose(features.rows(fresh), estimated(prior, fresh), goal, chance, n)
            ]
            fresh = np.concatenate([promising, np.setdiff1d(fresh, promising)])
        elif not self._estimates(problem) and self._looks(lowered.hidden):
            work = self.learners.work(lowered.hidden.rows(fresh))
            least = fresh[np.argsort(work, kind="stable")]
            if prior is not None:
                best = fresh[np.argsort(prior.log_latency[fresh], kind="stable")]
                least = in_turn(best, least, _BELIEVED)
            fresh = in_turn(least, fresh, self.table.trust)
        # A place in the batch is spent whether its config compiles or not; what looks like a
        # program before it comes last.
        last = [np.setdiff1d(compiled, fresh), np.flatnonzero(~lowered.ok)]
        rows = np.concatenate([fresh, *last])[:n]
        return Choice(rows, {name: score[rows] for name, score in scores.items()})

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        models = dict(state.models)
        failed = self._failed(problem, history)
        known = np.concatenate([history.configs, failed])
        label = np.concatenate([history.valid, np.zeros(len(failed))]).astype(np.float64)
        models["V"] = self.learners.validity(problem.seed)
        prior = self._prior(problem, state, known)
        models["V"].fit(self._tree_features(problem, known, prior), label)
        valid = history.valid
        if valid.sum() >= 2:
            configs, hidden = history.configs[valid], history.hidden.rows(valid)
            state = self._weighed(problem, state, history)
            prior, every = self._prior(problem, state, configs), np.arange(len(configs))
            target = history.log_latency[valid] - estimated(prior, every)
            features = self._features(problem, configs, prior)
            noise = noise_of(problem, history)
            models["P"] = before = self.learners.surrogate(problem.seed)
            before.fit(features, target, noise)
            if self._looks(hidden) and valid.sum() >= self.table.first_a:
                models["draft"] = self.learners.draft(hidden)
                models["draft"].fit(hidden, history.log_latency[valid])
                prior, features = self._revealed(problem, state, configs, prior, features, hidden)
                target = history.log_latency[valid] - estimated(prior, every)
                features = self._with_hidden(ExplorerState(models), history, features, hidden)
                models["A"] = after = self.learners.surrogate(problem.seed)
                after.fit(features, target, noise)
        return ExplorerState(models, state.arrays)

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        prior, every = self._prior(problem, state, configs), np.arange(len(configs))
        features = self._features(problem, configs, prior)
        asked = {
            "V": ModelInput.plain(self._tree_features(problem, configs, prior)),
            "P": ModelInput(every, features, estimated(prior, every)),
        }
        if {"A", "draft"} <= set(state.models):
            asked["draft"] = ModelInput.plain(lowered.hidden, compiled)
            prior, features = self._revealed(
                problem, state, configs, prior, features, lowered.hidden
            )
            features = self._with_hidden(state, history, features, lowered.hidden)
            asked["A"] = ModelInput(compiled, features.rows(compiled), estimated(prior, compiled))
        return {role: each for role, each in asked.items() if role in state.models}

    def _failed(self, problem: Problem, history: History) -> Configs:
        """Failed compiles that V learns from: no more than there are trials. What compiled without
        being measured is not known to be valid, so all failures would make V a pessimist."""
        drawn = problem.rng(history.round, "failed").permutation(len(history.failed))
        return history.failed[np.sort(drawn[: len(history)])]

    # -- scores --------------------------------------------------------------------------------

    def _wanted(self, problem: Problem, state: ExplorerState, n: int) -> int:
        """How many to compile for a batch of `n`."""
        informed = self._estimates(problem) or problem.transferred is not None
        blind = not state.models and not informed
        alpha = self.table.first_alpha if blind else self.table.alpha
        return problem.compiles(n, alpha, self.table.looking)

    def _estimates(self, problem: Problem) -> bool:
        return self.table.estimates and problem.estimate is not None

    def _looks(self, hidden: Features) -> bool:
        """Whether there is anything to see in lowered programs."""
        return self.table.use_a and len(hidden.columns) > 0

    def _scores(
        self,
        problem: Problem,
        state: ExplorerState,
        configs: Configs,
        prior: Prior | None,
        features: Features | None,
    ) -> Scores:
        scores: Scores = {}
        if prior is not None:
            scores["P"] = prior.log_latency
        if "P" in state.models and features is not None:
            scores["P"] = state.models["P"].predict(features) + scores.get("P", 0.0)
        if "V" in state.models:
            scores["V"] = state.models["V"].predict(self._tree_features(problem, configs, prior))
        elif prior is not None:
            scores["V"] = prior.chance
        return scores

    def _goal(
        self, problem: Problem, state: ExplorerState, history: History, role: Literal["P", "A"]
    ) -> float:
        """log2 latency that a new trial has to beat: the best one's, or, where measuring does not
        repeat, what the model believes of the best, not what the luckiest showed."""
        assert history.best is not None, "there is a valid trial"
        if problem.deterministic:
            return float(history.log_latency[history.best])
        configs, hidden = history.configs[history.valid], history.hidden.rows(history.valid)
        prior = self._prior(problem, state, configs, hidden if role == "A" else None)
        features = self._features(problem, configs, prior)
        if role == "A":
            features = self._with_hidden(state, history, features, hidden)
        believed = state.models[role].predict(features) + estimated(prior, np.arange(len(configs)))
        return float(believed.min())

    def _log_chance(self, problem: Problem, scores: Scores) -> NDArray[np.float64]:
        """Weighed. Where compiling is the dear part of a trial, one that fails costs a fraction of
        one that does not, and more may be risked."""
        dear = problem.affordable(self.table.looking) < 1
        weight = self.table.chance_weight * (self.table.risk if dear else 1.0)
        return np.asarray(weight * np.log(np.maximum(scores["V"], _LEAST_CHANCE)))

    # -- features ------------------------------------------------------------------------------

    def _prior(
        self, problem: Problem, state: ExplorerState, configs: Configs,
        hidden: Features | None = None,
    ) -> Prior | None:  # fmt: skip
        """What is believed of configs, also by what compiling revealed, if that is given."""
        weight = state.arrays.get(WEIGHTS)
        role = 0 if hidden is None else 1
        return prior_of(
            problem, configs, self.table.estimates, 1.0 if weight is None else float(weight[role]),
            hidden,
        )  # fmt: skip

    def _revealed(
        self, problem: Problem, state: ExplorerState, configs: Configs, prior: Prior | None,
        features: Features, hidden: Features,
    ) -> tuple[Prior | None, Features]:  # fmt: skip
        """What is believed of configs, and their features, once they are compiled: the same as
        before, unless a transferred model looks at what that revealed."""
        if problem.transferred is None:
            return prior, features
        prior = self._prior(problem, state, configs, hidden)
        return prior, self._features(problem, configs, prior)

    def _weighed(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """With what trials say of a transferred model: how far P and A are to believe it."""
        if problem.transferred is None:
            return state
        valid = history.valid
        configs, hidden = history.configs[valid], history.hidden.rows(valid)
        weights = [
            weight_of(problem.transferred(configs, known), history.log_latency[valid])
            for known in (None, hidden)
        ]
        return replace(state, arrays={**state.arrays, WEIGHTS: np.array(weights)})

    def _features(self, problem: Problem, configs: Configs, prior: Prior | None) -> Features:
        features = self.learners.gp_features(problem, configs)
        return features if prior is None else features.beside(prior.features)

    def _with_hidden(
        self, state: ExplorerState, history: History, features: Features, hidden: Features
    ) -> Features:
        """Columns for Model A: what the programs count, and how much slower than the best so far
        the draft believes them to be."""
        best = 0.0 if history.best is None else history.log_latency[history.best]
        draft = state.models["draft"].predict(hidden) - best
        counts = self.learners.hidden_features(hidden)
        return features.beside(counts, Features(draft[:, None], (_DRAFT,)))

    def _tree_features(self, problem: Problem, configs: Configs, prior: Prior | None) -> Features:
        features = self.learners.tree_features(problem, configs)
        if prior is None:
            return features
        return features.beside(Features(prior.log_share[:, None], (_FULLEST,)))


register(
    "default", Default, DefaultOptions,
    summary="Tilewright's own: Gaussian process × calibrated veto, on closed-form estimates",
    transfers=True,
)  # fmt: skip
register(
    "default-blind", Default, DefaultOptions,
    summary="the same without estimates, for hardware that has none", estimates=False, trust=0.75,
    transfers=True,
)  # fmt: skip
