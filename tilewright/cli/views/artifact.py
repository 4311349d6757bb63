"""Shows the results of `tilewright build`, `run` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewright.cli.views.terminal import BREAK, columns_of, fitted_table, say
from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.reports.artifact import accuracy_lines, built_lines
from tilewright.reports.number_format import counted, energy, mega, milliseconds, percent
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload

if TYPE_CHECKING:
    from tilewright.networks.artifact import Artifact, NetworkAccuracy, Profile
    from tilewright.targets.artifact_types import LayerCheck

MEBI = 1 << 20


def show_built(manifest: Mapping[str, Json], out: Path, console: Console) -> None:
    """What an artifact holds and costs."""
    for line in built_lines(manifest, out):
        say(console, line)


def show_run(artifact: Artifact, spent: Profile, output: Path, console: Console) -> None:
    """What an inference took."""
    say(console, f"{_line(artifact, spent)} → {output}")


def show_profile(artifact: Artifact, spent: Profile, console: Console) -> None:
    """Where the time goes: a row a layer, then what the CPU did."""
    whole, titles = max(1, spent.cycles), layer_titles(artifact.manifest)
    rows = [
        {
            "layer": titles[each.name],
            "operator": each.operator,
            "MMAC": mega(each.macs),
            "cycles": f"{each.cycles:,}",
            "ms": milliseconds(each.cycles / spent.clock_hz),
            "share": percent(each.cycles / whole),
            "roofline": f"{each.roofline:,}",
        }
        for each in spent.layers
    ]
    droppable = ("operator", "MMAC", BREAK, "roofline")
    console.print(fitted_table(columns_of(rows), droppable, console.width, left=("operator",)))
    for name, seconds in spent.cpu_seconds.items():
        say(console, f"CPU: {name} {milliseconds(seconds)} ms on this machine")
    say(console, _line(artifact, spent))


def layer_titles(manifest: Mapping[str, Json]) -> dict[str, str]:
    """What tables call the layers of an artifact, by their names: with the shape and
    post-operations of each."""
    rows = map(as_object, as_list(manifest["layers"]))
    return {
        (name := as_text(row["name"])): layer(
            [name], parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
        )
        for row in rows
    }


def profile_json(spent: Profile) -> dict[str, Json]:
    """The same for programs."""
    layers: Sequence[Json] = [
        {
            "name": each.name, "names": list(each.names), "operator": each.operator,
            "macs": each.macs, "cycles": each.cycles,
            "milliseconds": each.cycles / spent.clock_hz * 1e3, "cycles_alone": each.alone,
            "roofline_cycles": each.roofline, "segment": each.segment,
        }
        for each in spent.layers
    ]  # fmt: skip
    return {
        "cycles": spent.cycles,
        "milliseconds": spent.milliseconds,
        "cpu_milliseconds": spent.cpu_milliseconds,
        "microjoules": spent.microjoules,
        "layers": layers,
        "segments": list(spent.segments),
        "cpu": [{"name": k, "milliseconds": v * 1e3} for k, v in spent.cpu_seconds.items()],
    }


def show_checks(artifact: Artifact, checks: Sequence[LayerCheck], console: Console) -> None:
    """The layers that are wrong, and how many are right."""
    rows = artifact.rows
    for check in checks:
        if check.wrong:
            say(console, f"{rows[check.layer].name}: {check.wrong:,} of {check.values:,} wrong")
    right = sum(not check.wrong for check in checks)
    values = sum(check.values for check in checks)
    say(
        console,
        f"{right} of {counted(len(checks), 'layer')} of {artifact.name} equal the "
        f"integer reference, {counted(values, 'value')}",
    )


def show_accuracy(artifact: Artifact, whole: NetworkAccuracy | None, console: Console) -> None:
    """How far the whole network's outputs are from its source model's."""
    if whole is None:
        say(console, f"{artifact.name} holds no outputs of its source model to compare with")
        return
    for line in accuracy_lines(whole.to_json()):
        say(console, line)
    if not whole.is_right:
        say(console, "its outputs are WRONG: build it again, with real samples (--calibration)")


def checks_json(
    artifact: Artifact, checks: Sequence[LayerCheck], whole: NetworkAccuracy | None
) -> dict[str, Json]:
    """The same for programs."""
    layers: Sequence[Json] = [
        {"name": artifact.rows[c.layer].name, "values": c.values, "wrong": c.wrong} for c in checks
    ]
    right = all(not check.wrong for check in checks) and (whole is None or whole.is_right)
    return {
        "right": right, "layers": layers, "network": None if whole is None else whole.to_json()
    }  # fmt: skip


def _line(artifact: Artifact, spent: Profile) -> str:
    text = (
        f"{artifact.name} on {artifact.target}: {spent.cycles:,} cycles, "
        f"{milliseconds(spent.milliseconds / 1e3)} ms at {spent.clock_hz / 1e6:g} MHz"
    )
    if spent.microjoules is not None:
        text += f", {energy(spent.microjoules)} by an estimate"
    if spent.cpu_seconds:
        text += f", and {milliseconds(spent.cpu_milliseconds / 1e3)} ms of this machine's CPU"
    return text
