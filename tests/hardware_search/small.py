"""Co-design problems that take about a second: one small network and a few dozen machines."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.targets import make_target

BOUNDS = {
    "log_batch": (0, 0), "log_block_in": (4, 5), "log_block_out": (4, 5),
    "log_inp_buff_size": (13, 15), "log_wgt_buff_size": (15, 16), "log_acc_buff_size": (15, 16),
    "log_uop_buff_size": (13, 13), "bus_bits": (64, 64),
}  # fmt: skip
BUDGET = 0.9


@cache
def small_problem() -> CodesignProblem:
    """Return the co-design problem of `digits_cnn` on machines of 16 and 32 channels per block."""
    hardware = HardwareSpace(make_target("vta-pynq"), BUDGET, BOUNDS)
    return CodesignProblem(read_networks(["digits_cnn"]), hardware)


@cache
def one_machine() -> CodesignProblem:
    """Return a problem with a single allowed machine of 16 channels per block."""
    bounds = {name: (low, low) for name, (low, _) in BOUNDS.items()}
    return CodesignProblem(
        read_networks(["digits_cnn"]), HardwareSpace(make_target("vta-pynq"), BUDGET, bounds)
    )


def searched(
    method: str,
    budget: int,
    seed: int = 0,
    evaluator: BudgetedEvaluator | None = None,
    **options: object,
) -> BudgetedEvaluator:
    """Run a search until its budget is spent. Return the evaluator."""
    evaluator = evaluator or BudgetedEvaluator(budget)
    with suppress(BudgetSpent):
        make_method(method, options).search(small_problem(), evaluator, seed)
    return evaluator


def told(evaluator: BudgetedEvaluator) -> list[tuple[int, str, int, float]]:
    """Return the measurements in order as (machine, workload ID, config, cycles)."""
    return [
        (point.design.row, point.workload.id, point.flat, point.found.cycles)
        for point in evaluator.log
    ]
