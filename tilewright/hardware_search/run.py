"""A co-design run from its options to its folder: the order of the steps, and nothing else.

Who performs the steps is put in: this process, or tasks of a workflow engine.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from tilewright.hardware_search import folder
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware import HardwareSpace
from tilewright.hardware_search.method import make_method
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.outputs import CodesignOutcome, Page, outcome_of, write_outputs
from tilewright.hardware_search.pareto import front_of
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.hardware_search.progress import Listener, Prepared, ProgressCount, ignore
from tilewright.hardware_search.results import ProvenDesign
from tilewright.hardware_search.verification import proven
from tilewright.search.ledger import Ledger
from tilewright.targets.registry import check_target, make_target
from tilewright.tuning.events import Note, StageBegan
from tilewright.tuning.open_ledger import alone
from tilewright.tuning.preflight import check_source


class CodesignSteps(Protocol):
    """How the steps of a run are performed, and what is done around them."""

    def read_networks(self, options: CodesignOptions) -> CodesignProblem:
        """What is asked; the networks are read for it."""
        ...

    def opened(self, options: CodesignOptions, problem: CodesignProblem) -> None:
        """Called once the folder is this run's alone."""
        ...

    def search(
        self, options: CodesignOptions, problem: CodesignProblem, ledger: Ledger, listen: Listener
    ) -> BudgetedEvaluator:
        """All measurements (`search_designs`)."""
        ...

    def prove_front(
        self, options: CodesignOptions, evaluator: BudgetedEvaluator
    ) -> list[ProvenDesign] | int:
        """`hardware_search.verification.proven`."""
        ...

    def finished(self, options: CodesignOptions, outcome: CodesignOutcome, wall: float) -> None:
        """Completes the summary before it is written; `wall` is how many seconds it took."""
        ...

    def write_results(
        self, options: CodesignOptions, outcome: CodesignOutcome, page: Page | None
    ) -> None:
        """The files."""
        ...


class LocalCodesignSteps:
    """Keeps `CodesignSteps` in this process."""

    def read_networks(self, options: CodesignOptions) -> CodesignProblem:
        return problem_of(options)

    def opened(self, options: CodesignOptions, problem: CodesignProblem) -> None:
        pass

    def search(
        self, options: CodesignOptions, problem: CodesignProblem, ledger: Ledger, listen: Listener
    ) -> BudgetedEvaluator:
        return search_designs(options, problem, ledger, listen)

    def prove_front(
        self, options: CodesignOptions, evaluator: BudgetedEvaluator
    ) -> list[ProvenDesign] | int:
        return prove_front(evaluator)

    def finished(self, options: CodesignOptions, outcome: CodesignOutcome, wall: float) -> None:
        outcome.summary["wall_seconds"] = round(wall, 3)

    def write_results(
        self, options: CodesignOptions, outcome: CodesignOutcome, page: Page | None
    ) -> None:
        write_outputs(options, outcome, page)


def check(options: CodesignOptions) -> None:
    """What can be checked without reading a network: raises a `TilewrightError` for an unknown
    target, network, method or option of it, contradictory bounds, a budget no machine keeps, and a
    folder that cannot be written or holds another run."""
    check_target(options.target)
    for source in options.networks:
        check_source(source)
    make_method(options.method, options.method_options)
    folder.check_vacant(options)
    _ = hardware_of(options).points


def run(
    options: CodesignOptions,
    listen: Listener = ignore,
    steps: CodesignSteps | None = None,
    page: Page | None = None,
    problem: CodesignProblem | None = None,
) -> CodesignOutcome:
    """Search machines and schedules for some networks, prove the front, write the folder. A run
    that was stopped goes on where it was. `problem` is what `problem_of` said, if somebody has
    asked already.

    Raises as `check`, `NothingToOffload` and what reading a network raises, `LeaseHeld` if another
    command works on the folder, `LedgerError`, `WrongSchedule`, `UnsafeFile` and `OSError`.
    """
    begin, steps = time.perf_counter(), steps or LocalCodesignSteps()
    check(options)
    listen(StageBegan("read_networks"))
    problem = problem or steps.read_networks(options)
    with alone(options.folder):
        folder.check_own_run(options)
        with Ledger((options.folder / folder.LEDGER).absolute()) as ledger:
            if options.fresh:
                ledger.clear()
            folder.begin(options)
            machines = len(problem.hardware.points)
            listen(Prepared(tuple(problem.networks), machines, options.trials))
            steps.opened(options, problem)
            evaluator, front = _searched(options, problem, ledger, steps, listen)
        outcome = outcome_of(options, problem, evaluator, front)
        if not front:
            listen(Note(_nothing_whole(evaluator)))
        steps.finished(options, outcome, time.perf_counter() - begin)
        listen(StageBegan("write_results"))
        steps.write_results(options, outcome, page)
    return outcome


def hardware_of(options: CodesignOptions) -> HardwareSpace:
    """The machines that may be built; listed once a process, which takes seconds. Raises as
    `HardwareSpace`."""
    bounds = tuple(sorted(options.bounds.items()))
    return _hardware(options.target, options.budget, bounds, options.clock)


@lru_cache(maxsize=1)
def _hardware(
    target: str, budget: float, bounds: tuple[tuple[str, tuple[int, int]], ...], clock: str
) -> HardwareSpace:
    return HardwareSpace(make_target(target), budget, dict(bounds), clock)


def problem_of(options: CodesignOptions) -> CodesignProblem:
    """What is asked, its networks read. Raises `NothingToOffload` and what reading a network
    raises, and as `HardwareSpace`."""
    problem = CodesignProblem(read_networks(options.networks), hardware_of(options))
    problem.check()
    return problem


def _searched(
    options: CodesignOptions,
    problem: CodesignProblem,
    ledger: Ledger,
    steps: CodesignSteps,
    listen: Listener,
) -> tuple[BudgetedEvaluator, list[ProvenDesign]]:
    """The evaluator after the search, and its front as it was measured anew. Where the record was
    wrong the search is repeated on what is true."""
    while True:
        listen(StageBegan("search"))
        evaluator = steps.search(options, problem, ledger, listen)
        while ledger.problems:
            listen(Note(ledger.problems.pop(0)))
        listen(StageBegan("prove_front"))
        found = steps.prove_front(options, evaluator)
        if not isinstance(found, int):
            return evaluator, found
        many = "a measurement was" if found == 1 else f"{found} measurements were"
        listen(
            Note(
                f"{many} recorded with another latency than the machine has; set aside, what it "
                "has recorded, and the search repeated"
            )
        )


def prove_front(evaluator: BudgetedEvaluator) -> list[ProvenDesign] | int:
    """Lower and measure every schedule of the front anew, and run it on data: its designs, or how
    many measurements were recorded wrongly. Raises `WrongSchedule`."""
    return proven(evaluator, front_of(evaluator))


def search_designs(
    options: CodesignOptions, problem: CodesignProblem, ledger: Ledger, listen: Listener
) -> BudgetedEvaluator:
    """Measure machines and schedules until the budget is spent. Raises `LedgerError` and
    `UnknownName`."""
    count = ProgressCount(problem)
    evaluator = BudgetedEvaluator(
        options.trials, ledger, folder.identity(options),
        lambda measured: listen(count.add(measured)),
    )  # fmt: skip
    with suppress(BudgetSpent):
        make_method(options.method, options.method_options).search(problem, evaluator, options.seed)
    return evaluator


def _nothing_whole(evaluator: BudgetedEvaluator) -> str:
    layers = min((len(each.layers) for each in evaluator.designs().values()), default=0)
    step = "repeat the command with more --trials"
    if evaluator.left:  # the search ended by itself, so that more would not be asked for either
        step = (
            f"the search has nothing more to try, with {_count(evaluator.left, 'measurement')} of "
            f"{evaluator.budget} left; choose another --method or wider bounds"
        )
    return (
        "no machine has a valid schedule of every layer after "
        f"{_count(evaluator.spent, 'measurement')} (one has {_count(layers, 'layer')} or more), "
        f"so the front is empty: {step}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
