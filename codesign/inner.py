"""Tuning the layers of a machine with a tuner of single layers, its measurements counted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codesign.lab import Lab
from codesign.problem import Design
from models import make_explorer
from search import Session
from search.explorer import Candidates, ExplorerState, History
from search.performers import InProcess, Setting
from search.stages import Batch, Known, choose_candidates, problem_of
from targets.base import Measurements


class InLab(InProcess):
    """The stages of a round; compiling and measuring is the lab's."""

    def __init__(self, setting: Setting, lab: Lab, design: Design) -> None:
        super().__init__(setting)
        self.lab, self.design = lab, design

    def lower(self, state: ExplorerState, history: History, kept: Candidates, n: int) -> Batch:
        setting = self.setting
        lowered = self.lab.lower(self.design, setting.problem.workload, kept.configs)
        return choose_candidates(setting.explorer, setting.problem, state, history, lowered, n)

    def measure(self, round_index: int, batch: Batch, known: Known) -> Measurements:
        return self.lab.measure(self.design, batch.rows)


class LayerTuning:
    """All layers of a design, each with a tuner of its own that goes on where it was."""

    def __init__(
        self, design: Design, lab: Lab, seed: int, tuner: str = "default",
        options: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.design = design
        self.sessions = []
        for layer in design.layers:
            problem = problem_of(design.target, layer.workload, seed)
            setting = Setting(design.target, make_explorer(tuner, dict(options or {})), problem)
            self.sessions.append(Session(setting, performer=InLab(setting, lab, design)))

    def advance(self, trials: int) -> None:
        """So many trials of each layer, in one round. Raises `BudgetSpent`."""
        for session in self.sessions:
            session.advance(trials)

    def seconds(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Of each layer by its fastest trial, shape (layers,); infinite without one."""
        best = [
            np.inf if s.history.best is None else float(s.history.seconds[s.history.best])
            for s in self.sessions
        ]
        return np.array(best)
