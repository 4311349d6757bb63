"""Implements the steps of a co-design run, which `flows.codesign` calls in order."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache, partial

from tilewright.core.errors import TilewrightError
from tilewright.hardware_search import folder
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware import HardwareSpace
from tilewright.hardware_search.method import make_method
from tilewright.hardware_search.options import CodesignOptions, Objective
from tilewright.hardware_search.outputs import CodesignOutcome, write_outputs
from tilewright.hardware_search.pareto import front_of
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.hardware_search.progress import Prepared, ProgressCount
from tilewright.hardware_search.results import ProvenDesign
from tilewright.hardware_search.verification import proven
from tilewright.search.events import Listener
from tilewright.search.trial_store import TrialStore
from tilewright.targets.capabilities import EstimatesEnergy, HasEnergy, capability
from tilewright.targets.cluster.connection import check_address, connect
from tilewright.targets.cluster.target import on_cluster
from tilewright.targets.registry import check_target, make_target
from tilewright.tuning.preflight import check_source


def check(options: CodesignOptions) -> None:
    """What can be checked without reading a network: raises a `TilewrightError` for an unknown
    target, network, method or option of it, contradictory bounds, a budget no machine keeps, and a
    folder that cannot be written or holds another run."""
    check_target(options.target)
    if options.cluster:
        check_address(options.cluster)
    for source in options.networks:
        check_source(source)
    make_method(options.method, options.method_options)
    folder.check_vacant(options)
    hardware = hardware_of(options)
    knows = [capability(hardware.base, kind) for kind in (HasEnergy, EstimatesEnergy)]
    if options.objective != "latency" and None in knows:
        raise TilewrightError(
            f"{options.target} has no energy model, so --objective {options.objective} cannot be "
            "judged; leave it out"
        )
    _ = hardware.points


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


def pose_problem(options: CodesignOptions) -> CodesignProblem:
    """What is asked, its networks read. Raises `NothingToOffload` and what reading a network
    raises, and as `HardwareSpace`."""
    if options.cluster:
        connect(options.cluster)  # a mistake shows before any work
    measured_on = partial(
        on_cluster, name=options.target, space="", isolate=0, cluster=options.cluster
    )
    problem = CodesignProblem(
        read_networks(options.networks), hardware_of(options), measured_on=measured_on
    )
    problem.check()
    return problem


def prove_front(evaluator: BudgetedEvaluator, objective: Objective) -> list[ProvenDesign] | int:
    """Lower and measure every schedule of the front anew, and run it on data: its designs, or how
    many measurements were recorded wrongly. Raises `WrongSchedule`."""
    return proven(evaluator, front_of(evaluator, objective))


def search_designs(
    options: CodesignOptions, problem: CodesignProblem, store: TrialStore, listen: Listener
) -> BudgetedEvaluator:
    """Measure machines and schedules until the budget is spent. Raises `TrialStoreError` and
    `UnknownName`."""
    count = ProgressCount(problem, options.objective)
    evaluator = BudgetedEvaluator(
        options.trials, store, folder.identity(options),
        lambda measured: listen(count.add(measured)), options.objective,
    )  # fmt: skip
    with suppress(BudgetSpent):
        make_method(options.method, options.method_options).search(problem, evaluator, options.seed)
    return evaluator


def nothing_whole(evaluator: BudgetedEvaluator) -> str:
    """What to say of a search that found no machine with a schedule of every layer."""
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


def log_parameters(options: CodesignOptions, problem: CodesignProblem, emit: Listener) -> None:
    """Begin the folder, and say what will be searched. Raises `OSError`."""
    folder.begin(options)
    machines = len(problem.hardware.points)
    emit(Prepared(tuple(problem.networks), machines, options.trials))


def log_codesign(options: CodesignOptions, outcome: CodesignOutcome, wall: float) -> None:
    """Write the folder; `wall` is how many seconds the run took. Raises `OSError`."""
    outcome.summary["wall_seconds"] = round(wall, 3)
    write_outputs(options, outcome)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
