"""Display of artifacts: the result of a build, inferences on an accelerator, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console

from tilewright.cli.views.terminal import BREAK, Bars, columns_of, fitted_table, print_line
from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.evaluation.engines.timing import RoundTimed
from tilewright.flows.build import SchedulesFound
from tilewright.reports.artifact import accuracy_lines, built_lines
from tilewright.reports.number_format import count_text, energy, mega, milliseconds, percent
from tilewright.search.events import Event, StageBegan
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload

if TYPE_CHECKING:
    from tilewright.networks.artifact import Artifact, NetworkAccuracy, Profile
    from tilewright.networks.artifact.pipeline import PipelinePlan
    from tilewright.targets.artifact_types import LayerCheck


MEBI = 1 << 20


def show_built(manifest: Mapping[str, Json], out: Path, console: Console) -> None:
    """Show the contents of an artifact and its costs.

    Args:
        manifest: manifest of the artifact.
        out: folder of the artifact.
        console: the terminal.
    """
    for line in built_lines(manifest, out):
        print_line(console, line)


def show_run(artifact: Artifact, spent: Profile, output: Path, console: Console) -> None:
    """Show the time of an inference on the simulated accelerator, and the file with its outputs.

    Args:
        artifact: the artifact that was run.
        spent: time per layer.
        output: file with the outputs.
        console: the terminal.
    """
    print_line(console, f"{_line(artifact, spent)} → {output}")


def show_profile(artifact: Artifact, spent: Profile, console: Console) -> None:
    """Show a table with the cycles of each layer, followed by the time of each part on the CPU.

    Args:
        artifact: the artifact that was run.
        spent: time per layer and per CPU part.
        console: the terminal.
    """
    whole, titles = max(1, spent.cycles), layer_titles(artifact.manifest)
    rows = [
        {
            "layer": titles[layer.name],
            "operator": layer.operator,
            "MMAC": mega(layer.macs),
            "cycles": f"{layer.cycles:,}",
            "ms": milliseconds(layer.cycles / spent.clock_hz),
            "share": percent(layer.cycles / whole),
            "roofline": f"{layer.roofline:,}",
        }
        for layer in spent.layers
    ]
    droppable = ("operator", "MMAC", BREAK, "roofline")
    console.print(fitted_table(columns_of(rows), droppable, console.width, left=("operator",)))
    for name, seconds in spent.cpu_seconds.items():
        print_line(console, f"CPU: {name} {milliseconds(seconds)} ms on this machine")
    print_line(console, _line(artifact, spent))


def layer_titles(manifest: Mapping[str, Json]) -> dict[str, str]:
    """Return titles of an artifact's layers, by name of the layer.

    A title contains the name, the shape and the post-operations of the layer.

    Args:
        manifest: manifest of the artifact.
    """
    rows = map(as_object, as_list(manifest["layers"]))
    return {
        (name := as_text(row["name"])): layer(
            [name], parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
        )
        for row in rows
    }


def profile_json(spent: Profile) -> dict[str, Json]:
    """Return the times that `show_profile` shows as JSON, with more details per layer."""
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
        "microjoules": spent.microjoules,
        "layers": layers,
        "segments": list(spent.segments),
        "cpu": [{"name": k, "milliseconds": v * 1e3} for k, v in spent.cpu_seconds.items()],
    }


def show_checks(artifact: Artifact, checks: Sequence[LayerCheck], console: Console) -> None:
    """Show the layers with wrong values, and the number of correct layers.

    Args:
        artifact: the artifact.
        checks: number of compared and of wrong values, one entry per layer.
        console: the terminal.
    """
    rows = artifact.rows
    for check in checks:
        if check.wrong:
            print_line(
                console,
                f"{rows[check.layer].name}: {check.wrong:,} of {check.values:,} values are wrong",
            )
    right = sum(not check.wrong for check in checks)
    values = sum(check.values for check in checks)
    print_line(
        console,
        f"{right} of {count_text(len(checks), 'layer')} of {artifact.name} equal the "
        f"integer reference; {count_text(values, 'value')} compared",
    )


def show_accuracy(artifact: Artifact, whole: NetworkAccuracy | None, console: Console) -> None:
    """Show the error of the network's outputs relative to its source model.

    Args:
        artifact: the artifact.
        whole: errors of the outputs; None if the artifact contains no outputs of its source model.
        console: the terminal.
    """
    if whole is None:
        print_line(
            console,
            f"{artifact.name} contains no outputs of its source model, so the whole "
            "network is not compared",
        )
        return
    for line in accuracy_lines(whole.to_json()):
        print_line(console, line)
    if not whole.is_right:
        print_line(
            console,
            "the network's outputs are WRONG: build it again with real samples (--calibration)",
        )


def checks_json(
    artifact: Artifact, checks: Sequence[LayerCheck], whole: NetworkAccuracy | None
) -> dict[str, Json]:
    """Return the results of `tilewright verify` for an accelerator's artifact as JSON.

    Args:
        artifact: the artifact.
        checks: number of compared and of wrong values, one entry per layer.
        whole: errors of the network's outputs; None if they were not compared.
    """
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
        text += f", {energy(spent.microjoules)} (estimated)"
    if spent.cpu_seconds:
        text += f", and {milliseconds(spent.cpu_milliseconds / 1e3)} ms of this machine's CPU"
    return text


_STAGES = {
    "read_model": "reading",
    "integer_network": "quantising",
    "read_layers": "reading",
    "choose_schedules": "choosing schedules",
    "choose_kernels": "choosing schedules",
    "link_artifact": "linking",
    "compile_library": "compiling",
    "faster_in_onnxruntime": "timing",
    "read_sizes": "reading",
    "join_sizes": "comparing sizes",
    "write_library": "writing",
    "write_model": "preparing",
    "time_engines": "timing",
}


class Building:
    """Progress display of a build: the current step. The object is a listener for events.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._bar = Bars(console)
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show the current step and its progress: chosen schedules or undisturbed timing rounds."""
        match event:
            case StageBegan():
                what = _STAGES.get(event.name, event.name)
                self._bar.update(self._task, description=what, total=None, completed=0)
            case SchedulesFound():
                self._bar.update(self._task, completed=event.done, total=event.whole)
            case RoundTimed():
                self._bar.update(self._task, completed=event.quiet, total=event.wanted)


KIBI = 1 << 10


def show_pipeline(
    artifact: Artifact, planned: PipelinePlan, images: int, output: Path, console: Console
) -> None:
    """Show how fast images run one after the other, and with CPU and accelerator overlapped.

    Shown are the latency, the throughput of both forms and its upper bound, how busy the CPU and
    the accelerator are, and the memory.

    Args:
        artifact: the artifact.
        planned: plan of the overlapped inferences.
        images: number of images that were run.
        output: file with the outputs.
        console: the terminal.
    """
    cpu, accelerator = planned.busy("cpu"), planned.busy("accelerator")
    alone, overlapped = 1 / planned.latency, 1 / planned.interval
    taken = planned.taken.steady
    print_line(
        console, f"{artifact.name} on {artifact.target}: {count_text(images, 'image')} → {output}"
    )
    print_line(
        console,
        f"  latency      {milliseconds(planned.latency)} ms: CPU {milliseconds(cpu)} "
        f"ms, accelerator {milliseconds(accelerator)} ms",
    )
    print_line(console, f"  sequential   {rate(alone)} images/s")
    print_line(
        console,
        f"  pipelined    {rate(overlapped)} images/s "
        f"(+{percent(overlapped / alone - 1)}); the upper bound is "
        f"{rate(1 / planned.bound)}",
    )
    print_line(
        console,
        f"  busy         CPU {percent(cpu / planned.interval)}, "
        f"accelerator {percent(accelerator / planned.interval)}",
    )
    print_line(
        console,
        f"  in flight    {count_text(taken.in_flight, 'image')}, "
        f"{_size(planned.more_bytes)} more accelerator memory, latency up to "
        f"{milliseconds(taken.latency)} ms",
    )
    print_line(console, f"  {_cpu_line(artifact, planned)}")


def pipeline_json(planned: PipelinePlan, images: int) -> dict[str, Json]:
    """Return the times that `show_pipeline` shows as JSON, and those of the plans not chosen.

    Args:
        planned: plan of the overlapped inferences.
        images: number of images that were run.
    """
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
                "in_flight": choice.steady.in_flight,
                "images_per_second": 1 / choice.steady.interval,
                "latency_milliseconds": 1e3 * choice.steady.latency,
                "is_exact": choice.steady.is_exact,
                "dram_bytes": choice.dram_bytes,
            }
            for choice in planned.choices
        ],
        "stages": [
            {"resource": stage.resource, "milliseconds": stage.nanoseconds / 1e6}
            for stage in planned.stages
        ],
    }


def rate(images_per_second: float) -> str:
    """Return a rate with three significant digits, or without decimals if it is 100 or more."""
    if images_per_second >= 99.95:
        return f"{images_per_second:,.0f}"
    return f"{images_per_second:#.3g}"


def _cpu_line(artifact: Artifact, planned: PipelinePlan) -> str:
    """Return a sentence that says whether a pipeline's CPU times were measured or estimated."""
    packing = f"{milliseconds(planned.cpu.packing)} ms of it packing"
    slower = f"scaled for a CPU that is {artifact.host_slowdown:g} times as slow"
    if not planned.has_islands:
        return (
            "no operator runs on the CPU, so that only packing overlaps; its time is an "
            f"estimate {slower}"
        )
    if planned.cpu.source == "measured":
        return f"CPU time was measured here, {slower}; {packing}"
    return f"CPU time is an estimate, {slower}; {packing}"


def _size(size: int) -> str:
    return f"{size / MEBI:.2f} MiB" if size >= MEBI // 10 else f"{size / KIBI:.0f} KiB"
