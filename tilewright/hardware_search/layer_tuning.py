"""Tunes the layers of a machine with a tuner for single layers, within the measurement budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.flows.tuning import learn, propose_batch
from tilewright.hardware_search.evaluator import RETRIES, BudgetedEvaluator
from tilewright.hardware_search.objectives import METRICS, estimate_objective, scale_to_latency
from tilewright.hardware_search.problem import Design
from tilewright.models import make_explorer
from tilewright.search import Session, round_steps
from tilewright.search.explorer import Candidates
from tilewright.search.registry import registered_tuners
from tilewright.search.round_steps import Known
from tilewright.search.runner import LocalRunner
from tilewright.search.session import Batch
from tilewright.search.task import GivenTask, Task, problem_of
from tilewright.targets.base import Measurements

T = TypeVar("T")

ALPHA = 15.0
"""Value of the tuner's option `alpha`: how many additional configs it compiles per trial. The value
is large because few of the most promising configs compile on a small machine."""


class BudgetedRunner(LocalRunner):
    """Runner of tuning steps that compiles and measures through a `BudgetedEvaluator`.

    If some configs of a round compile, configs that do not compile are left out of the batch,
    because their measurement would bring no new information.
    """

    def __init__(self, evaluator: BudgetedEvaluator, design: Design) -> None:
        super().__init__()
        self._evaluator, self._design = evaluator, design

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a tuning step and return its result.

        Lowering and measuring go through the evaluator and count towards the budget.

        Args:
            step: the step.
            *given: arguments of the step.
        """
        mine: dict[object, Callable[..., Any]] = {
            round_steps.lower_and_choose: self._lower,
            round_steps.measure_batch: self._measure,
        }
        done: T = super().__call__(mine.get(step, step), *given)
        return done

    def _lower(self, task: Task, session: Session, kept: Candidates, n: int) -> Batch:
        lowered = self._evaluator.lower(self._design, task.problem.workload, kept.configs)
        made = lowered.rows(lowered.ok) if lowered.ok.any() else lowered
        batch = round_steps.choose_batch(task, session, made, n)
        # `choose_batch` compiles configs of earlier rounds again. Count these compilations as well.
        self._evaluator.compiled += len(batch.rows) + batch.unmeasured_count - len(made)
        left = lowered.configs[~lowered.ok] if lowered.ok.any() else batch.unmeasured_failed
        count = batch.unmeasured_count + len(lowered) - len(made)
        return replace(batch, unmeasured_failed=left, unmeasured_count=count)

    def _measure(self, task: Task, batch: Batch, known: Known) -> Measurements:
        """Measure a batch of configs of a layer, for a tuner.

        If the search minimises energy or the energy-delay product, the returned measurements
        contain that cost in place of the latency, so that the tuner minimises it.

        Args:
            task: the layer and its tuner.
            batch: the configs to measure.
            known: ignored, because the evaluator remembers earlier trials itself.
        """
        measured = self._evaluator.measure(self._design, batch.rows)
        objective = self._evaluator.objective
        if objective == "latency" or not len(measured):
            return measured
        flats = task.problem.space.ravel(batch.rows.configs).tolist()
        workload = task.problem.workload
        costs = self._evaluator.metrics(self._design, workload, flats, objective).prod(axis=0)
        costs = scale_to_latency(self._design.target, workload, objective, costs)
        return replace(measured, cycles=np.full(len(measured), -1, np.int64), seconds=costs)


class LayerTuning:
    """Tunes the layers of one machine. The tuning of each layer can be continued at any time.

    Args:
        design: the machine.
        evaluator: measures configs within the budget.
        seed: seed of the tuners.
        tuner: name of the tuner.
        options: options of the tuner.
    """

    def __init__(
        self, design: Design, evaluator: BudgetedEvaluator, seed: int, tuner: str = "default",
        options: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.design, self.evaluator, self.seed = design, evaluator, seed
        self._tuner, self._options = tuner, _alpha_option(tuner) | dict(options or {})
        self._run = BudgetedRunner(evaluator, design)
        self._layers: dict[int, tuple[Task, Session]] = {}

    def advance(self, layer: int, trials: int) -> NDArray[np.float64]:
        """Tune a layer with `trials` further trials, and return the metrics of its best trial.

        This can take several rounds, because a tuner may propose fewer trials per round than it is
        asked for; `ml2tuner`, for example, has an option `batch`. Fewer trials are made if the
        space is exhausted, or if none of `RETRIES` configs in a row compiles.

        Args:
            layer: index of the layer in the design.
            trials: number of further trials.

        Returns:
            Metrics per call of the best trial, float array of shape (metrics,) in the order of
            `METRICS` for the objective; infinite if there is no valid trial.

        Raises:
            BudgetSpent: no measurements are left.
        """
        if layer not in self._layers:
            self._layers[layer] = self._start(layer)
        task, session = self._layers[layer]
        goal = len(session.history) + trials
        until = self.evaluator.compiled + RETRIES
        while (missing := goal - len(session.history)) > 0 and self.evaluator.compiled < until:
            session = learn(self._run, task, session)
            batch = propose_batch(self._run, task, session, missing)
            if batch is None:
                break
            if batch.rows.ok.any():
                measured = self._run(round_steps.measure_batch, task, batch, {})
                session = session.extend(replace(batch, measured=measured))
                until = self.evaluator.compiled + RETRIES
                continue
            # No config compiles. Mark all of them as failed, so that the tuner proposes others.
            known = [session.history.failed, batch.rows.configs, batch.unmeasured_failed]
            history = replace(session.history, failed=np.concatenate(known))
            session = replace(session, history=history)
        self._layers[layer] = (task, session)
        best, objective = session.history.best, self.evaluator.objective
        if best is None:
            return np.full(len(METRICS[objective]), np.inf)
        problem = task.problem
        flat = problem.space.ravel(session.history.configs[best][None]).tolist()
        return self.evaluator.metrics(self.design, problem.workload, flat, objective)[:, 0]

    def _start(self, layer: int) -> tuple[Task, Session]:
        target = self.design.target
        workload, objective = self.design.layers[layer].workload, self.evaluator.objective
        problem = problem_of(target, workload, self.seed)
        if objective != "latency" and problem.estimate is not None:
            estimate = partial(estimate_objective, target, workload, objective=objective)
            problem = replace(problem, estimate=estimate)
        task = GivenTask(
            self.design.measured_on, make_explorer(self._tuner, self._options), problem
        )
        return task, Session.start(task)


def _alpha_option(tuner: str) -> dict[str, object]:
    """Return the option `alpha` with the value `ALPHA`; empty if the tuner has no such option."""
    known = registered_tuners().get(tuner)
    return {"alpha": ALPHA} if known is not None and "alpha" in known.options.model_fields else {}
