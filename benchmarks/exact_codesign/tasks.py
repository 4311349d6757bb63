"""Solves hardware and schedules as Prefect tasks: some machines after the others.

Prefect caches none of it: what is finished lies in the truth's own folder.
A problem has thousands of machines: Prefect does not search them for futures.
"""

from __future__ import annotations

from benchmarks.exact_codesign.solver import Listing, TruthOptions
from benchmarks.exact_codesign.store import solved_rows
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.tasks.cached_task import step, unsearched


class TrackedTruth:
    """Keeps `benchmarks.exact_codesign.store.ExactSteps`."""

    def part(self, problem: CodesignProblem, machines: range, options: TruthOptions) -> Listing:
        title = f"machines {machines.start}-{machines.stop - 1}"
        return _solve_machines(title, unsearched(problem), unsearched(machines), options)


@step("{title}")
def _solve_machines(
    title: str, problem: CodesignProblem, machines: range, options: TruthOptions
) -> Listing:
    """Enumerate, bound and simulate the schedules of each layer of some machines."""
    return solved_rows(problem, machines, options)
