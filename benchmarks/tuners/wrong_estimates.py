"""Measures what learning gains where the estimates are of another machine than the measured one.

    .venv/bin/python -m benchmarks.tuners.wrong_estimates

Tuners that use closed-form estimates get those of `vta-pynq`; what they measure is `vta-pynq` with
other memory: later answers, shorter bursts, another width. The template space is enumerated on
every machine, so regret is against the true optimum of the machine measured. `estimate` believes
the estimates as they are, `default` starts from them and learns, `default-blind` and the others
never see them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.layers import DEVELOPMENT
from benchmarks.results import Jobs, Seeds, Tuners
from tilewright.cli.views.comparison import comparing
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.leaderboard import Results
from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Estimates, HasCosts, capability
from tilewright.targets.cluster.connection import local_cluster
from tilewright.targets.replay import ReplayTarget
from tilewright.targets.vta.spec import VtaSpec

BELIEVED = "vta-pynq"
MACHINES: dict[str, dict[str, object]] = {
    "as estimated": {},
    "latency 16 → 400": {"memory_latency_cycles": 400},
    "bursts 256 → 8, latency 100": {"max_burst_beats": 8, "memory_latency_cycles": 100},
    "bus 64 → 256 bits": {"bus_bits": 256},
    "one read at a time, latency 100": {"read_tags": 1, "memory_latency_cycles": 100},
}
LAYERS = ("C2", "C4", "C8", "C10", "resnet50 1")
TUNERS = "estimate,default,default-blind,autotvm,autotvm:plan=16,random"
LOOKS = (8, 64)  # trials after which regret is read


@dataclass(frozen=True)
class MisjudgedTestBed(EnumeratedTestBed):
    """Measures `target`, but its estimates are those of another one."""

    believed: str = BELIEVED

    def open(self, name: str) -> Target:
        believed = make_target(self.believed, self.space)
        measured = make_target(self.target, self.space)
        return ReplayTarget(
            [self.table(name)],
            name=f"{self.believed} believed",
            hardware=believed.hardware_features(),
            estimates=capability(believed, Estimates),
            costs=capability(measured, HasCosts),
        )


def main(
    tuners: Tuners = TUNERS,
    seeds: Seeds = 10,
    jobs: Jobs = 2,
    out: Path = Path("built/wrong_estimates"),
) -> None:
    """Run all machines and print what each tuner makes of them."""
    layers = tuple((name, DEVELOPMENT[name]) for name in LAYERS)
    table, figures = _table(), {}
    console = Console(width=120)
    for place, (name, changed) in enumerate(MACHINES.items()):
        folder = out / str(place)
        bed = MisjudgedTestBed(_written(folder, name, changed), "template", layers, folder)
        what = plan(bed, parse_tuner_configs(tuners), range(seeds), max(LOOKS), 8)
        with comparing(console) as progress:
            compared = run_comparison(LocalRunner(progress), what, folder, local_cluster(jobs))
        results = compared.results
        figures[name] = {tuner: _figures(results, k) for k, tuner in enumerate(results.tuners)}
        for k, (tuner, row) in enumerate(figures[name].items()):
            table.add_row(name if k == 0 else "", tuner, *row.values())
        table.add_section()
    console.print(table)
    (out / "figures.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False))


def _written(folder: Path, name: str, changed: dict[str, object]) -> str:
    """The file of the machine that is measured."""
    keys = VtaSpec.load(BELIEVED).model_dump(by_alias=True, exclude={"source"})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "machine.json"
    path.write_text(json.dumps(keys | {"name": f"{BELIEVED}, {name}"} | changed))
    return str(path)


def _table() -> Table:
    table = Table(title=f"{len(LAYERS)} layers, template space; estimates are of {BELIEVED}")
    for name in ("machine", "tuner"):
        table.add_column(name)
    for look in LOOKS:
        table.add_column(f"regret at {look}:\nmedian", justify="right")
        table.add_column("worst layer", justify="right")
    table.add_column("trials to 1 %", justify="right")
    return table


def _figures(results: Results, k: int) -> dict[str, str]:
    """Medians over seeds: of all layers together, of the worst layer, and trials in whole batches
    (geometric mean over layers)."""
    row = {}
    for look in LOOKS:
        regret = results.regret[k, :, :, look - 1]
        row[f"regret at {look}"] = f"{np.median(results.overall[k, :, look - 1]):.2%}"
        row[f"worst at {look}"] = f"{np.median(regret, axis=1).max():.1%}"
    trials = np.median(results.trials_to_goal[k], axis=-1)
    share = results.reached[k].mean()
    mark = "" if share == 1 else "≥ "
    row["trials"] = f"{mark}{np.exp(np.log(trials).mean()):.0f} ({share:.0%} of runs)"
    return row


if __name__ == "__main__":
    typer.run(main)
