"""Shows what a network takes by several engines, for `tilewright benchmark`."""

from __future__ import annotations

from rich.console import Console

from tilewright.cli.views.terminal import columns_of, fitted_table, say
from tilewright.core.files import Json
from tilewright.evaluation.engines.engine import OWN, version_of
from tilewright.flows.benchmark import Benchmark
from tilewright.reports.number_format import decimal, plural


def show_benchmark(made: Benchmark, console: Console) -> None:
    """A row an engine, then of how many rounds the figures are."""
    timed = made.timed
    rows = []
    for name, times in timed.engines.items():
        row = {
            "engine": f"{name} {version_of(name)}",
            "ms": f"{timed.milliseconds(name):.3f}",
            "tilewright takes": "", "95 % interval": "", "of CPU time": "",
            "peak MB": f"{times.peak_bytes / 1e6:.0f}" if times.peak_bytes else "",
            "outputs differ": f"{times.difference:.1e}" if name != OWN else "",
        }  # fmt: skip
        if name != OWN:
            wall, cpu = timed.ratio(OWN, name), timed.ratio(OWN, name, cpu=True)
            row["tilewright takes"] = f"{decimal(wall.median)}×"
            row["95 % interval"] = f"{decimal(wall.low)} – {decimal(wall.high)}"
            row["of CPU time"] = f"{decimal(cpu.median)}×"
        rows.append(row)
    droppable = ("peak MB", "of CPU time", "outputs differ", "95 % interval")
    console.print(fitted_table(columns_of(rows), droppable, console.width))
    quiet, whole = int(timed.quiet.sum()), len(timed.quiet)
    say(
        console,
        f"{made.network} on {made.threads} {plural(made.threads, 'thread')}: "
        f"{quiet} of {whole} rounds were quiet, load {timed.load:.1f} at the beginning",
    )
    if not timed.trustworthy:
        say(
            console,
            "too few rounds were quiet, so the figures are of all: other work on this machine "
            "disturbs them; end it and run this again",
        )


def benchmark_json(made: Benchmark) -> dict[str, Json]:
    """The same for programs, with the figures of every round."""
    timed = made.timed
    engines: list[Json] = []
    for name, times in timed.engines.items():
        row: dict[str, Json] = {
            "engine": name, "version": version_of(name), "milliseconds": timed.milliseconds(name),
            "difference": times.difference, "peak_bytes": times.peak_bytes,
            "wall_seconds": times.wall.tolist(), "cpu_seconds": times.cpu.tolist(),
        }  # fmt: skip
        if name != OWN:
            for key, ratio in (
                ("wall_ratio", timed.ratio(OWN, name)),
                ("cpu_ratio", timed.ratio(OWN, name, cpu=True)),
            ):
                row[key] = {"median": ratio.median, "low": ratio.low, "high": ratio.high}
        engines.append(row)
    return {
        "network": made.network, "threads": made.threads, "engines": engines,
        "quiet": timed.quiet.tolist(), "trustworthy": timed.trustworthy, "load": timed.load,
    }  # fmt: skip
