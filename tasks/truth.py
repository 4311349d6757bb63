"""Solving hardware and schedules as Prefect tasks: some machines after the others.

Nothing of it is cached by `tasks.store`: what is finished lies in the truth's own folder.
"""

from __future__ import annotations

from collections.abc import Callable

from codesign.problem import Problem
from codesign.truth import Listing, TruthOptions
from codesign.truth_files import solved_rows
from tasks.stage import step


class TrackedSteps:
    """Keeps `codesign.truth_files.Steps`."""

    def part(self, problem: Problem, machines: range, options: TruthOptions) -> Listing:
        title = f"machines {machines.start}-{machines.stop - 1}"
        return _solve_machines(title, lambda: solved_rows(problem, machines, options))


@step("{title}")
def _solve_machines(title: str, work: Callable[[], Listing]) -> Listing:
    """Enumerate, bound and simulate the schedules of each layer of some machines. `work` stands for
    a problem with all its machines, which Prefect would walk through."""
    return work()
