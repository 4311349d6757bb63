"""Measurement budget of a co-design search: measures configs, and counts and stores the trials.

A measurement is one config of one layer on one machine. A config that does not compile costs no
measurement. It costs a compilation, which is counted separately. Methods try at most `RETRIES`
configs of a layer in a row until one compiles.

The flat index of a config is its position in the layer's search space, as a single integer. A
config that this search has already tried is answered from memory at no cost. Trials that an
interrupted run of the same search has stored are counted, but not simulated again. A search is a
deterministic function of its seed and of the answers, so a repeated run reaches the same state.
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
"""Maximum number of configs of a layer that a method tries in a row until one compiles."""


class BudgetSpent(Exception):
    """Raised if a search requests a measurement after its budget is used up."""


@dataclass
class Tried:
    """Trials of one layer on one machine, in the order in which they were made.

    Attributes:
        trials: the trials, by the flat index of the config.
        joules: energy in joules per call, by the flat index of the config; NaN for invalid configs.
            It contains only configs whose energy was requested.
    """

    trials: dict[int, Trial] = field(default_factory=dict)
    joules: dict[int, float] = field(default_factory=dict)

    @property
    def best(self) -> tuple[int, Trial] | None:
        """Flat index and trial of the fastest valid config; None if no config is valid."""
        valid = [(t.seconds, flat) for flat, t in self.trials.items() if t.status == "valid"]
        if not valid:
            return None
        flat = min(valid)[1]
        return flat, self.trials[flat]


@dataclass(frozen=True)
class EvaluatedPoint:
    """A measurement of one config on one machine, which is passed to listeners.

    Attributes:
        trial: number of the measurement, counted from 1.
        design: the machine.
        workload: the layer.
        flat: flat index of the config.
        found: the trial: status, latency and reason of a failure.
        metrics: metrics per call, in the order of `METRICS` for the objective of the search.
    """

    trial: int
    design: Design
    workload: Workload
    flat: int
    found: Trial
    metrics: tuple[float, ...]


Listener = Callable[[EvaluatedPoint], None]


class BudgetedEvaluator:
    """Measures configs on machines until a budget of measurements is spent.

    All trials are kept in memory, so requesting a config again costs nothing. If a store is given,
    a repeated search reads its trials from the store instead of measuring. These trials count
    towards the budget as well.

    Args:
        trials: maximum number of measurements.
        store: store for the trials; None to keep them only in memory.
        run: name of the search in the store.
        listen: function that is called with each measurement.
        objective: the objective that methods minimise besides the area.

    Attributes:
        budget: maximum number of measurements.
        spent: number of measurements so far.
        compiled: number of compilations so far.
        log: the measurements so far, in order.
    """

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
        """Number of measurements that the budget still allows."""
        return self.budget - self.spent

    def layer_trials(self, design: Design, workload: Workload) -> Tried:
        """Return the trials of a layer on a machine so far.

        The returned object is live: later trials are added to it.

        Args:
            design: the machine.
            workload: the layer.

        Returns:
            The trials.
        """
        return self._tried.setdefault((design.row, workload), Tried())

    def metrics(
        self, design: Design, workload: Workload, flats: Sequence[int], objective: Objective
    ) -> NDArray[np.float64]:
        """Return the metrics of configs that this search has already measured.

        If the metrics include the energy, configs whose energy is not known yet are simulated
        again. This costs no budget.

        Args:
            design: the machine.
            workload: the layer.
            flats: flat indices of n configs.
            objective: the objective whose metrics are returned.

        Returns:
            Metrics per call, float array of shape (metrics, n); NaN for invalid configs.
        """
        tried = self.layer_trials(design, workload)
        seconds = np.array([tried.trials[flat].seconds for flat in flats], np.float64)
        if METRICS[objective] == ("seconds",):
            return seconds[None]
        self._weigh(design, workload, flats, tried)
        joules = np.array([tried.joules[flat] for flat in flats], np.float64)
        metrics = {"seconds": seconds, "joules": joules}
        return np.stack([metrics[metric] for metric in METRICS[objective]])

    def _weigh(
        self, design: Design, workload: Workload, flats: Sequence[int], tried: Tried
    ) -> None:
        """Determine the energy of configs, and store it in `tried.joules`.

        The configs are simulated again, because the trial store does not contain the hardware
        counters from which the energy is computed.

        Args:
            design: the machine.
            workload: the layer.
            flats: flat indices of the configs.
            tried: trials of the layer on the machine, to which the energies are added.
        """
        new = [flat for flat in dict.fromkeys(flats) if flat not in tried.joules]
        if not new:
            return
        configs = design.target.space(workload).unravel(np.array(new, np.int64))
        machine = design.measured_on
        measured = machine.measure(machine.lower(workload, configs))
        energy = picojoules_of(design.target, measured)
        assert energy is not None  # checked before the search
        tried.joules |= zip(new, np.where(measured.valid, 1e-12 * energy, np.nan), strict=True)

    def designs(self) -> dict[int, Design]:
        """Return the machines that were measured, in the order of their first measurement.

        Returns:
            The machines, by their row in `HardwareSpace.points`.
        """
        return {point.design.row: point.design for point in self.log}

    def lower(self, design: Design, workload: Workload, configs: Configs) -> Lowered:
        """Compile configs of a layer for a machine, and count the compilations.

        Args:
            design: the machine.
            workload: the layer.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The compiled configs.
        """
        self.compiled += len(configs)
        return design.measured_on.lower(workload, configs)

    def measure(self, design: Design, lowered: Lowered) -> Measurements:
        """Measure compiled configs, and subtract them from the budget.

        Configs that were measured before and configs that do not compile are not subtracted.

        Args:
            design: the machine.
            lowered: the compiled configs of one layer.

        Returns:
            The measurements, one per config.

        Raises:
            BudgetSpent: there are more configs than the budget allows. The first ones, which it
                allows, were measured.
            TrialStoreError: the trials cannot be stored.
            RunInUse: another command works on the run.
        """
        return self._answered(
            design, lowered.workload, lowered.configs,
            lambda rows: (lowered.rows(rows), design.measured_on.measure(lowered.rows(rows))),
        )  # fmt: skip

    def evaluate(self, design: Design, workload: Workload, configs: Configs) -> Measurements:
        """Compile configs, and measure those that compile, without keeping the programs.

        The results of configs that were tried before are reused and cost no budget.

        Args:
            design: the machine.
            workload: the layer.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The measurements, one per config.

        Raises:
            BudgetSpent: there are more new configs than the budget allows. The first ones, which it
                allows, were measured.
            TrialStoreError: the trials cannot be stored.
            RunInUse: another command works on the run.
        """
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
        """Compile and measure configs in order until there are `most` new measurements.

        It also stops after the last config.

        Args:
            design: the machine.
            workload: the layer.
            configs: knob indices, int array of shape (n, knobs).
            most: number of measurements after which to stop.

        Raises:
            BudgetSpent: the budget is spent.
            TrialStoreError: the trials cannot be stored.
            RunInUse: another command works on the run.
        """
        goal, at = self.spent + most, 0
        while at < len(configs) and (missing := goal - self.spent) > 0:
            self.evaluate(design, workload, configs[at : at + missing])
            at += missing

    def correct(self, design: Design, workload: Workload, measured: Known) -> None:
        """Replace wrong trials in the store, so that a repeated search uses the corrected trials.

        The evaluator must have a store. The trials in its memory are not changed.

        Args:
            design: the machine.
            workload: the layer.
            measured: the correct trials, by flat index.

        Raises:
            TrialStoreError: the store cannot be written.
            RunInUse: another command works on the run.
        """
        self._recorded_trials(design, workload)
        _, records = self._known[design.target.fingerprint, workload.id]
        records.correct(measured)

    def _answered(
        self, design: Design, workload: Workload, configs: Configs,
        simulate: Callable[[NDArray[np.int64]], tuple[Lowered, Measurements]],
        compiles: bool = False,
    ) -> Measurements:  # fmt: skip
        """Return measurements of configs: from memory, from the store, or from `simulate`.

        New measurements are counted, stored and reported to the listener, up to the end of the
        budget. Configs that did not compile are stored, but they cost no budget and are not
        reported.

        Args:
            design: the machine.
            workload: the layer.
            configs: knob indices, int array of shape (n, knobs).
            simulate: lowers and measures the given rows of `configs`.
            compiles: count the new configs as compilations. False if the caller has counted them.

        Raises:
            BudgetSpent: there are new configs but the budget is already spent, or more new configs
                compiled than the budget allows. In the second case, those within the budget are
                stored first.
        """
        space = design.target.space(workload)
        flat, tried = space.ravel(configs).tolist(), self.layer_trials(design, workload)
        new = [k for k, element in enumerate(flat) if element not in tried.trials]
        new = list({flat[k]: k for k in reversed(new)}.values())[
            ::-1
        ]  # without duplicates, in order
        if new and not self.left:
            raise BudgetSpent
        known = self._recorded_trials(design, workload)
        result = {flat[k]: known[flat[k]] for k in new if flat[k] in known}
        missing = np.array([k for k in new if flat[k] not in result], np.int64)
        if len(missing):
            lowered, measured = simulate(missing)
            result |= {flat[k]: trial_at(measured, row) for row, k in enumerate(missing)}
        kept = self._affordable_trials([result[flat[k]] for k in new])
        if len(missing):
            rows = np.flatnonzero(np.isin(missing, new[:kept]))
            self._keep(design, workload, lowered.rows(rows), measured.rows(rows))
        self.compiled += kept * compiles
        for k in new[:kept]:
            tried.trials[flat[k]] = result[flat[k]]
        ran = [flat[k] for k in new[:kept] if result[flat[k]].status != "compile_error"]
        if ran:
            metrics = self.metrics(design, workload, ran, self.objective).T
            for item, own in zip(ran, metrics.tolist(), strict=True):
                self.spent += 1
                told = EvaluatedPoint(self.spent, design, workload, item, result[item], tuple(own))
                self.log.append(told)
                self._listen(told)
        if kept < len(new):
            raise BudgetSpent
        return measurements_of([tried.trials[element] for element in flat])

    def _affordable_trials(self, trials: Sequence[Trial]) -> int:
        """Return how many of the trials, counted from the first one, fit into the remaining budget.

        Configs that did not compile cost nothing.

        Args:
            trials: the trials, in the order in which they are counted.
        """
        measured = np.cumsum([trial.status != "compile_error" for trial in trials])
        return int(np.searchsorted(measured, self.left, side="right"))

    def _recorded_trials(self, design: Design, workload: Workload) -> Mapping[int, Trial]:
        """Return the stored trials of a layer on a machine, by flat index of the config.

        Only trials of this search are returned. Without a store, the result is empty.

        Args:
            design: the machine.
            workload: the layer.
        """
        if self._store is None:
            return {}
        key = (design.target.fingerprint, workload.id)
        if key not in self._known:
            run = (workload.id, design.target.fingerprint, self._run)
            records = StoredRun(self._store, run, design.target.space(workload))
            self._known[key] = (dict(records.known_trials()), records)
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
