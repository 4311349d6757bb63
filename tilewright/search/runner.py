"""Who performs the stages of a run: this process, or whoever puts a workflow engine around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.search import round_steps
from tilewright.search.explorer import Candidates, Explorer, ExplorerState, History
from tilewright.search.problem import Problem
from tilewright.search.round_steps import Batch, Known
from tilewright.targets.base import Measurements, Target
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Setting:
    """A tuner, and the problem that a target poses it."""

    target: Target
    explorer: Explorer
    problem: Problem


def setting_of(target: Target, workload: Workload, explorer: Explorer, seed: int) -> Setting:
    """Raises `WorkloadError` if the target has no schedule for the workload."""
    return Setting(target, explorer, round_steps.problem_of(target, workload, seed))


class Stages(Protocol):
    """Performs one stage a call, and gives what `search.round_steps` would. `round` is the index of
    the round, `n` the size of its batch. The engine passes on what it was given, the same
    object."""

    def begin(self, state: ExplorerState) -> ExplorerState:
        """What the explorer knows before the first round, `state` being what it starts from."""
        ...

    def generate(self, state: ExplorerState, history: History, n: int) -> Candidates:
        """What to try next, best first."""
        ...

    def filter(
        self, state: ExplorerState, history: History, named: Candidates, n: int
    ) -> Candidates:
        """Those worth lowering."""
        ...

    def lower(self, state: ExplorerState, history: History, kept: Candidates, n: int) -> Batch:
        """Lower them and choose the batch. Of what is not chosen nothing goes on but failures."""
        ...

    def measure(self, round_index: int, batch: Batch, known: Known) -> Measurements:
        """Run the batch, but for what is `known`."""
        ...

    def retrain(self, state: ExplorerState, history: History) -> ExplorerState:
        """The state after the last round of `history`."""
        ...

    def relearn(self, state: ExplorerState, histories: Sequence[History]) -> ExplorerState:
        """The state after several rounds that are over: `retrain` on the history after each."""
        ...


class InProcess:
    """All stages here and now."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def begin(self, state: ExplorerState) -> ExplorerState:
        return round_steps.begin(self.setting.explorer, self.setting.problem, state)

    def generate(self, state: ExplorerState, history: History, n: int) -> Candidates:
        setting = self.setting
        return round_steps.generate_candidates(setting.explorer, setting.problem, state, history, n)

    def filter(
        self, state: ExplorerState, history: History, named: Candidates, n: int
    ) -> Candidates:
        setting = self.setting
        return round_steps.filter_candidates(
            setting.explorer, setting.problem, state, history, named, n
        )

    def lower(self, state: ExplorerState, history: History, kept: Candidates, n: int) -> Batch:
        setting = self.setting
        lowered = round_steps.lower_candidates(setting.target, setting.problem, kept)
        return round_steps.choose_candidates(
            setting.explorer, setting.problem, state, history, lowered, n
        )

    def measure(self, round_index: int, batch: Batch, known: Known) -> Measurements:
        return round_steps.measure_batch(
            self.setting.target, self.setting.problem, batch.rows, known
        )

    def retrain(self, state: ExplorerState, history: History) -> ExplorerState:
        return round_steps.retrain(self.setting.explorer, self.setting.problem, state, history)

    def relearn(self, state: ExplorerState, histories: Sequence[History]) -> ExplorerState:
        for history in histories:
            state = self.retrain(state, history)
        return state
