"""Shows the results of `tilewright build`, `run` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewright.cli.views.terminal import ruled_table, say
from tilewright.core.files import Json
from tilewright.reports.building import accuracy_lines, built_lines
from tilewright.reports.number_format import mega, milliseconds, percent, plural

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
    table = ruled_table()
    table.add_column("layer", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=11)
    for name in ("MMAC", "cycles", "ms", "share", "roofline"):
        table.add_column(name, justify="right", no_wrap=True)
    whole = max(1, spent.cycles)
    for layer in spent.layers:
        table.add_row(
            layer.name, layer.operator, mega(layer.macs), f"{layer.cycles:,}",
            milliseconds(layer.cycles / spent.clock_hz), percent(layer.cycles / whole),
            f"{layer.roofline:,}",
        )  # fmt: skip
    console.print(table)
    for name, seconds in spent.cpu_seconds.items():
        say(console, f"CPU: {name} {milliseconds(seconds)} ms on this machine")
    say(console, _line(artifact, spent))


def profile_json(spent: Profile) -> dict[str, Json]:
    """The same for programs."""
    layers: Sequence[Json] = [
        {
            "name": layer.name, "names": list(layer.names), "operator": layer.operator,
            "macs": layer.macs, "cycles": layer.cycles,
            "milliseconds": layer.cycles / spent.clock_hz * 1e3, "cycles_alone": layer.alone,
            "roofline_cycles": layer.roofline, "segment": layer.segment,
        }
        for layer in spent.layers
    ]  # fmt: skip
    return {
        "cycles": spent.cycles,
        "milliseconds": spent.milliseconds,
        "cpu_milliseconds": spent.cpu_milliseconds,
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
        f"{right} of {len(checks)} {plural(len(checks), 'layer')} of {artifact.name} equal the "
        f"integer reference, {values:,} values",
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
    if spent.cpu_seconds:
        text += f", and {milliseconds(spent.cpu_milliseconds / 1e3)} ms of this machine's CPU"
    return text
