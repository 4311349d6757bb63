"""Runs published co-design methods as in their papers: for each layer, on a machine of its own.

    python -m benchmarks.codesign.single_layers --networks alexnet --seeds 3

Each search has ten knobs: the seven knobs of TVM's template for one layer (two for virtual threads,
five for tile sizes) and three of the GEMM core, with a limit of the chip area. Scratchpads and
memory port are those of the stock machine. The result for a layer is its fastest schedule on any
machine. Different layers of a network choose different machines, so no machine that can be built
achieves all these results at once (docs/evidence/codesign-truth.md).

The summary has the throughput of each method relative to AutoTVM: the geometric mean over layers
and seeds, with its confidence interval. As in the searches for whole networks, a schedule that does
not compile costs one compile and no measurement.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from benchmarks.codesign.methods import parse_entry
from benchmarks.intervals import Floats, hierarchical
from benchmarks.results import Redraw, Seeds, has_row, split_names
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.problem import CodesignProblem, Design, read_networks
from tilewright.targets.registry import make_target

RIVAL = "autotvm"
METHODS = f"{RIVAL};chameleon;dcoc"
CORE = ("log_batch", "log_block_in", "log_block_out")


class OneLayer(CodesignProblem):
    """Co-design problem of a single operator, selected by network and name, without CPU time."""

    operator: tuple[str, str]

    def design(self, row: int) -> Design:
        """Return the design of a machine, with the layer of this operator only."""
        whole = super().design(row)
        matching = tuple(layer for layer in whole.layers if self.operator in layer.names)
        return replace(whole, layers=matching, cpu_seconds=(0.0,) * len(whole.cpu_seconds))


def main(
    networks: Annotated[
        str, typer.Option(help="Networks, separated by commas.")
    ] = "alexnet,resnet18",
    methods: Annotated[
        str, typer.Option(help="Methods to compare, as for benchmarks.codesign.methods.")
    ] = METHODS,
    seeds: Seeds = 10,
    trials: Annotated[
        int,
        typer.Option(
            help="Measurements per layer; the first 64 of the published methods are random."
        ),
    ] = 256,
    budget: Annotated[float, typer.Option(help="Largest area.")] = 1.5,
    out: Annotated[
        Path,
        typer.Option(help="Parquet file for the rows; runs that it contains are not repeated."),
    ] = Path("built/codesign_layers.parquet"),
    redraw: Redraw = None,
) -> None:
    """Make the runs that are missing in the file, and print the summary.

    The file is written after each layer.
    """
    if redraw is not None:
        print(summary(pd.read_parquet(redraw)))
        return
    result = pd.read_parquet(out) if out.exists() else pd.DataFrame()
    for network in split_names(networks):
        for operator in _operators(network, budget):
            for seed in range(seeds):
                for entry in methods.split(";"):
                    key = {"network": network, "layer": operator, "seed": seed, "entry": entry,
                           "trials": trials}  # fmt: skip
                    if has_row(result, key):
                        continue
                    row = key | _run(network, operator, budget, entry, seed, trials)
                    result = pd.concat([result, pd.DataFrame([row])], ignore_index=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            result.to_parquet(out, index=False)
    print(summary(result))


@cache
def _problem(network: str, budget: float) -> OneLayer:
    base = make_target("vta-pynq", "template")
    stock = HardwareSpace(base, budget).space.knobs
    free = HardwareSpace(
        base, budget, {k.name: _stock(k.name) for k in stock if k.name not in CORE}
    )
    return OneLayer(read_networks([network]), free, "plain")


def _stock(knob: str) -> tuple[int, int]:
    value = {
        "log_inp_buff_size": 15, "log_wgt_buff_size": 18, "log_acc_buff_size": 17,
        "log_uop_buff_size": 13, "bus_bits": 64,
    }[knob]  # fmt: skip
    return value, value


def _operators(network: str, budget: float) -> list[str]:
    """Return the name of the first operator of each layer, on the machine with the most layers."""
    problem = _problem(network, budget)
    base = CodesignProblem(problem.networks, problem.hardware, "plain")
    every = [base.design(row).layers for row in range(len(problem.hardware.points))]
    return [layer.names[0][1] for layer in max(every, key=len)]


def _run(
    network: str, operator: str, budget: float, entry: str, seed: int, trials: int
) -> dict[str, object]:
    problem, evaluator = _problem(network, budget), BudgetedEvaluator(trials)
    problem.operator = (network, operator)
    method, options = parse_entry(entry)
    with suppress(BudgetSpent):
        make_method(method, options).search(problem, evaluator, seed)
    valid = [point.found.seconds for point in evaluator.log if point.found.status == "valid"]
    seconds = min(valid, default=float("inf"))
    return {"seconds": seconds, "measured": evaluator.spent, "compiled": evaluator.compiled}


def summary(frame: pd.DataFrame) -> str:
    """Return a summary with one line per method."""

    def grid(entry: str) -> Floats:
        selected_rows = frame[frame["entry"] == entry]
        return selected_rows.pivot(
            index=["network", "layer"], columns="seed", values="seconds"
        ).to_numpy()

    lines = []
    for entry in frame["entry"].unique():
        subset = frame[frame["entry"] == entry]
        ratio = np.log(grid(RIVAL) / grid(entry))
        beside = hierarchical(lambda item: np.exp(item.mean(axis=(-2, -1))), ratio)
        lines.append(
            f"{entry:24} {beside.text(3, '-')} x AutoTVM's "
            f"throughput, over {ratio.shape[0]} layers and {ratio.shape[1]} seeds; "
            f"{subset['measured'].mean():.0f} measurements, "
            f"{subset['compiled'].mean():.0f} compiles"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
