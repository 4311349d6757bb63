"""Tilewright's own tuner: expected improvement times the probability that a config is valid.

It differs from ML²Tuner as follows. The performance models are Gaussian processes, which know their
uncertainty and which features matter. A batch is chosen jointly. Model A uses fitted prices of
lowering's counters. Failed compiles train the validity model. The veto is calibrated so that it
hardly ever rejects a good config. `default` also starts from closed-form estimates of the target,
if it offers them: they rank the first batch, and the models learn only the error of the estimates.
`default-blind` uses no estimates: its first batch has the programs with the least work among
programs spread over the space. Neither uses anything learned on other workloads.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.search import candidates
from tilewright.search.acquisition import in_turn, spread_out
from tilewright.search.cost_model_protocols import Surrogate, VetoModel
from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    ExplorerState,
    ModelInput,
)
from tilewright.search.history import History, new_programs, noise_of
from tilewright.search.prior import ESTIMATE_ERROR, Prior, prior_estimates
from tilewright.search.problem import Problem
from tilewright.search.registry import register
from tilewright.search.tuners.default_options import DefaultOptions
from tilewright.search.tuners.surrogate import SurrogateBeliefs
from tilewright.targets.base import Configs, Lowered

_NEAR = 4.0  # expected errors from the best estimate within which the first batch is spread
_SPREAD_OVER = 4096  # configs that a blind first batch is spread over
_SHORT_LIST = 1500  # candidates a batch is chosen from
_DOUBT = 1.0  # log2 latency by which checks allow anything to be wrong
_DRAWN = 2048  # configs that checks are chosen from
_MORE = 512  # new ones a round about which a transferred model is asked, beside those remembered
_CALIBRATED = 32  # trials from which a veto is calibrated where a transferred model knows what runs


class Default(BaseExplorer[DefaultOptions]):
    """Gaussian process and calibrated validity model, on top of estimates if allowed."""

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Return the state before the first round, with a large space screened.

        Screening finds promising configs, the candidates of later rounds. For a small space, only
        the predictions of a transferred model are stored, so that the model is not asked again.
        """
        space, passed = problem.space, self.options.passed
        small = 2 * passed >= space.size
        beliefs = self._beliefs(problem, state)
        if not beliefs.is_informed or (small and problem.transferred is None):
            return state
        if small:
            return beliefs.screen(np.arange(space.size), space.size)
        looked_at = self.options.screen if beliefs.estimates else self.options.asked
        flat = candidates.draw_configs(space, looked_at, problem.rng(0, "screen"))
        return beliefs.screen(flat, passed)

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose configs with the best predictions from a pool of candidates."""
        rng, beliefs = problem.rng(history.round, "generate"), self._beliefs(problem, state)
        wanted = self._compile_count(beliefs, n)
        configs, prior = self._pool(beliefs, history, rng)
        if not len(configs):
            return Candidates(configs)
        if not state.models and prior is None:
            configs = configs[np.sort(rng.permutation(len(configs))[:_SPREAD_OVER])]
            rows = spread_out(self.learners.gp_features(problem, configs).matrix, wanted, rng)
            return Candidates(configs[rows])
        features = beliefs.features(configs, prior) if "P" in state.models else None
        scores = beliefs.scores(configs, prior, features)
        chance = beliefs.log_chance(scores)
        rough = (
            -scores["P"] / (ESTIMATE_ERROR if prior is None else prior.error)
            if "P" in scores
            else 0.0
        )
        rows = np.argsort(-(rough + chance), kind="stable")[: max(_SHORT_LIST, wanted)]
        if features is not None and history.best is not None:
            model = cast(Surrogate, state.models["P"])
            offset = prior_estimates(prior, rows)
            goal = beliefs.goal(history, "P")
            sure = wanted - int(self.options.checks * (wanted - n))
            rows = rows[model.propose(features.rows(rows), offset, goal, chance[rows], sure)]
            every = Candidates(configs, scores)
            return self._fill_with_random(beliefs, history, every, every.take(rows), wanted)
        if prior is not None and not beliefs.estimates:
            few = rows[: int(np.ceil(self.options.believed * wanted))]
            return self._spread(beliefs, Candidates(configs, scores).take(few), wanted, rng)
        if prior is not None:
            rows = self._choose_first(problem, configs, rows, (rough + chance)[rows], wanted, rng)
        return Candidates(configs, scores).take(rows[: 2 * wanted])

    def _pool(
        self, beliefs: SurrogateBeliefs, history: History, rng: np.random.Generator
    ) -> tuple[Configs, Prior | None]:
        """Return the untried configs that the models score, and their prior predictions.

        For a large space these are the screened configs, or else a random sample and the neighbours
        of the best configs.
        """
        space, size = beliefs.problem.space, self.options.pool
        if beliefs.problem.transferred is not None and not beliefs.estimates:
            size = self.options.asked  # each is a question to it
        tried = history.tried_indices(space)
        best = history.configs[history.fastest(8)]
        if len(screened := beliefs.screened_indices):
            flat = np.union1d(screened, candidates.neighbours(space, best))
            flat = candidates.exclude_tried(flat, tried)
            if len(flat):
                configs = space.unravel(flat)
                return configs, beliefs.prior(configs)
        configs = candidates.pool(space, tried, best, size, rng, 2 * size)
        return configs, beliefs.prior(configs)

    def _choose_first(
        self, problem: Problem, configs: Configs, rows: NDArray[np.int64],
        value: NDArray[np.float64], wanted: int, rng: np.random.Generator,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Choose the candidates of the first batch: the best by estimate, and others spread out.

        The spread-out configs show where the estimates are wrong.

        Args:
            problem: the tuning problem.
            configs: all scored configs, shape (m, knobs).
            rows: row indices of `configs`, from the best to the worst by estimate.
            value: estimated merit of these rows, in the same order; higher is better.
            wanted: number of spread-out configs.
            rng: random generator.

        Returns:
            Row indices of `configs`, in the order in which to take them.
        """
        near = rows[value > value[0] - _NEAR]
        spread = near[
            spread_out(self.learners.gp_features(problem, configs[near]).matrix, wanted, rng)
        ]
        return in_turn(rows, spread, self.options.trust)

    def _spread(
        self, beliefs: SurrogateBeliefs, few: Candidates, wanted: int, rng: np.random.Generator
    ) -> Candidates:
        """Combine the candidates of a transferred model with configs spread over the space.

        The spread-out configs are chosen as if there were no transferred model, since it may be
        wrong, also about what compiles.

        Args:
            beliefs: predictions before the first round.
            few: candidates that the transferred model ranks best.
            wanted: number of candidates in all.
            rng: random generator.
        """
        problem = beliefs.problem
        flat = candidates.draw_configs(problem.space, _SPREAD_OVER, rng)
        flat = candidates.exclude_tried(flat, np.sort(problem.space.ravel(few.configs)))
        configs = problem.space.unravel(flat)
        count = max(wanted - len(few), 0)
        rows = spread_out(self.learners.gp_features(problem, configs).matrix, count, rng)
        prior = beliefs.prior(configs[rows])
        scores = beliefs.scores(configs[rows], prior, None)
        return few.followed_by(Candidates(configs[rows], scores))

    def _fill_with_random(
        self, beliefs: SurrogateBeliefs, history: History, every: Candidates, promising: Candidates,
        wanted: int,
    ) -> Candidates:  # fmt: skip
        """Fill the remaining places with random configs that test the predictions.

        Configs that are predicted to be fast and valid are drawn more often.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            every: all scored configs. If there is a transferred model, configs are drawn only from
                these, so that it is not asked about new configs.
            promising: candidates that are already chosen; they come first in the result.
            wanted: number of candidates in all.
        """
        if len(promising) >= wanted:
            return promising
        problem = beliefs.problem
        space, rng = problem.space, problem.rng(history.round, "check")
        if problem.transferred is not None:
            left = ~np.isin(space.ravel(every.configs), space.ravel(promising.configs))
            few = every.take(rng.permutation(np.flatnonzero(left))[:_DRAWN])
        else:
            known = np.union1d(history.tried_indices(space), space.ravel(promising.configs))
            few = Candidates(space.unravel(candidates.sample(space, _DRAWN, known, rng)))
        if not len(few):
            return promising
        if not few.scores:
            prior = beliefs.prior(few.configs)
            features = beliefs.features(few.configs, prior)
            few = Candidates(few.configs, beliefs.scores(few.configs, prior, features))
        scores = few.scores
        weight = beliefs.log_chance(scores) - scores["P"] / _DOUBT
        drawn = np.argsort(-(weight + rng.gumbel(size=len(weight))), kind="stable")
        return promising.followed_by(few.take(drawn[: wanted - len(promising)]))

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Return as many candidates as to lower, those first that model V expects to be valid."""
        wanted = self._compile_count(self._beliefs(problem, state), n)
        if "V" not in state.models:
            return candidates.take(np.arange(min(wanted, len(candidates))))
        passed = cast(VetoModel, state.models["V"]).accept(candidates.scores["V"])
        order = np.concatenate([np.flatnonzero(passed), np.flatnonzero(~passed)])[:wanted]
        kept = candidates.take(order)
        looked_at = int(order[passed[order]].max(initial=-1)) + 1
        return Candidates(kept.configs, kept.scores, int((~passed[:looked_at]).sum()))

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose `n` programs by the predictions that also use hidden features."""
        beliefs, hidden = self._beliefs(problem, state), lowered.hidden
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        prior = beliefs.prior(configs)
        features = beliefs.features(configs, prior)
        scores = beliefs.scores(configs, prior, features)
        prior, features = beliefs.update_compiled(configs, prior, features, hidden)
        fresh = compiled
        if beliefs.uses_model_a(hidden):
            fresh = compiled[new_programs(history, hidden.rows(compiled))]
        if {"A", "draft"} <= set(state.models) and history.best is not None and len(fresh):
            model = cast(Surrogate, state.models["A"])
            features = beliefs.with_hidden(history, features, hidden)
            scores["A"] = model.predict(features) + prior_estimates(prior, np.arange(len(configs)))
            chance = beliefs.log_chance(scores)[fresh]
            goal = beliefs.goal(history, "A")
            promising = fresh[
                model.propose(features.rows(fresh), prior_estimates(prior, fresh), goal, chance, n)
            ]
            fresh = np.concatenate([promising, np.setdiff1d(fresh, promising)])
        elif not beliefs.estimates and beliefs.uses_model_a(hidden):
            fresh = self._first_compiled(lowered, fresh, prior)
        # A place in the batch is spent whether its config compiles or not; what looks like a
        # program before it comes last.
        last = [np.setdiff1d(compiled, fresh), np.flatnonzero(~lowered.ok)]
        rows = np.concatenate([fresh, *last])[:n]
        return BatchChoice(rows, {name: score[rows] for name, score in scores.items()})

    def _first_compiled(
        self, lowered: Lowered, fresh: NDArray[np.int64], prior: Prior | None
    ) -> NDArray[np.int64]:
        """Return the order in which compiled programs are measured before there is any trial.

        Programs with the least work come first, alternating with programs spread over the space. If
        there is a transferred model, the order of its predictions is interleaved too.

        Args:
            lowered: the lowered configs.
            fresh: rows of `lowered` that compiled to distinct programs.
            prior: predictions of a transferred model for the rows of `lowered`, or None.
        """
        work = self.learners.work(lowered.hidden.rows(fresh))
        least = in_turn(fresh[np.argsort(work, kind="stable")], fresh, self.options.trust)
        if prior is None:
            return least
        best = fresh[np.argsort(prior.log_latency[fresh], kind="stable")]
        return in_turn(best, least, self.options.believed)

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Retrain models P, V and A on all trials."""
        models = dict(state.models)
        beliefs = self._beliefs(problem, state)
        failed = self._failed_configs(problem, history)
        known = np.concatenate([history.configs, failed])
        label = np.concatenate([history.valid, np.zeros(len(failed))]).astype(np.float64)
        said = beliefs.predict_transferred(known)
        few = said is not None and len(history) < _CALIBRATED
        models["V"] = self.learners.validity(problem.seed, **({"calibrate": 0} if few else {}))
        models["V"].fit(beliefs.tree_features(known, beliefs.prior(known, said=said)), label)
        valid = history.valid
        if valid.sum() >= 2:
            configs, hidden = history.configs[valid], history.hidden.rows(valid)
            early = None if said is None else said.rows(np.flatnonzero(valid))
            late = beliefs.predict_transferred(configs, hidden)
            beliefs = self._beliefs(problem, beliefs.fit_weights(history, early, late))
            prior, every = beliefs.prior(configs, said=early), np.arange(len(configs))
            target = history.log_latency[valid] - prior_estimates(prior, every)
            features = beliefs.features(configs, prior)
            noise = noise_of(problem, history)
            models["P"] = before = self.learners.surrogate(problem.seed)
            before.fit(features, target, noise)
            if beliefs.uses_model_a(hidden) and valid.sum() >= self.options.first_a:
                models["draft"] = self.learners.draft(hidden)
                models["draft"].fit(hidden, history.log_latency[valid])
                prior, features = beliefs.update_compiled(configs, prior, features, hidden, late)
                target = history.log_latency[valid] - prior_estimates(prior, every)
                drafted = self._beliefs(problem, ExplorerState(models, beliefs.state.arrays))
                features = drafted.with_hidden(history, features, hidden)
                models["A"] = after = self.learners.surrogate(problem.seed)
                after.fit(features, target, noise)
        state = ExplorerState(models, beliefs.state.arrays)
        return self._looked_further(problem, state, history)

    def _looked_further(
        self, problem: Problem, state: ExplorerState, history: History
    ) -> ExplorerState:
        """Return the state with a transferred model's predictions for more configs.

        The configs that the model was asked about so far may lack the best configs of the space.
        """
        beliefs = self._beliefs(problem, state)
        if problem.transferred is None or beliefs.estimates or not len(beliefs.screened_indices):
            return state
        known = np.union1d(history.tried_indices(problem.space), beliefs.screened_indices)
        rng = problem.rng(history.round, "look further")
        flat = candidates.sample(problem.space, _MORE, known, rng)
        return beliefs.remember_screened(flat, self.options.passed) if len(flat) else state

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return the features that each model takes for the lowered configs."""
        beliefs = self._beliefs(problem, state)
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        prior, every = beliefs.prior(configs), np.arange(len(configs))
        features = beliefs.features(configs, prior)
        asked = {
            "V": ModelInput.without_offset(beliefs.tree_features(configs, prior)),
            "P": ModelInput(every, features, prior_estimates(prior, every)),
        }
        if {"A", "draft"} <= set(state.models):
            asked["draft"] = ModelInput.without_offset(lowered.hidden, compiled)
            prior, features = beliefs.update_compiled(configs, prior, features, lowered.hidden)
            features = beliefs.with_hidden(history, features, lowered.hidden)
            asked["A"] = ModelInput(
                compiled, features.rows(compiled), prior_estimates(prior, compiled)
            )
        return {role: item for role, item in asked.items() if role in state.models}

    def _failed_configs(self, problem: Problem, history: History) -> Configs:
        """Return the failed compiles from which Model V, the validity classifier, learns.

        At most as many failures as trials are used. Configs that compiled without being measured
        are not known to be valid, so learning from all failures would make Model V too pessimistic.
        """
        drawn = problem.rng(history.round, "failed").permutation(len(history.failed))
        return history.failed[np.sort(drawn[: len(history)])]

    def _beliefs(self, problem: Problem, state: ExplorerState) -> SurrogateBeliefs:
        return SurrogateBeliefs(self.options, self.learners, problem, state)

    def _compile_count(self, beliefs: SurrogateBeliefs, n: int) -> int:
        """Return how many configs to compile for a batch of `n` trials."""
        blind = not beliefs.state.models and not beliefs.estimates
        warm = beliefs.problem.transferred is not None and not beliefs.estimates
        later = self.options.warm_alpha if warm else self.options.alpha
        alpha = self.options.first_alpha if blind else later
        return beliefs.problem.compiles(n, alpha, self.options.looking)


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
