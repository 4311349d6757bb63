"""Steps of a co-design run, which `flows.codesign` calls in order."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache, partial

from tilewright.core.errors import TilewrightError
from tilewright.hardware_search import output_folder
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.hardware_search.progress import Prepared, ProgressCount
from tilewright.hardware_search.results import CodesignOutcome, write_outputs
from tilewright.search.events import Listener
from tilewright.search.trial_store import TrialStore
from tilewright.targets.capabilities import HasEnergy, capability
from tilewright.targets.cluster.connection import check_address, connect
from tilewright.targets.cluster.target import on_cluster
from tilewright.targets.registry import check_target, make_target
from tilewright.tuning.preflight import check_source


def check(options: CodesignOptions) -> None:
    """Check the options of a run without reading the networks.

    Args:
        options: options of the run.

    Raises:
        TilewrightError: the target, a network, the method or one of its options is unknown; the
            address of the cluster is invalid; the target has no energy model for the objective; the
            bounds contradict each other; no machine fits the budget; or the output directory cannot
            be used.
    """
    check_target(options.target)
    if options.cluster:
        check_address(options.cluster)
    for source in options.networks:
        check_source(source)
    make_method(options.method, options.method_options)
    output_folder.check_vacant(options)
    hardware = hardware_of(options)
    if options.objective != "latency" and capability(hardware.base, HasEnergy) is None:
        raise TilewrightError(
            f"{options.target} has no energy model, so --objective {options.objective} "
            "cannot be evaluated; leave out --objective"
        )
    _ = hardware.points


def hardware_of(options: CodesignOptions) -> HardwareSpace:
    """Return the machines that the options allow.

    Listing them takes seconds, so each process caches the last result.

    Args:
        options: options of the run.

    Returns:
        The machines.

    Raises:
        ImpossibleHardware: no machine satisfies the bounds and the budget.
    """
    bounds = tuple(sorted(options.bounds.items()))
    return _hardware(options.target, options.budget, bounds, options.clock)


@lru_cache(maxsize=1)
def _hardware(
    target: str, budget: float, bounds: tuple[tuple[str, tuple[int, int]], ...], clock: str
) -> HardwareSpace:
    return HardwareSpace(make_target(target), budget, dict(bounds), clock)


def pose_problem(options: CodesignOptions) -> CodesignProblem:
    """Read the networks, and create and check the co-design problem.

    Args:
        options: options of the run.

    Returns:
        The problem.

    Raises:
        ClusterError: the cluster cannot be reached.
        NothingToOffload: the base machine cannot run any layer of a network.
        ImpossibleHardware: no machine satisfies the bounds and the budget.
        TilewrightError: a network cannot be read, or two networks have the same name.
    """
    if options.cluster:
        connect(options.cluster)  # raises before any work is done if the cluster is unreachable
    measured_on = partial(
        on_cluster, name=options.target, space="", isolate=0, cluster=options.cluster
    )
    problem = CodesignProblem(
        read_networks(options.networks), hardware_of(options), measured_on=measured_on
    )
    problem.check()
    return problem


def search_designs(
    options: CodesignOptions, problem: CodesignProblem, store: TrialStore, listen: Listener
) -> BudgetedEvaluator:
    """Run the search method until the budget is spent or the method ends.

    Args:
        options: options of the run.
        problem: the co-design problem.
        store: store for the trials.
        listen: function that is called with the progress after each measurement.

    Returns:
        The evaluator, which holds all measurements.

    Raises:
        TrialStoreError: the trials cannot be stored.
        RunInUse: another command works on the run.
        UnknownName: the method does not exist.
        OptionError: an option of the method is invalid.
        MissingExtra: the method needs a library that is not installed.
    """
    count = ProgressCount(problem, options.objective)
    evaluator = BudgetedEvaluator(
        options.trials, store, output_folder.identity(options),
        lambda measured: listen(count.add(measured)), options.objective,
    )  # fmt: skip
    with suppress(BudgetSpent):
        make_method(options.method, options.method_options).search(problem, evaluator, options.seed)
    return evaluator


def nothing_whole(evaluator: BudgetedEvaluator) -> str:
    """Return the error message for a search that found no machine on which all layers are valid.

    Args:
        evaluator: the measurements of the search. The message depends on whether budget is left.
    """
    layers = min((len(design.layers) for design in evaluator.designs().values()), default=0)
    step = "repeat the command with more --trials"
    if evaluator.left:  # the search ended by itself, so a larger budget would not help
        step = (
            f"the search space is exhausted, with {_count(evaluator.left, 'measurement')} of "
            f"{evaluator.budget} left; choose another --method or wider bounds"
        )
    return (
        "no machine has a valid schedule for every layer after "
        f"{_count(evaluator.spent, 'measurement')} (one has {_count(layers, 'layer')} or "
        f"more), so the Pareto front is empty; {step}"
    )


def log_parameters(options: CodesignOptions, problem: CodesignProblem, emit: Listener) -> None:
    """Prepare the output directory (see `begin_folder`), and emit an event about the search.

    Args:
        options: options of the run.
        problem: the co-design problem.
        emit: function that is called with a `Prepared` event.

    Raises:
        OSError: the folder cannot be written.
    """
    output_folder.begin_folder(options)
    machines = len(problem.hardware.points)
    emit(Prepared(tuple(problem.networks), machines, options.trials))


def log_codesign(options: CodesignOptions, outcome: CodesignOutcome, wall: float) -> None:
    """Write the results of a run to its output directory.

    Args:
        options: options of the run.
        outcome: the results. The duration of the run is added to its summary.
        wall: duration of the run in seconds.

    Raises:
        OSError: a file cannot be written.
    """
    outcome.summary["wall_seconds"] = round(wall, 3)
    write_outputs(options, outcome)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
