"""Solves co-design problems exactly, so that search methods can be compared with the optimum.

    python -m benchmarks.codesign.truth --out built/truth            # minutes of one core
    python -m benchmarks.codesign.truth --out built/small --quick    # digits_cnn, a minute

The command computes what the folder lacks; it can be stopped and resumed at any time. It prints how
tight the result is: the cycles of the fastest schedule found divided by the lower bound of all
schedules (`benchmarks.codesign.exact_solver`). It also prints the latency of the fastest machine,
and the sum of the latencies if each layer ran on the best machine for this layer. Work on single
layers reports the latter, but no machine that can be built reaches it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.codesign.exact_solver import TruthError, TruthOptions
from benchmarks.codesign.truth_store import (
    Damaged,
    PartDone,
    PlannedMachines,
    Truth,
    build_truth,
    read_truth,
)
from tilewright.hardware_search.pareto import hypervolume

GRID = TruthOptions(
    ("resnet18", "alexnet"),
    "vta-pynq",
    1.5,
    (
        ("log_batch", 0, 0),
        ("log_inp_buff_size", 14, 15),
        ("log_wgt_buff_size", 15, 18),
        ("log_acc_buff_size", 16, 17),
        ("log_uop_buff_size", 13, 13),
        ("bus_bits", 64, 128),
    ),
)
"""A problem that is small enough to be solved: blocks of 8 to 64 channels, and buffers around those
of the stock machine."""
QUICK = TruthOptions(
    ("digits_cnn",),
    "vta-pynq",
    0.6,
    (
        ("log_batch", 0, 0),
        ("log_inp_buff_size", 14, 14),
        ("log_wgt_buff_size", 16, 17),
        ("log_acc_buff_size", 15, 16),
        ("log_uop_buff_size", 13, 13),
        ("bus_bits", 64, 64),
    ),
    proofs=1 << 20,
    gap=0.0,
)


def main() -> None:
    """Compute what is missing in the folder, and print how tight the bounds are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--show", action="store_true", help="only print a summary of what is finished"
    )
    given = parser.parse_args()
    options = QUICK if given.quick else GRID
    print(summary(read_truth(given.out) if given.show else complete_truth(given.out, options)))


def complete_truth(out: Path, options: TruthOptions) -> Truth:
    """Return the truth in a folder, after computing what is missing."""
    return build_truth(out, options, listen=Progress())


class Progress:
    """Listener that prints the progress of a build."""

    def __init__(self) -> None:
        self.begin, self.done, self.machines = time.perf_counter(), 0, 0

    def __call__(self, event: PlannedMachines | PartDone | Damaged) -> None:
        """Print a line about an event of the build."""
        if isinstance(event, Damaged):
            print(f"{event.path} is built again: {event.reason}", flush=True)
        elif isinstance(event, PlannedMachines):
            self.machines, self.done = event.machines, event.kept
            print(f"{event.machines} machines, {event.kept} of them solved before", flush=True)
        else:
            self.done += event.machines
            seconds = time.perf_counter() - self.begin
            print(f"{self.done} of {self.machines} machines, {seconds:.0f} s", flush=True)


def summary(truth: Truth) -> str:
    """Describe how tight the bounds are, by layer and by network, and the Pareto front."""
    table, operators = truth.table, operators_of(truth)
    result = table[table["best_cycles"] > 0]
    ratio = (result["best_cycles"] / result["bound_cycles"]).to_numpy(np.float64)
    lines = [
        f"{table['machine'].nunique()} machines, {table['layer'].nunique()} layers, {len(table):,} "
        f"pairs; {int(table['tried'].sum()):,} of {int(table['schedules'].sum()):,} schedules that "
        "may fit simulated",
        f"without a schedule: {len(table) - len(result)} pairs, of which "
        f"{int((table['bound_cycles'] < 0).sum())} have none",
        f"best over bound: {_quantiles(ratio)}; exact {result['exact'].mean():.1%}",
    ]
    for name in (*truth.networks, *([""] if len(truth.networks) > 1 else [])):
        which = (name,) if name else truth.networks
        best, bound = (truth.seconds(item, which) for item in ("best_cycles", "bound_cycles"))
        runs = np.isfinite(best)
        lines.append(
            f"{name or 'all networks':14} best over bound: {_quantiles(best[runs] / bound[runs])}; "
            f"{int(runs.sum())} machines run it; the fastest takes {1e3 * best.min():.3f} ms; each "
            "layer on a machine of its own "
            f"{1e3 * relaxed_seconds(truth, operators, which):.3f} ms, "
            "which no machine that can be built beats"
        )
    best, bound = truth.points(), truth.points("bound_cycles")
    reference = truth.reference()
    volumes = [hypervolume(points, reference) for points in (best, bound)]
    lines.append(
        f"hypervolume of the best {volumes[0]:.4f}, of the bounds {volumes[1]:.4f} "
        f"({volumes[0] / volumes[1]:.1%})"
    )
    for layer, rows in result.groupby("layer"):
        ratios = (rows["best_cycles"] / rows["bound_cycles"]).to_numpy(np.float64)
        lines.append(f"  {layer!s:62} {_quantiles(ratios)}; exact {rows['exact'].mean():.0%}")
    return "\n".join(lines)


def operators_of(truth: Truth) -> pd.DataFrame:
    """Return the time of every operator of the networks on every machine.

    A machine counts for an operator if the operator is one of its layers. The time is that of the
    fastest known schedule, and infinite if there is none. The columns are `machine`, `network`,
    `operator`, `pooled` (whether the layer includes a pool) and `seconds`.

    Raises:
        TruthError: with the present version of Tilewright, the machines have other layers.

    Errors of `TruthOptions.problem` are passed on.
    """
    problem = truth.options.problem()
    machines = [problem.design(row) for row in range(len(problem.hardware.points))]
    names = pd.DataFrame(
        [
            (design.row, layer.workload.id, network, operator, layer.workload.pool is not None)
            for design in machines
            for layer in design.layers
            for network, operator in layer.names
        ],
        columns=["machine", "workload", "network", "operator", "pooled"],
    )
    result = names.merge(truth.table, how="left", on=["machine", "workload"])
    if result["mhz"].isna().any():
        raise TruthError(
            "this truth was built for other layers, by another version of this program; "
            "build it again in another folder"
        )
    cycles = result["best_cycles"].where(result["best_cycles"] >= 0, np.inf)
    return names.drop(columns="workload").assign(seconds=cycles / (result["mhz"] * 1e6))


def relaxed_seconds(truth: Truth, operators: pd.DataFrame, networks: tuple[str, ...]) -> float:
    """Return the seconds of one inference per network if each operator ran on its fastest machine.

    Only machines that leave the same operators to the CPU and fuse the same pools are combined;
    otherwise, a combination could omit an operator that no single machine omits. The result is the
    minimum over all such groups of machines.

    Args:
        truth: the solved problem.
        operators: the table that `operators_of` returns.
        networks: names of the networks.

    Returns:
        The sum over operators and networks.
    """
    total, table = 0.0, truth.table.groupby("machine").first()
    for name in networks:
        subset = operators[operators["network"] == name]
        layers = pd.Series(
            list(zip(subset["operator"], subset["pooled"], strict=True)), subset.index
        )
        kinds = layers.groupby(subset["machine"]).agg(frozenset)
        alike = [kinds.index[kinds == kind] for kind in set(kinds)]
        total += min(
            float(
                subset[subset["machine"].isin(machines)].groupby("operator")["seconds"].min().sum()
                + table.loc[machines, f"cpu_seconds_{name}"].min()
            )
            for machines in alike
        )
    return total


def _quantiles(ratios: NDArray[np.float64]) -> str:
    low, middle, high = np.percentile(ratios, [10, 50, 90]) if len(ratios) else (np.nan,) * 3
    return f"median {middle:.4f}, tenths {low:.4f} and {high:.4f}, most {ratios.max(initial=0):.3f}"


if __name__ == "__main__":
    main()
