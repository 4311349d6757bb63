"""Pipeline that searches accelerator designs and their schedules together (co-design).

pose_problem → search_designs → prove_front → log_codesign
"""

from __future__ import annotations

import time

from tilewright.hardware_search import output_folder as folder
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.hardware_search.results import CodesignOutcome, outcome_of
from tilewright.hardware_search.steps import (
    check,
    log_codesign,
    log_parameters,
    nothing_whole,
    pose_problem,
    search_designs,
)
from tilewright.hardware_search.verification import prove_front
from tilewright.search import LocalRunner, open_store
from tilewright.search.events import Note
from tilewright.tuning.open_trials import store_url


def codesign(
    run: LocalRunner, options: CodesignOptions, problem: CodesignProblem | None = None
) -> CodesignOutcome:
    """Search accelerator designs and schedules for some networks, and verify the Pareto front.

    The results are written to `options.folder`. A run that was stopped is resumed. If the
    verification finds a wrong trial in the store, the trial is corrected and the search is
    repeated.

    Args:
        run: runner that executes the steps.
        options: options of the run.
        problem: result of `pose_problem`, if the caller already has it.

    Returns:
        The machines on the Pareto front, the summary and the measurements.

    Raises:
        NothingToOffload: no layer of a network runs on the accelerator.
        RunInUse: another command is working on the folder.
        TrialStoreError: the trials cannot be read or written.
        WrongSchedule: a schedule computes wrong values.
        OSError: a file cannot be written.
    """
    begin = time.perf_counter()
    check(options)
    problem = problem or run(pose_problem, options)
    with open_store(
        options.folder.absolute(), store_url(options.store), fresh=options.fresh
    ) as store:
        folder.check_own_run(options)
        if options.fresh:
            store.clear()
        run.call(log_parameters, options, problem, run.emit)
        while True:
            evaluator = run(search_designs, options, problem, store, run.emit)
            while store.problems:
                run.emit(Note(store.problems.pop(0)))
            front = run(prove_front, evaluator, options.objective)
            if not isinstance(front, int):
                break
            # A recorded latency was wrong and was corrected, so search again.
            many = "a measurement" if front == 1 else f"{front} measurements"
            run.emit(
                Note(
                    f"discarded {many}, because the recorded latency differs from what the "
                    "machine measures now; the search is repeated with the new measurement"
                )
            )
        outcome = outcome_of(options, problem, evaluator, front)
        if not front:
            run.emit(Note(nothing_whole(evaluator)))
        run.call(log_codesign, options, outcome, time.perf_counter() - begin)
    return outcome
