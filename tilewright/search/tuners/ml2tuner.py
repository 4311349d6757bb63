"""The tuners `ml2tuner`, `default` and `default-blind`, which use Models P, V and A.

The three models are those of ML²Tuner (arXiv 2411.10764). Model P predicts the latency before
compilation, Model V the probability that a config is valid, and Model A the latency of a compiled
program. The published method (`ml2tuner-published`) ranks candidates greedily and spends its first
trials on random configs. This tuner differs from it as follows:

1. The first round compiles configs that are spread over the space. Configs that do not compile and
   duplicates of other programs are dropped. A few of the remaining programs are measured.
2. Models P and A are Gaussian processes. The configs to compile are chosen by the expected
   improvement under Model P, weighted by the probability of being valid from Model V.
3. Model A chooses the batch among all programs that were compiled and not measured, in this round
   or in an earlier one.
4. Model V learns from every compilation and from every trial.
5. Models V and A also learn from the workloads that the run has tuned before.

`default` additionally uses closed-form estimates of the latency, if the target offers them. The
estimates rank the first batch. They are also the mean of the Gaussian processes, which thus learn
only the error of the estimates. If the target offers no estimates, `default` and `default-blind`
can use a model that was trained on other workloads or hardware (`Problem.transferred`) in their
place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.search import candidates
from tilewright.search.acquisition import in_turn, spread_out
from tilewright.search.cost_model_protocols import CostModel, Surrogate
from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    ExplorerState,
    ModelInput,
)
from tilewright.search.history import History, new_programs, noise_of
from tilewright.search.prior import Prior, prior_estimates
from tilewright.search.problem import Belief, Problem
from tilewright.search.registry import register
from tilewright.search.shared_trials import SharedTrials, with_trials
from tilewright.search.tuners.beliefs import PARTS_OF_V, Beliefs
from tilewright.search.tuners.ml2tuner_options import ML2TunerOptions
from tilewright.targets.base import Configs, Lowered
from tilewright.targets.features import Features

_FIRST_TRIALS = 4  # smallest number of trials of the first round
# Configs compiled before the first trial, without and with estimates. With estimates, 16 configs
# suffice to come near the best (benchmarks.tuners.shared_models), and the first result is sooner.
_FIRST_COMPILES = (96, 16)
_LEAST_WORK = 0.75  # share of the first trials with the least work; the rest is spread out
_SPREAD_OVER = 4096  # random configs from which the first round is chosen
_NEAR = 4.0  # maximum distance from the best estimate in the first batch, in expected errors
_SHORT_LIST = 1500  # candidates for which expected improvement is computed
_FASTEST = 8  # number of fastest trials whose neighbours are candidates
_FIRST_A = 3  # smallest number of valid trials to which Model A is fitted
_CHECKS = 1 / 6  # share of the additionally compiled configs that is drawn at random
_MORE = 512  # new configs per round for which a transferred model makes predictions
_BELIEVED = 0.5  # share of the first trials that the shared Model A chooses
_LIKELY = np.log(2.0)  # configs this close to the highest log probability may be compiled first
_CERTAIN = 1e6  # log probability of pending configs, so that they are chosen first
_TAUGHT = 128  # compiled programs, the fastest ones by Model A, from which Model P learns


class ML2Tuner(BaseExplorer[ML2TunerOptions]):
    """Tuner with ML²Tuner's three models, which chooses configs by expected improvement.

    Programs that were compiled but not measured remain candidates in later rounds.
    """

    @property
    def shares(self) -> bool:
        """True if later workloads learn from this one, as set by the option `share`."""
        return self.options.share

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state with which later workloads start, with the trials of one more workload.

        Args:
            problem: the problem of the finished workload.
            state: state that earlier workloads have shared.
            history: trials of the finished workload.
        """
        beliefs = Beliefs(self.options, self.learners, problem, ExplorerState())
        compiled = history.configs[:0] if history.compiled is None else history.compiled
        ran = np.asarray(history.status != "compile_error", dtype=np.bool_)
        lowered = np.concatenate([history.configs, compiled, history.failed])
        prior = beliefs.prior(lowered) if beliefs.estimates else None
        every, unknown = np.arange(len(history)), np.full(len(history), np.nan)
        trials = SharedTrials(
            visible=beliefs.absolute_features(lowered, prior),
            compiled=np.concatenate(
                [ran, np.ones(len(compiled), np.bool_), np.zeros(len(history.failed), np.bool_)]
            ),
            hidden=history.hidden,
            valid=history.valid,
            log_latency=history.log_latency,
            estimate=unknown if prior is None else prior_estimates(prior, every),
        )
        return with_trials(state, trials)

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Return the state before the first round, with shared models and screened configs.

        The shared models are fitted to trials of other workloads. In a large space, the most
        promising configs are selected (screened) once and are the candidates of later rounds. In a
        small space, all configs are candidates, and only the predictions of a transferred model are
        stored, so that they are computed only once.

        Args:
            problem: the problem to tune.
            state: initial state.
        """
        beliefs = self._beliefs(problem, state)
        if beliefs.earlier_workloads:
            models = {name: model for name, model in state.models.items() if name not in PARTS_OF_V}
            self._fit_shared(beliefs, models)
            state = replace(state, models=models)
            beliefs = self._beliefs(problem, state)
        space, passed = problem.space, self.options.passed
        small = 2 * passed >= space.size
        if not beliefs.is_informed or (small and problem.transferred is None):
            return state
        if small:
            return beliefs.screen(np.arange(space.size), space.size)
        looked_at = self.options.screen if beliefs.estimates else self.options.asked
        flat = candidates.draw_configs(space, looked_at, problem.rng(0, "screen"))
        return beliefs.screen(flat, passed)

    # -- a round --------------------------------------------------------------------------------

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose configs to compile, using Models P and V or, before their first fit, the prior.

        If all configs have been lowered, the compiled configs that are not measured yet are
        proposed. The arguments are those of `Explorer.generate`.
        """
        space, rng = problem.space, problem.rng(history.round, "generate")
        beliefs, batch = self._beliefs(problem, state), self._batch_size(history, n)
        seen = history.tried_indices(space)
        if history.compiled is not None:
            seen = np.union1d(seen, space.ravel(history.compiled))
        blind = "P" not in state.models and not beliefs.is_informed
        configs, prior = self._pool(beliefs, history, seen, blind, rng)
        if not len(configs):  # all configs were lowered, so only compiled programs are left
            return Candidates(history.unmeasured_configs(space)[0][:batch])
        wanted = self._compiles(beliefs, history, batch)
        features = beliefs.features(configs, prior) if "P" in state.models else None
        every = Candidates(configs, beliefs.scores(configs, prior, features))
        chance = beliefs.log_chance(every.scores.get("V", np.ones(len(configs))))
        if features is not None:
            promising = self._choose_to_compile(
                beliefs, history, every, prior, features, wanted, batch
            )
            return every.take(promising)
        if prior is None:
            # Do not simply take the most probable configs: they have the smallest tiles.
            rows = np.flatnonzero(chance >= chance.max() - _LIKELY)
            if len(rows) < 4 * wanted:
                rows = np.sort(np.argsort(-chance, kind="stable")[: 4 * wanted])
            if not self.options.spread:
                return every.take(rng.permutation(rows)[:wanted])
            logs = np.log2(np.maximum(space.values(configs[rows]), 0.5))
            return every.take(rows[spread_out(logs, wanted, rng)])
        value = chance - every.scores["P"] / prior.error
        rows = np.argsort(-value, kind="stable")[: max(_SHORT_LIST, wanted)]
        if not beliefs.estimates:
            few = rows[: int(np.ceil(self.options.believed * wanted))]
            return self._spread(beliefs, every.take(few), wanted, rng)
        near = rows[value[rows] > value[rows[0]] - _NEAR]
        points = self.learners.gp_features(problem, configs[near]).matrix
        spread = near[spread_out(points, wanted, rng)]
        return every.take(in_turn(rows, spread, self.options.trust)[:wanted])

    def veto(
        self, problem: Problem, state: ExplorerState, history: History, candidates: Candidates,
        n: int,
    ) -> Candidates:  # fmt: skip
        """Return the candidates unchanged, because `generate` has already used Model V."""
        return candidates

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose the programs to measure, among new programs and those compiled in earlier rounds.

        Model A ranks the programs. If there are too few distinct programs, duplicates and then
        failed compilations fill the batch. The arguments are those of `Explorer.choose`.
        """
        beliefs, batch = self._beliefs(problem, state), self._batch_size(history, n)
        rows = np.flatnonzero(lowered.ok)
        earlier, earlier_hidden = history.unmeasured_configs(problem.space)
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
        said = beliefs.predict_transferred(configs) if len(configs) else None
        distinct = new_programs(history, hidden)
        chosen = distinct[:0]
        if len(distinct):
            some, seen = configs[distinct], hidden.rows(distinct)
            of_some = None if said is None else said.rows(distinct)
            chosen = distinct[self._order(beliefs, history, some, seen, of_some, batch)]
        # Fill the batch with duplicate programs if there are too few new ones, then with failures.
        equal = np.setdiff1d(np.arange(len(configs)), distinct)
        chosen = np.concatenate([chosen, equal])[:batch]
        made, kept = chosen[chosen < len(rows)], chosen[chosen >= len(rows)]
        failed = np.flatnonzero(~lowered.ok)[: batch - len(chosen)]
        picked = np.concatenate([rows[made], failed])
        order = np.concatenate([made, kept])
        measured = np.concatenate([lowered.configs[picked], configs[kept]])
        said = None if said is None or len(failed) else said.rows(order)
        prior = beliefs.prior(measured, said=said)
        features = beliefs.features(measured, prior)
        scores = beliefs.scores(measured, prior, features)
        if self._has_a(state) and not len(failed):
            asked = beliefs.compiled_input(history, measured, prior, features, hidden.rows(order))
            scores["A"] = state.models["A"].predict(asked.features) + asked.offset
        return BatchChoice(picked, scores, configs[kept], keep_compiled=True)

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Retrain Models P, V and A on all trials.

        Model P needs at least two valid trials, and Model A at least three. If there is a
        transferred model, its weights are fitted, and more configs are screened. The arguments are
        those of `Explorer.learn`.
        """
        models, valid = dict(state.models), history.valid
        beliefs = self._beliefs(problem, state)
        compiled, compiled_hidden = history.unmeasured_configs(problem.space)
        everything = np.concatenate([history.configs, compiled, history.failed])
        said = beliefs.predict_transferred(everything)
        if self.options.use_v:
            models = {name: model for name, model in models.items() if name not in PARTS_OF_V}
            self._learn_validity(beliefs, models, history, beliefs.prior(everything, said=said))
        if valid.sum() < 2:
            return self._looked_further(problem, replace(state, models=models), history)
        configs, hidden = history.configs[valid], history.hidden.rows(valid)
        early = None if said is None else said.rows(np.flatnonzero(valid))
        late = beliefs.predict_transferred(configs, hidden)
        beliefs = self._beliefs(problem, beliefs.fit_weights(history, early, late))
        prior, rows = beliefs.prior(configs, said=early), np.arange(len(configs))
        latency, noise = history.log_latency[valid], noise_of(problem, history)
        features = beliefs.features(configs, prior)
        if beliefs.uses_model_a(hidden) and valid.sum() >= _FIRST_A:
            models["draft"] = self.learners.draft(hidden)
            models["draft"].fit(hidden, latency)
            drafted = self._beliefs(problem, replace(beliefs.state, models=models))
            asked = drafted.compiled_input(history, configs, prior, features, hidden, late)
            surrogate = self.learners.surrogate(problem.seed)
            surrogate.fit(asked.features, latency - asked.offset, noise)
            models["A"] = surrogate
        target = latency - prior_estimates(prior, rows)
        drafted = self._beliefs(problem, replace(beliefs.state, models=models))
        surrogate = self.learners.surrogate(problem.seed)
        shared = "shared_A" in models and drafted.workloads_with_counters(compiled_hidden)
        if shared and self._has_a(drafted.state) and len(compiled):
            features, target, noise = self._training_data(
                drafted, history, compiled, compiled_hidden, features, target, noise
            )
        surrogate.fit(features, target, noise)
        models["P"] = surrogate
        return self._looked_further(problem, replace(beliefs.state, models=models), history)

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return the input of each fitted model for the lowered configs, by the model's name.

        The arguments are those of `Explorer.model_inputs`.
        """
        beliefs = self._beliefs(problem, state)
        configs, compiled = lowered.configs, np.flatnonzero(lowered.ok)
        prior, every = beliefs.prior(configs), np.arange(len(configs))
        features, trees = beliefs.features(configs, prior), beliefs.tree_features(configs, prior)
        asked = {
            "P": ModelInput(every, features, prior_estimates(prior, every)),
            "V": ModelInput.without_offset(trees),
            "compiles": ModelInput.without_offset(trees),
        }
        if lowered.hidden.columns:
            with_hidden = trees.append_columns(lowered.hidden.with_prefix("hidden"))
            asked["runs"] = ModelInput.without_offset(with_hidden, compiled)
        if self._has_a(state):
            of_a = beliefs.compiled_input(history, configs, prior, features, lowered.hidden)
            asked["draft"] = ModelInput.without_offset(lowered.hidden, compiled)
            asked["A"] = ModelInput(compiled, of_a.features.rows(compiled), of_a.offset[compiled])
        if "shared_A" in state.models and beliefs.workloads_with_counters(lowered.hidden):
            shared = beliefs.shared_input(lowered.hidden, prior)
            asked["shared_draft"] = ModelInput.without_offset(lowered.hidden, compiled)
            asked["shared_A"] = ModelInput(
                compiled, shared.features.rows(compiled), shared.offset[compiled]
            )
        return {role: given for role, given in asked.items() if role in state.models}

    # -- candidates -----------------------------------------------------------------------------

    def _pool(
        self, beliefs: Beliefs, history: History, seen: NDArray[np.int64], blind: bool,
        rng: np.random.Generator,
    ) -> tuple[Configs, Prior | None]:  # fmt: skip
        """Return the configs that the models score, with their prior predictions.

        In a large space, these are the screened configs and the neighbours of the best trials. If
        no configs were screened, a random sample replaces them. In a small space, these are all
        configs.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            seen: flat indices of configs that must not be proposed, ascending.
            blind: whether nothing can be predicted yet, neither by estimates nor by a model. The
                result is then a random sample.
            rng: random generator.

        Returns:
            Configs of shape (n, knobs), and predictions for them that need no measurement, or None.
        """
        space, size = beliefs.problem.space, self.options.pool
        if blind:
            return space.unravel(candidates.sample(space, _SPREAD_OVER, seen, rng)), None
        if beliefs.problem.transferred is not None and not beliefs.estimates:
            size = self.options.asked  # the transferred model is slow, so it predicts fewer configs
        best = history.configs[history.fastest(_FASTEST)]
        if len(screened := beliefs.screened_indices):
            flat = np.union1d(screened, candidates.neighbours(space, best))
            flat = candidates.exclude_tried(flat, seen)
            if len(flat):
                configs = space.unravel(flat)
                return configs, beliefs.prior(configs)
        whole = 2 * size if beliefs.is_informed else size
        configs = candidates.pool(space, seen, best, size, rng, whole)
        return configs, beliefs.prior(configs)

    def _choose_to_compile(
        self, beliefs: Beliefs, history: History, every: Candidates, prior: Prior | None,
        features: Features, wanted: int, batch: int,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Choose the candidates to compile by expected improvement.

        A few candidates are drawn at random instead, with a preference for promising ones, to test
        the models.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            every: all scored configs.
            prior: predictions for these configs from before any measurement, or None.
            features: input of Model P for these configs.
            wanted: number of candidates to choose.
            batch: number of trials of the round.

        Returns:
            Row indices of `every`, shape (at most wanted,).
        """
        rng = beliefs.problem.rng(history.round, "check")
        chance = beliefs.log_chance(every.scores.get("V", np.ones(len(every))))
        value = chance - every.scores["P"]
        short = np.argsort(-value, kind="stable")[: max(_SHORT_LIST, wanted)]
        goal = self._goal(beliefs, history, "P", every.scores["P"])
        checks = int(np.ceil(_CHECKS * (wanted - batch)))
        asked = ModelInput(short, features.rows(short), prior_estimates(prior, short))
        sure = self._choose_by_improvement(
            beliefs, history, asked, goal, chance[short], wanted - checks, history.pending
        )
        drawn = np.argsort(-(value + rng.gumbel(size=len(value))), kind="stable")
        drawn = drawn[~np.isin(drawn, short[sure])][:checks]
        return np.concatenate([short[sure], drawn])

    def _choose_by_improvement(
        self, beliefs: Beliefs, history: History, asked: ModelInput, goal: float,
        chance: NDArray[np.float64], n: int, pending: Configs | None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Choose `n` candidates by the expected improvement that Model P predicts.

        Configs that other processes are measuring are treated as if they had been chosen first,
        with the latency that Model P predicts. The chosen candidates therefore differ from them.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            asked: input of Model P for the m candidates.
            goal: log2 latency to improve on.
            chance: weighted log probability that each candidate is valid, shape (m,).
            n: number of candidates to choose.
            pending: configs that other processes are measuring, or None.

        Returns:
            Row indices of the chosen candidates.
        """
        model = cast(Surrogate, beliefs.state.models["P"])
        features, offset = asked.features, asked.offset
        busy = 0 if pending is None else len(pending)
        if pending is not None and busy:
            prior = beliefs.prior(pending)
            theirs = beliefs.features(pending, prior)
            matrix = np.concatenate([features.matrix, theirs.matrix])
            features = Features(matrix, features.columns)
            offset = np.concatenate([offset, prior_estimates(prior, np.arange(busy))])
            chance = np.concatenate([chance, np.full(busy, _CERTAIN)])
        rows = model.propose(features, offset, goal, chance, n + busy)
        return rows[rows < len(asked.offset)][:n]

    def _spread(
        self, beliefs: Beliefs, few: Candidates, wanted: int, rng: np.random.Generator
    ) -> Candidates:
        """Append configs that are spread over the space to the candidates of a transferred model.

        The added configs are chosen without the transferred model, because its predictions of
        latency and validity may be wrong.

        Args:
            beliefs: predictions before the first round.
            few: candidates that the transferred model ranks best. They come first in the result.
            wanted: total number of candidates.
            rng: random generator.

        Returns:
            All candidates with their predictions.
        """
        problem = beliefs.problem
        flat = candidates.draw_configs(problem.space, _SPREAD_OVER, rng)
        flat = candidates.exclude_tried(flat, np.sort(problem.space.ravel(few.configs)))
        configs = problem.space.unravel(flat)
        count = max(wanted - len(few), 0)
        rows = spread_out(self.learners.gp_features(problem, configs).matrix, count, rng)
        prior = beliefs.prior(configs[rows])
        return few.followed_by(
            Candidates(configs[rows], beliefs.scores(configs[rows], prior, None))
        )

    def _order(
        self, beliefs: Beliefs, history: History, configs: Configs, hidden: Features,
        said: Belief | None, n: int,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Choose `n` compiled programs to measure, in the order of measurement.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            configs: configs of the programs, shape (m, knobs).
            hidden: counters of the programs, one row per config.
            said: predictions of a transferred model for `configs`, or None.
            n: number of programs to choose.

        Returns:
            Row indices of `configs`.
        """
        state, every = beliefs.state, np.arange(len(configs))
        prior = beliefs.prior(configs, said=said)
        chance = beliefs.log_chance(beliefs.runs(configs, prior, hidden))
        features = beliefs.features(configs, prior)
        if self._has_a(state):
            asked = beliefs.compiled_input(history, configs, prior, features, hidden)
            predicted = state.models["A"].predict(asked.features) + asked.offset
            model = cast(Surrogate, state.models["A"])
            goal = self._goal(beliefs, history, "A", predicted)
            return model.propose(asked.features, asked.offset, goal, chance, n)
        if beliefs.shared_mean(hidden, prior) is not None:
            asked = beliefs.shared_input(hidden, prior)
            model = cast(Surrogate, state.models["shared_A"])
            goal = float((model.predict(asked.features) + asked.offset).min())
            chosen = model.propose(asked.features, asked.offset, goal, chance, n)
            # The models learned on other workloads and may be wrong for this one.
            others = self._first_order(beliefs, configs, prior, features, hidden, chance)
            return in_turn(chosen, others, _BELIEVED)[:n]
        if "P" in state.models:
            asked = ModelInput(every, features, prior_estimates(prior, every))
            predicted = state.models["P"].predict(features) + asked.offset
            goal = self._goal(beliefs, history, "P", predicted)
            return self._choose_by_improvement(
                beliefs, history, asked, goal, chance, n, history.pending
            )
        return self._first_order(beliefs, configs, prior, features, hidden, chance)[:n]

    def _first_order(
        self, beliefs: Beliefs, configs: Configs, prior: Prior | None, features: Features,
        hidden: Features, chance: NDArray[np.float64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Rank compiled programs for measurement before there is a fitted model of this workload.

        If there are closed-form estimates, the given order is kept, because it is the order of the
        estimates. Otherwise, two rankings are merged: programs with the least work first, and
        programs spread over the space. If there is a transferred model, its ranking is merged with
        the result.

        Args:
            beliefs: predictions before the first trial.
            configs: configs of the programs, shape (m, knobs).
            prior: predictions for `configs` from before any measurement, or None.
            features: input of Model P for `configs`.
            hidden: counters of the programs, one row per config.
            chance: weighted log probability that each program is valid, shape (m,).

        Returns:
            All row indices of `configs`, best first.
        """
        every = np.arange(len(configs))
        if beliefs.estimates:
            return every
        if not hidden.columns:
            return np.argsort(-chance, kind="stable")
        least = np.argsort(self.learners.work(hidden) - chance, kind="stable")
        order = in_turn(least, every, _LEAST_WORK)
        prior, _ = beliefs.update_compiled(configs, prior, features, hidden)
        if prior is None:
            return order
        best = np.argsort(prior.log_latency, kind="stable")
        return in_turn(best, order, self.options.believed)

    # -- models ---------------------------------------------------------------------------------

    def _learn_validity(
        self, beliefs: Beliefs, models: dict[str, CostModel], history: History,
        prior: Prior | None,
    ) -> None:  # fmt: skip
        """Fit the parts of Model V, the validity classifier, and add them to `models`.

        The part `compiles` is fitted to all configs that were lowered. The part `V` is fitted to
        the knobs of the trials that compiled. The part `runs` is also fitted to their hidden
        features. `compiles` and `runs` are left out if all their labels are equal.

        Args:
            beliefs: predictions after the rounds so far.
            models: models by name; the fitted parts are added.
            history: trials so far.
            prior: predictions from before any measurement with one row per lowered config: first
                the trials, then the programs that were compiled and not measured, then the failed
                compilations.
        """
        compiled = history.unmeasured_configs(beliefs.problem.space)[0]
        lowered = np.concatenate([history.configs, compiled, history.failed])
        ran = np.asarray(history.status != "compile_error", dtype=np.bool_)
        label = np.zeros(len(lowered), np.bool_)
        label[: len(ran)] = ran
        label[len(ran) : len(ran) + len(compiled)] = True
        trees = beliefs.tree_features(lowered, prior)
        others = [item for item in beliefs.earlier_workloads if item.visible.names == trees.names]
        matrix = np.concatenate([trees.matrix, *(item.visible.matrix for item in others)])
        label = np.concatenate([label, *(item.compiled for item in others)])
        if 0 < label.sum() < len(label):
            models["compiles"] = self._classifier(beliefs.problem)
            models["compiles"].fit(Features(matrix, trees.columns), label.astype(np.float64))
        own = trees.rows(np.flatnonzero(ran)), history.hidden.rows(ran), history.valid[ran]
        self._learn_runs(beliefs.problem, models, [own, *map(_compiled_trials, others)])

    def _learn_runs(
        self, problem: Problem, models: dict[str, CostModel],
        trials: list[tuple[Features, Features, NDArray[np.bool_]]],
    ) -> None:  # fmt: skip
        """Fit the validity classifiers `V` and `runs` to the trials of all workloads.

        Args:
            problem: the tuning problem.
            models: models by name; the fitted classifiers are added.
            trials: visible features, hidden features and labels (valid or not) of each workload.
                Workloads whose programs have different counters than the first workload are left
                out.
        """
        trials = [trial for trial in trials if len(trial[0])]
        trials = [trial for trial in trials if trial[1].names == trials[0][1].names]
        if not trials:
            return
        first = trials[0]
        visible = Features(np.concatenate([trial[0].matrix for trial in trials]), first[0].columns)
        hidden = Features(np.concatenate([trial[1].matrix for trial in trials]), first[1].columns)
        label = np.concatenate([trial[2] for trial in trials])
        models["V"] = self._classifier(problem)
        models["V"].fit(visible, label.astype(np.float64))
        if 0 < label.sum() < len(label) and hidden.columns:
            models["runs"] = self._classifier(problem)
            models["runs"].fit(
                visible.append_columns(hidden.with_prefix("hidden")), label.astype(np.float64)
            )

    def _fit_shared(self, beliefs: Beliefs, models: dict[str, CostModel]) -> None:
        """Fit the shared models to trials of earlier workloads, and add them to `models`.

        This happens before the first trial. The shared models are Model V, which predicts validity,
        and two parts of Model A: a draft model with one price per counter, and a Gaussian process
        that predicts the draft model's error after subtraction of each workload's mean error.

        Args:
            beliefs: predictions before the first trial.
            models: models by name; the fitted models are added.
        """
        if self.options.use_v:
            history = History.empty(beliefs.problem.space)
            prior = beliefs.prior(history.configs) if beliefs.estimates else None
            self._learn_validity(beliefs, models, history, prior)
        columns = beliefs.earlier_workloads[0].hidden.columns
        others = [item for item in beliefs.earlier_workloads if item.hidden.columns == columns]
        valid = [np.flatnonzero(item.valid) for item in others]
        if not self.options.use_a or not columns or sum(map(len, valid)) < _FIRST_A:
            return
        hidden = [item.hidden.rows(rows) for item, rows in zip(others, valid, strict=True)]
        latency = [item.log_latency[rows] for item, rows in zip(others, valid, strict=True)]
        together = Features(np.concatenate([item.matrix for item in hidden]), columns)
        models["shared_draft"] = self.learners.draft(together)
        models["shared_draft"].fit(together, np.concatenate(latency))
        drafted = self._beliefs(beliefs.problem, replace(beliefs.state, models=models))
        estimates = [item.estimate[rows] for item, rows in zip(others, valid, strict=True)]
        features = drafted.shared_features(together, np.concatenate(estimates))
        pairs = zip(hidden, latency, strict=True)
        bias = [drafted.bias(*pair) if len(pair[0]) else 0.0 for pair in pairs]
        target = np.concatenate(latency) - models["shared_draft"].predict(together)
        models["shared_A"] = self.learners.surrogate(beliefs.problem.seed)
        models["shared_A"].fit(features, target - np.repeat(bias, list(map(len, valid))))

    def _training_data(
        self, beliefs: Beliefs, history: History, compiled: Configs, hidden: Features,
        features: Features, target: NDArray[np.float64], noise: NDArray[np.float64] | None,
    ) -> tuple[Features, NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Add compiled but unmeasured programs to the training data of Model P.

        Model A, which has also learned from other workloads, predicts the latency of these
        programs. Its predictions are the targets of the added rows, and its predicted variances are
        their noise. Only the programs with the lowest predictions are added, at most `_TAUGHT`.

        Args:
            beliefs: predictions after the rounds so far, including Model A.
            history: trials so far.
            compiled: configs of the programs, shape (m, knobs).
            hidden: counters of the programs, one row per config.
            features: input of Model P for the trials.
            target: targets of Model P for the trials, shape (n,).
            noise: noise variance of these targets, shape (n,), or None if they are exact.

        Returns:
            Features, targets and noise variances. The rows of the trials come first.
        """
        prior = beliefs.prior(compiled)
        own = beliefs.features(compiled, prior)
        asked = beliefs.compiled_input(history, compiled, prior, own, hidden)
        model = beliefs.state.models["A"]
        predicted = model.predict(asked.features) + asked.offset
        rows = np.argsort(predicted, kind="stable")[:_TAUGHT]
        spread = model.spread(asked.features.rows(rows))
        matrix = np.concatenate([features.matrix, own.matrix[rows]])
        return (
            Features(matrix, features.columns),
            np.concatenate([target, predicted[rows] - prior_estimates(prior, rows)]),
            np.concatenate([np.zeros(len(target)) if noise is None else noise, spread**2]),
        )

    def _looked_further(
        self, problem: Problem, state: ExplorerState, history: History
    ) -> ExplorerState:
        """Return the state with more screened configs, if a transferred model has screened configs.

        Random untried configs are added, because the configs screened so far may not include the
        best configs of the space. The state also stores the model's predictions for the new
        configs.

        Args:
            problem: the problem to tune.
            state: state after the models were retrained.
            history: trials so far.
        """
        beliefs = self._beliefs(problem, state)
        if problem.transferred is None or beliefs.estimates or not len(beliefs.screened_indices):
            return state
        known = np.union1d(history.tried_indices(problem.space), beliefs.screened_indices)
        rng = problem.rng(history.round, "look further")
        flat = candidates.sample(problem.space, _MORE, known, rng)
        return beliefs.remember_screened(flat, self.options.passed) if len(flat) else state

    def _goal(
        self, beliefs: Beliefs, history: History, role: Literal["P", "A"],
        predicted: NDArray[np.float64],
    ) -> float:  # fmt: skip
        """Return the log2 latency to improve on.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            role: model that predicts, "P" (before compilation) or "A" (after compilation).
            predicted: log2 latencies predicted for the candidates. Their minimum is returned if no
                trial is valid yet.
        """
        return float(predicted.min()) if history.best is None else beliefs.goal(history, role)

    # -- how many -------------------------------------------------------------------------------

    def _batch_size(self, history: History, n: int) -> int:
        """Return the number of trials of the next round.

        It is the option `batch`, but at least `_FIRST_TRIALS` in the first round.

        Args:
            history: trials so far.
            n: upper limit of the result.
        """
        return min(
            n, self.options.batch if len(history) else max(self.options.batch, _FIRST_TRIALS)
        )

    def _compiles(self, beliefs: Beliefs, history: History, batch: int) -> int:
        """Return the number of configs to lower, from which `batch` trials are chosen.

        Args:
            beliefs: predictions after the rounds so far.
            history: trials so far.
            batch: number of trials of the round.
        """
        warm = beliefs.problem.transferred is not None and not beliefs.estimates
        alpha = self.options.warm_alpha if warm else self.options.alpha
        if not len(history):
            usual = _FIRST_COMPILES[beliefs.estimates]
            alpha = max((self.options.first or usual) / batch - 1.0, 0.0)
        return beliefs.problem.compiles(batch, alpha, self.options.looking)

    def _has_a(self, state: ExplorerState) -> bool:
        return {"A", "draft"} <= set(state.models)

    def _beliefs(self, problem: Problem, state: ExplorerState) -> Beliefs:
        return Beliefs(self.options, self.learners, problem, state)

    def _classifier(self, problem: Problem) -> CostModel:
        return self.learners.validity(problem.seed, calibrate=0)


def _compiled_trials(trials: SharedTrials) -> tuple[Features, Features, NDArray[np.bool_]]:
    """Return the visible features, hidden features and validity of the trials that compiled.

    Visible features are known before compilation, hidden features only after it.
    """
    rows = np.flatnonzero(trials.compiled[: len(trials.valid)])
    return trials.visible.rows(rows), trials.hidden.rows(rows), trials.valid[rows]


register(
    "ml2tuner", ML2Tuner, ML2TunerOptions,
    summary="ML²Tuner's models P, V and A, with expected improvement among compiled programs",
)  # fmt: skip
register(
    "default", ML2Tuner, ML2TunerOptions,
    summary="Tilewright's own tuner: ml2tuner, with closed-form estimates as its models' mean",
    transfers=True, estimates=True,
)  # fmt: skip
register(
    "default-blind", ML2Tuner, ML2TunerOptions,
    summary="the same without estimates, for hardware that provides none", transfers=True,
)  # fmt: skip
