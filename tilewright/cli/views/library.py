"""Display of CPU libraries: inference times, errors, and the comparison with other engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tilewright.cli.views.artifact import layer_titles
from tilewright.cli.views.terminal import BREAK, columns_of, fitted_table, print_line
from tilewright.core.files import Json, as_text
from tilewright.evaluation.engines.engine import OWN, version_of
from tilewright.flows.benchmark import Benchmark
from tilewright.networks.artifact.library import CompiledArtifact, KernelError
from tilewright.networks.artifact.library_profile import LibraryProfile
from tilewright.reports.number_format import decimal, mega, milliseconds, percent, pluralise

MEBI = 1 << 20


def show_time_shares(artifact: CompiledArtifact, console: Console) -> None:
    """Run the library on its sample inputs, and show the time and the fraction outside the kernels.

    Nothing is run or shown if the artifact contains no sample inputs.

    Args:
        artifact: the library.
        console: the terminal.
    """
    if not artifact.has_samples:
        return
    _, spent = artifact.run(artifact.check_inputs(), layers=True)
    rest = sum(seconds for _, seconds in spent.others)
    whole = sum(layer.seconds for layer in spent.layers) + rest
    slowest = max(spent.others, key=lambda item: item[1], default=None)
    told = "" if slowest is None else f", most in {slowest[0]} ({percent(slowest[1] / whole)})"
    print_line(
        console,
        f"  {milliseconds(spent.seconds)} ms per inference, {percent(rest / whole)} "
        f"of it outside the kernels{told}",
    )


def show_library_run(
    artifact: CompiledArtifact, spent: LibraryProfile, output: Path, console: Console
) -> None:
    """Show the time of an inference of a CPU library, and the file with its outputs.

    Args:
        artifact: the library that was run.
        spent: time per layer.
        output: file with the outputs.
        console: the terminal.
    """
    print_line(console, f"{_layer_line(artifact, spent)} → {output}")


def show_library_profile(
    artifact: CompiledArtifact, spent: LibraryProfile, console: Console
) -> None:
    """Show a table with the time of each layer, and the total time between the kernels.

    Args:
        artifact: the library.
        spent: time per layer.
        console: the terminal.
    """
    rest = sum(seconds for _, seconds in spent.others)
    whole = sum(layer.seconds for layer in spent.layers) + rest
    titles = layer_titles(artifact.manifest)
    rows = [
        {
            "layer": titles[layer.name],
            "operator": layer.operator,
            "MMAC": mega(layer.macs),
            "ms": milliseconds(layer.seconds),
            "share": percent(layer.seconds / whole),
            "GFLOP/s": f"{layer.gflops:.0f}",
        }
        for layer in spent.layers
    ]
    between = {"layer": "between the kernels", "ms": milliseconds(rest)}
    rows.append(dict.fromkeys(rows[0], "") | between | {"share": percent(rest / whole)})
    droppable = ("operator", "MMAC", BREAK, "GFLOP/s")
    console.print(fitted_table(columns_of(rows), droppable, console.width, left=("operator",)))
    print_line(console, _layer_line(artifact, spent))


def library_profile_json(spent: LibraryProfile) -> dict[str, Json]:
    """Return the contents of `show_library_profile` as JSON."""
    layers: Sequence[Json] = [
        {
            "name": layer.name, "names": list(layer.names), "operator": layer.operator,
            "macs": layer.macs, "cycles": None, "milliseconds": 1e3 * layer.seconds,
            "function": layer.function,
        }
        for layer in spent.layers
    ]  # fmt: skip
    return {
        "cycles": None,
        "milliseconds": spent.milliseconds,
        "layers": layers,
        "others": [{"name": name, "milliseconds": 1e3 * s} for name, s in spent.others],
    }


def show_errors(
    artifact: CompiledArtifact, errors: Sequence[KernelError], whole: float, console: Console
) -> None:
    """Show the layers that differ too much from the reference, and the error of the whole network.

    Args:
        artifact: the library.
        errors: largest difference of each layer, relative to the largest value of the reference.
        whole: relative error of the network's outputs.
        console: the terminal.
    """
    for error in errors:
        if error.is_wrong:
            name = as_text(artifact.rows[error.layer]["name"])
            print_line(console, f"{name}: differs from the reference by {error.error:.1e}")
    right, worst = (
        sum(not item.is_wrong for item in errors),
        max((item.error for item in errors), default=0.0),
    )
    print_line(
        console,
        f"{right} of {len(errors)} {pluralise(len(errors), 'layer')} of {artifact.name} "
        f"agree with the reference; the largest difference is {worst:.1e} of the "
        "largest value",
    )
    agrees = "agrees" if whole <= artifact.tolerance else "does not agree"
    reference = as_text(artifact.manifest["reference"])
    print_line(console, f"the whole network {agrees} with {reference}: {whole:.1e}")


def errors_json(
    artifact: CompiledArtifact, errors: Sequence[KernelError], whole: float
) -> dict[str, Json]:
    """Return the results of `tilewright verify` for a library as JSON.

    Args:
        artifact: the library.
        errors: largest difference of each layer, relative to the largest value of the reference.
        whole: relative error of the network's outputs.
    """
    layers: Sequence[Json] = [
        {"name": artifact.rows[error.layer]["name"], "error": error.error, "wrong": error.is_wrong}
        for error in errors
    ]
    right = whole <= artifact.tolerance and not any(error.is_wrong for error in errors)
    return {
        "right": right,
        "output_error": whole,
        "tolerance": artifact.tolerance,
        "layers": layers,
    }


def _layer_line(artifact: CompiledArtifact, spent: LibraryProfile) -> str:
    return (
        f"{artifact.name} on {artifact.target}: {milliseconds(spent.seconds)} ms per "
        "inference on this machine"
    )


def show_benchmark(made: Benchmark, console: Console) -> None:
    """Show a table with one row per inference engine, and the number of undisturbed rounds.

    Args:
        made: the benchmark.
        console: the terminal.
    """
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
    print_line(
        console,
        f"{made.network} on {made.threads} {pluralise(made.threads, 'thread')}: {quiet} "
        f"of {whole} rounds were undisturbed, load {timed.load:.1f} at the start",
    )
    if not timed.trustworthy:
        print_line(
            console,
            "other work on this machine disturbed most rounds, so the figures "
            "include disturbed rounds; end the other work and repeat the command",
        )


def benchmark_json(made: Benchmark) -> dict[str, Json]:
    """Return the result of a benchmark as JSON, with the times of every round."""
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
