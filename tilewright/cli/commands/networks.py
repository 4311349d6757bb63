"""The commands `tilewright zoo` and `inspect`: built-in networks, and where operators run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import OfferedFields, ReadCode, say_remarks, with_options
from tilewright.core.options import CliOption
from tilewright.tuning.options import TuningOptions

if TYPE_CHECKING:
    from tilewright.targets.base import Target as Hardware
    from tilewright.tuning.fusion_interface import FusionSummary


@with_options
def inspect(
    options: Annotated[
        TuningOptions,
        OfferedFields(
            "model",
            "target",
            "input_shapes",
            "calibration",
            "max_waste",
            "epilogue",
            required=("model",),
            changed={"model": CliOption(positional=True, value="model"), "epilogue": CliOption()},
            described={
                "epilogue": "'network', 'per-channel' or 'plain', as for 'tilewright tune'."
            },
        ),
    ],
    brief: Annotated[
        bool,
        typer.Option(
            "--brief", help="Hide operators that are placed with the operator before them."
        ),
    ] = False,
    fusion: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page to this file. It shows which operators would be fused if each "
            "layer used the schedule with the best estimate, and what each fusion saves."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    allow_code: ReadCode = False,
) -> None:
    """Show where each operator of a network would run: on the accelerator, on the CPU, or nowhere.

    Also prints a lower bound of the time on the accelerator, and an estimate of the time of the
    operators that run on the CPU beside the accelerator.
    """
    from tilewright.cli.views.terminal import Terminal, show_working
    from tilewright.networks import load
    from tilewright.networks.offloading.accelerator import Accelerator
    from tilewright.targets import make_target
    from tilewright.tuning.preflight import check_source

    check_source(options.model)
    hardware = make_target(options.target)
    say_remarks(options.target)
    accelerator = Accelerator.for_target(hardware, options.epilogue_mode, options.max_waste)
    with show_working(f"reading {options.model}"):
        network = load(
            options.model, options.input_shapes or None, sandbox=True,
            calibration=Path(options.calibration) if options.calibration else None,
            allow_code=allow_code,
        )  # fmt: skip
        report = network.report_on(accelerator)
        drawn = None if fusion is None else _draw_fusion(fusion, hardware, network.name, options)
    if as_json:
        said = report.to_dict() | ({} if drawn is None else {"fusion": drawn})
        typer.echo(json.dumps(said, indent=2))
        return
    from tilewright.cli.views.networks import show_report

    host = not accelerator.computes_floats
    show_report(report, hardware.name, Terminal(), brief=brief, has_host=host)
    if drawn is not None:
        Terminal().print(_page_message(fusion, drawn))


def _draw_fusion(
    page: Path, hardware: Hardware, name: str, options: TuningOptions
) -> FusionSummary:
    """Write the HTML page about the fusions that estimates favour, and return the summary it shows.

    Args:
        page: file to write.
        hardware: the target.
        name: name of the network.
        options: the network and how to import it.
    """
    from tilewright.core.files import write_atomically
    from tilewright.fusion.decision import preview
    from tilewright.reports.fusion import fusion_page

    drawn = preview(options, hardware, name)
    drawing = fusion_page(name, hardware.name, drawn.summary, drawn.file)
    write_atomically(page, drawing)
    return drawn.summary


def _page_message(page: Path | None, said: FusionSummary) -> str:
    """Return a message with the page's path and the estimated cycles with and without fusion.

    Args:
        page: path of the page.
        said: summary of the fusion decisions.
    """
    from tilewright.reports.number_format import count_text

    fused = sum(decision["fused"] for decision in said["decisions"])
    return (
        f"wrote {page}: by estimates, {fused} of "
        f"{count_text(len(said['decisions']), 'decision')} fuse their operators; the "
        f"network takes {said['cycles']['greedy']:,} cycles, and "
        f"{said['cycles']['none']:,} without fusion"
    )


def zoo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the names as a JSON list.")
    ] = False,
) -> None:
    """List the built-in networks."""
    from tilewright.networks import zoo_names

    if as_json:
        typer.echo(json.dumps(list(zoo_names())))
        return
    from tilewright.cli.views.networks import show_zoo
    from tilewright.cli.views.terminal import Terminal
    from tilewright.networks.zoo.model_stats import facts

    show_zoo([facts(name) for name in zoo_names()], Terminal())
