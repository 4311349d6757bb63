"""Tilewright's own tuner: expected improvement of a Gaussian process times the chance of valid.

What it does beyond ML²Tuner: the performance model knows its own uncertainty and extrapolates; the
first batch covers the space instead of being drawn; failed compiles teach the validity model; the
veto threshold is calibrated. `default` also starts from closed-form estimates of the target, where
it offers them: they rank the first batch, and the process learns only by how much they are wrong.
`default-blind` looks at no estimate. Neither uses anything learned on other workloads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from search import candidates
from search.acquisition import diverse_best, log_expected_improvement, spread_out
from search.explorer import Candidates, Choice, History, Memory, Problem, Scores, Stages
from search.learning import Learners, Matrix
from search.registry import Options, register
from targets.base import Configs, Lowered

_LEAST_CHANCE = 1e-3  # V is not believed beyond this
_SHARE_COST = 2.0  # log-chance lost per doubling of a scratchpad's over-use, before V knows
_ESTIMATE_ERROR = 0.1  # log2 cycles an estimate is expected to be off


class DefaultOptions(Options):
    """Chosen on the replayed tables; `benchmarks/sample_efficiency.py` repeats the ablation."""

    alpha: float = Field(1.0, ge=0, description="configs lowered beyond the batch, per trial")
    estimates: bool = Field(True, description="start from closed-form estimates, if there are any")
    chance_weight: float = Field(1.0, ge=0, description="weight of log P(valid) beside log EI")
    diversity: float = Field(0.5, ge=0, description="penalty on likeness within a batch")
    use_a: bool = Field(True, description="re-rank compiled candidates by hidden features")
    pool: int = Field(8192, ge=64, description="candidates scored where a space is too large")


class Default(Stages):
    """Gaussian process × calibrated validity, on estimates if allowed."""

    def __init__(self, name: str, options: DefaultOptions, learners: Learners) -> None:
        super().__init__(name, options, learners)
        self.table = options

    def generate(self, problem: Problem, memory: Memory, history: History, n: int) -> Candidates:
        rng = problem.rng(history.round, "generate")
        space, wanted = problem.space, self._wanted(n)
        best = history.configs[_fastest(history, 16)]
        configs = candidates.pool(space, history.tried(space), best, self.table.pool, rng)
        if not len(configs):
            return Candidates(configs)
        prior = self._prior(problem, configs)
        if not len(history) and prior is None:
            rows = spread_out(self.learners.smooth(problem, configs)[0], wanted, rng)
            return Candidates(configs[rows])
        scores = self._scores(problem, memory, configs, prior)
        value = self._value(problem, memory, configs, history, scores, prior)
        smooth = self.learners.smooth(problem, configs)[0] if self.table.diversity else np.empty(0)
        rows = diverse_best(value, smooth, 4 * wanted, self.table.diversity)
        return Candidates(configs, scores).take(rows)

    def veto(
        self, problem: Problem, memory: Memory, history: History, candidates: Candidates, n: int
    ) -> Candidates:
        wanted = self._wanted(n)
        model = memory.models.get("V")
        if model is None or "V" not in candidates.scores:
            return candidates.take(np.arange(min(wanted, len(candidates))))
        passed = candidates.scores["V"] >= _threshold(model)
        order = np.concatenate([np.flatnonzero(passed), np.flatnonzero(~passed)])[:wanted]
        kept = candidates.take(order)
        looked_at = int(order[passed[order]].max(initial=-1)) + 1
        return Candidates(kept.configs, kept.scores, int((~passed[:looked_at]).sum()))

    def choose(
        self, problem: Problem, memory: Memory, history: History, lowered: Lowered, n: int
    ) -> Choice:
        prior = self._prior(problem, lowered.configs)
        scores = self._scores(problem, memory, lowered.configs, prior)
        if "A" in memory.models:
            features = self._features(problem, lowered.configs, lowered.hidden)
            offset = 0.0 if prior is None else prior[0]
            scores["A"] = memory.models["A"].predict(features) + offset
        compiled, broken = np.flatnonzero(lowered.ok), np.flatnonzero(~lowered.ok)
        if "A" in scores and history.best is not None:
            best = float(np.log2(history.cycles[history.best]))
            spread = memory.models["A"].spread(features)
            value = log_expected_improvement(scores["A"], spread, best)
            value += self.table.chance_weight * np.log(np.maximum(scores["V"], _LEAST_CHANCE))
            compiled = compiled[np.argsort(-value[compiled], kind="stable")]
        # A place in the batch is spent whether its config compiles or not.
        rows = np.concatenate([compiled, broken])[:n]
        return Choice(rows, {name: score[rows] for name, score in scores.items()})

    def learn(self, problem: Problem, memory: Memory, history: History) -> Memory:
        models = dict(memory.models)
        known = np.concatenate([history.configs, history.failed])
        label = np.concatenate([history.valid, np.zeros(len(history.failed))]).astype(np.float64)
        models["V"] = self.learners.validity(problem.seed)
        models["V"].fit(self._tree_features(problem, known), label)
        valid = history.valid
        if valid.sum() >= 2:
            configs, hidden = history.configs[valid], history.hidden[valid]
            prior = self._prior(problem, configs)
            target = np.log2(history.cycles[valid]) - (0.0 if prior is None else prior[0])
            models["P"] = self.learners.regressor("gaussian", problem.seed)
            models["P"].fit(self._features(problem, configs), target)
            if self.table.use_a and hidden.shape[1] and valid.sum() >= 8:
                models["A"] = self.learners.regressor("gaussian", problem.seed)
                models["A"].fit(self._features(problem, configs, hidden), target)
        return Memory(models)

    # -- scores --------------------------------------------------------------------------------

    def _wanted(self, n: int) -> int:
        return int(np.ceil((self.table.alpha + 1) * n))

    def _prior(
        self, problem: Problem, configs: Configs
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Estimated log2 cycles, and log2 of the fullest scratchpad's share; None if blind."""
        if not self.table.estimates or problem.estimate is None:
            return None
        table, names = problem.estimate(configs)
        shares = [table[:, i] for i, name in enumerate(names) if name.endswith("_share")]
        fullest = np.max(shares, axis=0) if shares else np.ones(len(configs))
        return np.log2(table[:, names.index("cycles")]), np.log2(np.maximum(fullest, 1e-6))

    def _scores(
        self,
        problem: Problem,
        memory: Memory,
        configs: Configs,
        prior: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    ) -> Scores:
        scores: Scores = {}
        if prior is not None:
            scores["P"] = prior[0]
        if "P" in memory.models:
            learned = memory.models["P"].predict(self._features(problem, configs))
            scores["P"] = learned if prior is None else prior[0] + learned
        if "V" in memory.models:
            scores["V"] = memory.models["V"].predict(self._tree_features(problem, configs))
        elif prior is not None:
            scores["V"] = np.exp(-_SHARE_COST * np.maximum(prior[1], 0.0))
        return scores

    def _value(
        self,
        problem: Problem,
        memory: Memory,
        configs: Configs,
        history: History,
        scores: Scores,
        prior: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    ) -> NDArray[np.float64]:
        chance = np.log(np.maximum(scores["V"], _LEAST_CHANCE)) * self.table.chance_weight
        if "P" in memory.models and history.best is not None:
            best = float(np.log2(history.cycles[history.best]))
            spread = memory.models["P"].spread(self._features(problem, configs))
            return log_expected_improvement(scores["P"], spread, best) + chance
        if prior is not None:
            return chance - prior[0] / _ESTIMATE_ERROR
        return chance

    # -- features ------------------------------------------------------------------------------

    def _features(self, problem: Problem, configs: Configs, hidden: Matrix | None = None) -> Matrix:
        smooth = self.learners.smooth(problem, configs)[0]
        if hidden is None:
            return smooth
        return np.concatenate([smooth, np.log2(1.0 + np.nan_to_num(hidden)) / 4.0], axis=1)

    def _tree_features(self, problem: Problem, configs: Configs) -> Matrix:
        visible = self.learners.visible(problem, configs)[0]
        prior = self._prior(problem, configs)
        return visible if prior is None else np.concatenate([visible, prior[1][:, None]], axis=1)


def _fastest(history: History, count: int) -> NDArray[np.int64]:
    """Rows of the fastest valid trials, fastest first."""
    valid = np.flatnonzero(history.valid)
    return valid[np.argsort(history.cycles[valid], kind="stable")[:count]]


def _threshold(model: object) -> float:
    return float(getattr(model, "threshold", 0.0))


register("default", Default, DefaultOptions)
register("default-blind", Default, DefaultOptions, estimates=False)
