"""Measurements where they tell machines apart: a search on two levels.

1. Machines are screened by closed-form estimates of all layers, which cost no measurement, along
   the front of area and latency (`codesign.screening`).
2. The machine that promises most is measured, the layers that take longest first; as soon as what
   is known of it no longer promises anything, it is left. What estimates err by is learned from all
   machines measured so far, and corrects the others.
3. On machines of the front, layers are measured again where that is expected to save most.

A step is worth the hypervolume that it is expected to add, a measurement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from codesign.front import hypervolume
from codesign.inner import LayerTuning
from codesign.lab import Lab
from codesign.method import MethodOptions, generator
from codesign.problem import Design, Problem
from codesign.screening import Screening
from targets.base import Configs


class TwoLevel:
    """Screens machines by estimates, and spends measurements by the hypervolume they promise."""

    class Options(MethodOptions):
        """Ours; chosen by the ablation in docs/codesign.md."""

        screened: int = Field(512, ge=1, description="machines that estimates are asked about")
        start: int = Field(64, ge=1, description="of these, drawn evenly at first")
        sample: int = Field(4096, ge=64, description="schedules of a layer that are estimated")
        tuner: str = Field("default", description="tunes the layers of a machine")
        batch: int = Field(2, ge=1, description="trials of a layer at a time")
        halving: float = Field(
            0.5, gt=0, lt=1, description="of what a layer could still save, a batch leaves so much"
        )
        doubt: float = Field(
            0.1, ge=0, le=1, description="of the way to a layer's bound, whatever estimates say"
        )
        part: float = Field(
            0.3, gt=0, le=1, description="of a machine's time is measured before it is judged again"
        )
        estimates: bool = Field(True, description="screen machines; else all look alike at first")
        correct: bool = Field(True, description="learn what estimates err by from other machines")

    def __init__(self, options: Options) -> None:
        self.options = options

    def search(self, problem: Problem, lab: Lab, seed: int) -> None:
        """Raises `BudgetSpent`, or ends when no step promises anything."""
        _Search(problem, lab, seed, self.options).run()


class _Machine:
    """What is known of one: seconds a call of each layer as estimated and as measured, shape
    (layers,), and how often each layer was tuned."""

    def __init__(self, design: Design, estimated: NDArray[np.float64]) -> None:
        self.design, self.estimated = design, estimated
        self.measured = np.full(len(estimated), np.inf)
        self.batches = np.zeros(len(estimated), np.int64)
        self.tuning: LayerTuning | None = None
        self.calls = np.array([layer.calls for layer in design.layers])

    @property
    def whole(self) -> bool:
        """Whether every layer has a valid trial."""
        return bool(np.isfinite(self.measured).all())

    @property
    def hopeless(self) -> bool:
        """Whether a layer had trials, and none was valid."""
        return bool((np.isinf(self.measured) & (self.batches > 2)).any())

    def latency(self, layers: NDArray[np.float64]) -> float:
        """One inference of each network, from seconds a call, (layers,)."""
        return float(self.design.seconds(layers).sum())


class _Search:
    def __init__(self, problem: Problem, lab: Lab, seed: int, options: TwoLevel.Options) -> None:
        self.problem, self.lab, self.seed, self.options = problem, lab, seed, options
        self.machines: dict[int, _Machine] = {}
        self.bias = _Bias(problem.hardware.points)

    def run(self) -> None:
        self._screen()
        while (step := self._best_step()) is not None:
            machine, layers = step
            self._measure(machine, layers)

    # -- machines ------------------------------------------------------------------------------

    def _screen(self) -> None:
        count = len(self.problem.hardware.points)
        drawn = generator(self.seed, 0).permutation(count)
        found = Screening(self.problem, self.options.sample, self.seed)
        if self.options.estimates:
            ends = [0, count - 1]
            start = dict.fromkeys([*ends, *drawn[: self.options.start].tolist()])
            found.climb(start, min(self.options.screened, count))
            rows = found.rows
        else:
            rows = drawn[: self.options.screened].tolist()
        for row in rows:
            design = self.problem.design(row)
            known = found.seconds(row) if self.options.estimates else design.bounds
            if np.isfinite(known).all():
                self.machines[row] = _Machine(design, known)
        latest = [each.latency(each.estimated) for each in self.machines.values()]
        self.reference = (self.problem.hardware.budget * 1.001, 2 * max(latest, default=1.0))

    # -- steps ---------------------------------------------------------------------------------

    def _best_step(self) -> tuple[_Machine, list[int]] | None:
        """The step that is expected to add most hypervolume a measurement, the first of equal
        ones; None if none adds any."""
        whole = [each for each in self.machines.values() if each.whole]
        points = np.array([(m.design.area, m.latency(m.measured)) for m in whole]).reshape(-1, 2)
        volume = hypervolume(points, self.reference)
        best: tuple[float, _Machine, list[int]] | None = None
        for machine in self.machines.values():
            step = self._whole_step(machine) if machine.whole else self._first_step(machine)
            if step is None:
                continue
            latency, count, layers = step
            added = np.concatenate([points, [(machine.design.area, latency)]])
            gain = (hypervolume(added, self.reference) - volume) / count
            if gain > 1e-12 and (best is None or gain > best[0]):
                best = gain, machine, layers
        return None if best is None else best[1:]

    def _first_step(self, machine: _Machine) -> tuple[float, int, list[int]] | None:
        """For one that is not measured whole: what it promises, what the rest of it costs, and the
        layers to measure now: those that take longest."""
        if machine.hopeless:
            return None
        likely = self._likely(machine)
        left = np.flatnonzero(np.isinf(machine.measured))
        heavy = left[np.argsort(-(likely * machine.calls)[left], kind="stable")]
        time = np.cumsum((likely * machine.calls)[heavy])
        enough = int(np.searchsorted(time, self.options.part * time[-1])) + 1
        return machine.latency(likely), self.options.batch * len(left), heavy[:enough].tolist()

    def _whole_step(self, machine: _Machine) -> tuple[float, int, list[int]] | None:
        """For one that is: the layer with which another batch is expected to save most."""
        lowest = np.minimum(self._optimum(machine), machine.measured)
        doubt = self.options.doubt * (machine.measured - machine.design.bounds)
        saved = np.maximum(machine.measured - lowest, doubt) * machine.calls
        saved *= self.options.halving ** (machine.batches - 1) * (1 - self.options.halving)
        layer = int(np.argmax(saved))
        if saved[layer] <= 0:
            return None
        return machine.latency(machine.measured) - saved[layer], self.options.batch, [layer]

    def _likely(self, machine: _Machine) -> NDArray[np.float64]:
        """Seconds a call of each layer, shape (layers,): as measured, else as estimated and
        corrected, and no less than its bound."""
        return np.where(np.isfinite(machine.measured), machine.measured, self._optimum(machine))

    def _optimum(self, machine: _Machine) -> NDArray[np.float64]:
        corrected = machine.estimated
        if self.options.correct and self.options.estimates:
            corrected = corrected * np.exp(self.bias.of(machine))
        return np.maximum(corrected, machine.design.bounds)

    # -- measuring -----------------------------------------------------------------------------

    def _measure(self, machine: _Machine, layers: list[int]) -> None:
        if machine.tuning is None:
            machine.tuning = LayerTuning(machine.design, self.lab, self.seed, self.options.tuner)
        for layer in layers:
            machine.measured[layer] = machine.tuning.advance(layer, self.options.batch)
            machine.batches[layer] += 1
        self.bias.learn(machine, layers)


class _Bias:
    """What estimates of layers err by, log of measured over estimated: a mean over the machines
    where a layer was measured, those most that are fewest steps away. Machines alike err alike: or
    else one that was not measured would always promise more than its measured neighbour."""

    NEAR = 0.7  # weight of what is one step of one knob further away
    PRIOR = 0.3  # weight of all layers together, and there of no error

    def __init__(self, points: Configs) -> None:
        self._points = points.astype(np.int64)
        self._seen: dict[tuple[str, str], dict[int, float]] = {}
        self._found: dict[tuple[str, str], NDArray[np.float64]] = {}  # (points,) a layer
        self._mean = 0.0

    def learn(self, machine: _Machine, layers: list[int]) -> None:
        for layer in layers:
            if np.isfinite(machine.measured[layer]):
                error = np.log(machine.measured[layer] / machine.estimated[layer])
                name = machine.design.layers[layer].names[0]
                self._seen.setdefault(name, {})[machine.design.row] = float(error)
                self._found.pop(name, None)
        every = [error for errors in self._seen.values() for error in errors.values()]
        self._mean = sum(every) / (len(every) + self.PRIOR)

    def of(self, machine: _Machine) -> NDArray[np.float64]:
        """Of each layer of a machine, shape (layers,)."""
        return np.array(
            [self._of(layer.names[0], machine.design.row) for layer in machine.design.layers]
        )

    def _of(self, name: tuple[str, str], row: int) -> float:
        if name not in self._seen:
            return self._mean
        if name not in self._found:
            rows = np.array(list(self._seen[name]))
            errors = np.array(list(self._seen[name].values()))
            away = np.abs(self._points[:, None] - self._points[rows]).sum(axis=2)
            near = self.NEAR**away
            weighted = near @ errors + self.PRIOR * self._mean
            self._found[name] = weighted / (near.sum(axis=1) + self.PRIOR)
        return float(self._found[name][row])
