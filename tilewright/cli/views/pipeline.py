"""Shows what `tilewright run --pipeline` found: images/s with and without overlap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewright.cli.views.terminal import say
from tilewright.core.files import Json
from tilewright.reports.number_format import counted, milliseconds, percent

if TYPE_CHECKING:
    from tilewright.networks.artifact import Artifact
    from tilewright.networks.artifact.pipeline import PipelinePlan

KIBI = 1 << 10
MEBI = 1 << 20


def show_pipeline(
    artifact: Artifact, planned: PipelinePlan, images: int, output: Path, console: Console
) -> None:
    """Latency, images/s, what is busy how much, and what the overlap costs."""
    cpu, accelerator = planned.busy("cpu"), planned.busy("accelerator")
    alone, overlapped = 1 / planned.latency, 1 / planned.interval
    taken = planned.taken.steady
    say(console, f"{artifact.name} on {artifact.target}: {counted(images, 'image')} → {output}")
    say(
        console,
        f"  latency      {milliseconds(planned.latency)} ms: CPU {milliseconds(cpu)} ms, "
        f"accelerator {milliseconds(accelerator)} ms",
    )
    say(console, f"  one by one   {rate(alone)} images/s")
    say(
        console,
        f"  overlapped   {rate(overlapped)} images/s (+{percent(overlapped / alone - 1)}); "
        f"no schedule gives more than {rate(1 / planned.bound)}",
    )
    say(
        console,
        f"  busy         CPU {percent(cpu / planned.interval)}, "
        f"accelerator {percent(accelerator / planned.interval)}",
    )
    say(
        console,
        f"  in flight    {counted(taken.in_flight, 'image')}, {_size(planned.more_bytes)} more of "
        f"the accelerator's memory, latency up to {milliseconds(taken.latency)} ms",
    )
    say(console, f"  {_cpu_line(artifact, planned)}")


def pipeline_json(planned: PipelinePlan, images: int) -> dict[str, Json]:
    """The same for programs."""
    taken = planned.taken
    return {
        "images": images,
        "latency_milliseconds": 1e3 * planned.latency,
        "cpu_milliseconds": 1e3 * planned.busy("cpu"),
        "packing_milliseconds": 1e3 * planned.cpu.packing,
        "cpu_times": planned.cpu.source,
        "accelerator_milliseconds": 1e3 * planned.busy("accelerator"),
        "images_per_second": 1 / planned.latency,
        "overlapped_images_per_second": 1 / planned.interval,
        "bound_images_per_second": 1 / planned.bound,
        "cpu_busy": planned.busy("cpu") / planned.interval,
        "accelerator_busy": planned.busy("accelerator") / planned.interval,
        "in_flight": taken.steady.in_flight,
        "overlapped_latency_milliseconds": 1e3 * taken.steady.latency,
        "dram_bytes": taken.dram_bytes,
        "more_dram_bytes": planned.more_bytes,
        "has_islands": planned.has_islands,
        "choices": [
            {
                "in_flight": each.steady.in_flight,
                "images_per_second": 1 / each.steady.interval,
                "latency_milliseconds": 1e3 * each.steady.latency,
                "is_exact": each.steady.is_exact,
                "dram_bytes": each.dram_bytes,
            }
            for each in planned.choices
        ],
        "stages": [
            {"resource": each.resource, "milliseconds": each.nanoseconds / 1e6}
            for each in planned.stages
        ],
    }


def rate(images_per_second: float) -> str:
    """Three digits, or all before the point."""
    if images_per_second >= 99.95:
        return f"{images_per_second:,.0f}"
    return f"{images_per_second:#.3g}"


def _cpu_line(artifact: Artifact, planned: PipelinePlan) -> str:
    """Where the CPU's time comes from."""
    packing = f"{milliseconds(planned.cpu.packing)} ms of it packing"
    slower = f"for a CPU that takes {artifact.host_slowdown:g} times as long"
    if not planned.has_islands:
        return f"no operator is left to the CPU: only packing overlaps, an estimate {slower}"
    if planned.cpu.source == "measured":
        return f"CPU time was measured here and counted {slower}; {packing}"
    return f"CPU time is an estimate, {slower}; {packing}"


def _size(size: int) -> str:
    return f"{size / MEBI:.2f} MiB" if size >= MEBI // 10 else f"{size / KIBI:.0f} KiB"
