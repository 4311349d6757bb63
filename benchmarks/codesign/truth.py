"""Solves hardware and schedules together, so that a search over both can be judged.

    python -m benchmarks.codesign.truth --out built/truth            # minutes of one core
    python -m benchmarks.codesign.truth --out built/small --quick    # digits_cnn, a minute

Builds what the folder lacks (it can be stopped at any time) and prints how tight what is known is:
the fastest schedule found over what no schedule beats (`benchmarks.codesign.exact_solver`). Beside
the fastest machine it prints what each layer on a machine of its own would take, as work on single
layers reports it: no machine that one can build beats that.
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
"""Few enough to solve: blocks of 8 to 64 channels, buffers around those of the stock machine."""
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
    """Build what is missing, print how tight it is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--show", action="store_true", help="only print a summary of what is finished"
    )
    given = parser.parse_args()
    options = QUICK if given.quick else GRID
    print(summary(read_truth(given.out) if given.show else made(given.out, options)))


def made(out: Path, options: TruthOptions) -> Truth:
    """The truth of a folder, built as far as it is missing."""
    return build_truth(out, options, listen=Progress())


class Progress:
    """Says how far a build is."""

    def __init__(self) -> None:
        self.begin, self.done, self.machines = time.perf_counter(), 0, 0

    def __call__(self, event: PlannedMachines | PartDone | Damaged) -> None:
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
    """How tight the truth is, by layer and by network, and what the front is."""
    table, operators = truth.table, operators_of(truth)
    found = table[table["best_cycles"] > 0]
    ratio = (found["best_cycles"] / found["bound_cycles"]).to_numpy(np.float64)
    lines = [
        f"{table['machine'].nunique()} machines, {table['layer'].nunique()} layers, {len(table):,} "
        f"pairs; {int(table['tried'].sum()):,} of {int(table['schedules'].sum()):,} schedules that "
        "may fit simulated",
        f"without a schedule: {len(table) - len(found)} pairs, of which "
        f"{int((table['bound_cycles'] < 0).sum())} have none",
        f"best over bound: {_quantiles(ratio)}; exact {found['exact'].mean():.1%}",
    ]
    for name in (*truth.networks, *([""] if len(truth.networks) > 1 else [])):
        which = (name,) if name else truth.networks
        best, bound = (truth.seconds(each, which) for each in ("best_cycles", "bound_cycles"))
        runs = np.isfinite(best)
        lines.append(
            f"{name or 'all networks':14} best over bound: {_quantiles(best[runs] / bound[runs])}; "
            f"{int(runs.sum())} machines run it; the fastest takes {1e3 * best.min():.3f} ms; each "
            f"layer on a machine of its own {1e3 * relaxed(truth, operators, which):.3f} ms, which "
            "no machine that can be built beats"
        )
    best, bound = truth.points(), truth.points("bound_cycles")
    reference = truth.reference()
    volumes = [hypervolume(points, reference) for points in (best, bound)]
    lines.append(
        f"hypervolume of the best {volumes[0]:.4f}, of the bounds {volumes[1]:.4f} "
        f"({volumes[0] / volumes[1]:.1%})"
    )
    for layer, rows in found.groupby("layer"):
        ratios = (rows["best_cycles"] / rows["bound_cycles"]).to_numpy(np.float64)
        lines.append(f"  {layer!s:62} {_quantiles(ratios)}; exact {rows['exact'].mean():.0%}")
    return "\n".join(lines)


def operators_of(truth: Truth) -> pd.DataFrame:
    """Seconds of every operator of the networks on every machine that has it as a layer, by the
    fastest schedule known, infinite without one: columns `machine`, `network`, `operator`, `pooled`
    (whether a pool is done with it) and `seconds`. Raises `TruthError` where the machines of the
    truth run other layers today, and as `TruthOptions.problem`."""
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
    found = names.merge(truth.table, how="left", on=["machine", "workload"])
    if found["mhz"].isna().any():
        raise TruthError(
            "this truth was built for other layers, by another version of this program; "
            "build it again in another folder"
        )
    cycles = found["best_cycles"].where(found["best_cycles"] >= 0, np.inf)
    return names.drop(columns="workload").assign(seconds=cycles / (found["mhz"] * 1e6))


def relaxed(truth: Truth, operators: pd.DataFrame, networks: tuple[str, ...]) -> float:
    """Seconds of one inference of each network, if every operator ran on the machine that runs it
    fastest. `operators` is as `operators_of` has them. Machines mix that leave the CPU the same and
    pool alike: else the best of each would leave out what neither does. Of all such kinds the
    fastest counts."""
    total, table = 0.0, truth.table.groupby("machine").first()
    for name in networks:
        own = operators[operators["network"] == name]
        layers = pd.Series(list(zip(own["operator"], own["pooled"], strict=True)), own.index)
        kinds = layers.groupby(own["machine"]).agg(frozenset)
        alike = [kinds.index[kinds == kind] for kind in set(kinds)]
        total += min(
            float(
                own[own["machine"].isin(machines)].groupby("operator")["seconds"].min().sum()
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
