"""The budget of measurements: measures configs, counts and stores trials, and ends a search.

A measurement is one config of one layer on one machine that compiled. One that does not compile is
known without a measurement. Every method pays a compile for it, and nothing else. It tries
`RETRIES` others before it leaves a layer alone. Compiles are counted beside measurements. A config
that this search has tried already is answered from memory and costs nothing. What an earlier,
killed run of the same search has recorded counts, but is not simulated again. So the search, which
is a function of its seed and of answers, comes to where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.objectives import METRICS
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.problem import Design
from tilewright.search.round_steps import Known, Trial, measurements_of, trial_at
from tilewright.search.run_record import StoredRun
from tilewright.search.session import Batch
from tilewright.search.trial_store import TrialStore
from tilewright.targets.base import Configs, Lowered, Measurements
from tilewright.targets.capabilities import MeasuresInOnePass, capability, picojoules_of
from tilewright.targets.workload import Workload

RETRIES = 256
"""Configs of a layer that are compiled in a turn, whatever the method, until one compiles."""


class BudgetSpent(Exception):
    """No measurement is left."""


@dataclass
class Tried:
    """Trials of one layer on one machine, by flat index, in order."""

    trials: dict[int, Trial] = field(default_factory=dict)
    joules: dict[int, float] = field(default_factory=dict)
    """Of those that somebody asked for."""

    @property
    def best(self) -> tuple[int, Trial] | None:
        """The fastest valid trial with its flat index, or None."""
        valid = [(t.seconds, flat) for flat, t in self.trials.items() if t.status == "valid"]
        if not valid:
            return None
        flat = min(valid)[1]
        return flat, self.trials[flat]


@dataclass(frozen=True)
class EvaluatedPoint:
    """One measurement, for listeners: its number, and what was measured."""

    trial: int
    design: Design
    workload: Workload
    flat: int
    found: Trial
    metrics: tuple[float, ...]
    """Of the call, as `METRICS` has them for the search's objective."""


Listener = Callable[[EvaluatedPoint], None]


class BudgetedEvaluator:
    """Measures at most `trials` configs. `run` names the search in the store; without a store
    nothing is kept. `objective` is what methods minimise beside the area."""

    def __init__(
        self,
        trials: int,
        store: TrialStore | None = None,
        run: str = "",
        listen: Listener = lambda measured: None,
        objective: Objective = "latency",
    ) -> None:
        self.budget, self.spent, self.compiled = trials, 0, 0
        self.objective: Objective = objective
        self._store, self._run, self._listen = store, run, listen
        self._tried: dict[tuple[int, Workload], Tried] = {}
        self._known: dict[tuple[str, str], tuple[Known, StoredRun]] = {}
        self._batches: dict[tuple[str, str], int] = {}
        self.log: list[EvaluatedPoint] = []

    @property
    def left(self) -> int:
        """Number of measurements that are left."""
        return self.budget - self.spent

    def tried(self, design: Design, workload: Workload) -> Tried:
        """Return the trials of a layer on a machine."""
        return self._tried.setdefault((design.row, workload), Tried())

    def metrics(
        self, design: Design, workload: Workload, flats: Sequence[int], objective: Objective
    ) -> NDArray[np.float64]:
        """Return metrics of a call by measured configs, given by flat index, shape (n,): shape
        (metrics, n), NaN where a config is not valid."""
        tried = self.tried(design, workload)
        seconds = np.array([tried.trials[flat].seconds for flat in flats], np.float64)
        if METRICS[objective] == ("seconds",):
            return seconds[None]
        self._weigh(design, workload, flats, tried)
        joules = np.array([tried.joules[flat] for flat in flats], np.float64)
        each = {"seconds": seconds, "joules": joules}
        return np.stack([each[metric] for metric in METRICS[objective]])

    def _weigh(
        self, design: Design, workload: Workload, flats: Sequence[int], tried: Tried
    ) -> None:
        """Learn what configs spend. The store holds no counters, so they run once more."""
        new = [flat for flat in dict.fromkeys(flats) if flat not in tried.joules]
        if not new:
            return
        configs = design.target.space(workload).unravel(np.array(new, np.int64))
        machine = design.measured_on
        measured = machine.measure(machine.lower(workload, configs))
        spent = picojoules_of(design.target, measured)
        assert spent is not None  # checked before the search
        tried.joules |= zip(new, np.where(measured.valid, 1e-12 * spent, np.nan), strict=True)

    def designs(self) -> dict[int, Design]:
        """Return the designs of which anything was measured, by row, in the order of their first
        measurement."""
        return {each.design.row: each.design for each in self.log}

    def lower(self, design: Design, workload: Workload, configs: Configs) -> Lowered:
        """Compile configs (n, knobs); counted as compiles."""
        self.compiled += len(configs)
        return design.measured_on.lower(workload, configs)

    def measure(self, design: Design, lowered: Lowered) -> Measurements:
        """Measure what was compiled. Raises `BudgetSpent` when there are more than are left, after
        those that are left were measured, and `TrialStoreError` or `RunInUse` if they cannot be
        kept."""
        return self._answered(
            design, lowered.workload, lowered.configs,
            lambda rows: (lowered.rows(rows), design.measured_on.measure(lowered.rows(rows))),
        )  # fmt: skip

    def evaluate(self, design: Design, workload: Workload, configs: Configs) -> Measurements:
        """Compile configs (n, knobs) and measure those that compile, without keeping programs.
        Raises as `measure`."""
        machine = design.measured_on
        once = capability(machine, MeasuresInOnePass)

        def done(rows: NDArray[np.int64]) -> tuple[Lowered, Measurements]:
            if once is not None:
                return once.lower_and_measure(workload, configs[rows])
            lowered = machine.lower(workload, configs[rows])
            return lowered, machine.measure(lowered)

        return self._answered(design, workload, configs, done, compiles=True)

    def evaluate_until(
        self, design: Design, workload: Workload, configs: Configs, most: int
    ) -> None:
        """Compile configs (n, knobs) in order until `most` of them compile and are measured. Raises
        as `measure`."""
        goal, at = self.spent + most, 0
        while at < len(configs) and (missing := goal - self.spent) > 0:
            self.evaluate(design, workload, configs[at : at + missing])
            at += missing

    def correct(self, design: Design, workload: Workload, measured: Known) -> None:
        """Put what trials measure now, by flat index, in the place of what the store says of them:
        a repeated search learns that. Raises `TrialStoreError` or `RunInUse`."""
        self._recorded(design, workload)
        _, records = self._known[design.target.fingerprint, workload.id]
        records.correct(measured)

    def _answered(
        self, design: Design, workload: Workload, configs: Configs,
        simulate: Callable[[NDArray[np.int64]], tuple[Lowered, Measurements]],
        compiles: bool = False,
    ) -> Measurements:  # fmt: skip
        space = design.target.space(workload)
        flat, tried = space.ravel(configs).tolist(), self.tried(design, workload)
        new = [k for k, each in enumerate(flat) if each not in tried.trials]
        new = list({flat[k]: k for k in reversed(new)}.values())[::-1]  # each once
        if new and not self.left:
            raise BudgetSpent
        known = self._recorded(design, workload)
        found = {flat[k]: known[flat[k]] for k in new if flat[k] in known}
        missing = np.array([k for k in new if flat[k] not in found], np.int64)
        if len(missing):
            lowered, measured = simulate(missing)
            found |= {flat[k]: trial_at(measured, row) for row, k in enumerate(missing)}
        kept = self._affordable([found[flat[k]] for k in new])
        if len(missing):
            rows = np.flatnonzero(np.isin(missing, new[:kept]))
            self._keep(design, workload, lowered.rows(rows), measured.rows(rows))
        self.compiled += kept * compiles
        for k in new[:kept]:
            tried.trials[flat[k]] = found[flat[k]]
        ran = [flat[k] for k in new[:kept] if found[flat[k]].status != "compile_error"]
        if ran:
            metrics = self.metrics(design, workload, ran, self.objective).T
            for each, own in zip(ran, metrics.tolist(), strict=True):
                self.spent += 1
                told = EvaluatedPoint(self.spent, design, workload, each, found[each], tuple(own))
                self.log.append(told)
                self._listen(told)
        if kept < len(new):
            raise BudgetSpent
        return measurements_of([tried.trials[each] for each in flat])

    def _affordable(self, trials: Sequence[Trial]) -> int:
        """How many of them, in order, what is left pays for."""
        measured = np.cumsum([trial.status != "compile_error" for trial in trials])
        return int(np.searchsorted(measured, self.left, side="right"))

    def _recorded(self, design: Design, workload: Workload) -> Mapping[int, Trial]:
        """What the store holds of this search."""
        if self._store is None:
            return {}
        key = (design.target.fingerprint, workload.id)
        if key not in self._known:
            run = (workload.id, design.target.fingerprint, self._run)
            records = StoredRun(self._store, run, design.target.space(workload))
            self._known[key] = (dict(records.known()), records)
        return self._known[key][0]

    def _keep(
        self, design: Design, workload: Workload, lowered: Lowered, measured: Measurements
    ) -> None:
        if self._store is None or not len(measured):
            return
        key = (design.target.fingerprint, workload.id)
        known, records = self._known[key]
        index = self._batches.get(key, len(known))
        self._batches[key] = index + 1
        records.append(index, Batch(lowered, {}, lowered.configs[:0], 0, measured=measured))
