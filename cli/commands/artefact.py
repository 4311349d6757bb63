"""`tilewright build`, `run` and `verify`: a tuned network as one folder, and what it computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import Calibration, InputShape, Model, Target, read_input_shapes
from targets.errors import TilewrightError

if TYPE_CHECKING:
    from networks.artefact import Artefact, CompiledArtefact
    from networks.artefact.run import Array

Folder = Annotated[Path, typer.Argument(metavar="ART", help="What 'tilewright build' wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TRIALS = 16
MOST_INPUT_BYTES = 1 << 30


def register(app: typer.Typer) -> None:
    app.command("build", short_help="Make one folder of a network that a target can run.")(build)
    app.command("run", short_help="Run an artefact: on the simulated accelerator, or here.")(run)
    app.command("verify", short_help="Hold an artefact against plain arithmetic.")(verify)


def build(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for the artefact.")],
    target: Target = "vta-pynq",
    schedules: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder that 'tilewright tune' wrote."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Tune here and now, with so many measurements a workload; 0 takes what is "
            "estimated best.  [default: 16, without --schedules]",
            min=0, max=100_000,
        ),
    ] = None,
    calibration: Calibration = None,
    keep_float: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Operators to leave to the CPU, in float."),
    ] = None,
    per_channel: Annotated[
        bool,
        typer.Option(
            "--per-channel", help="Give a float model's weights scales by output channel where it "
            "pays; more accurate, and a cycle more for every 16 values.",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest relative error of the outputs against onnxruntime on the source model.  "
            "[default: 0.1 for a quantised model, 0.5 for a float one]",
            min=0,
        ),
    ] = None,
    one_pass: Annotated[
        bool,
        typer.Option(
            "--one-pass", help="Round the weights of a quantised model anew instead of computing "
            "its scales exactly in two passes a layer: faster, less accurate.",
        ),
    ] = False,
    shape: InputShape = None,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Refuse what ART/runtime cannot run by itself."),
    ] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make one folder of a network and its schedules: programs, weights and sources for a board;
    or, for the target cpu, a library of the float network."""
    from cli.views.artefact import show_built
    from cli.views.building import Building
    from cli.views.terminal import Terminal
    from tuning.build_options import BuildOptions
    from tuning.building import build_artefact

    if schedules is not None and trials is not None:
        raise TilewrightError("give either --schedules or --trials: both say what is built")
    names = tuple(name.strip() for name in (keep_float or "").split(",") if name.strip())
    options = BuildOptions(
        model=model, out=out, target=target, schedules=schedules,
        trials=TRIALS if trials is None else trials, calibration=calibration, keep_float=names,
        per_channel=per_channel, input_shapes=read_input_shapes(shape), bare=bare,
        exact=not one_pass, tolerance=tolerance,
    )  # fmt: skip
    console = Terminal()
    with Building(Terminal(stderr=True)) as shown:
        made = build_artefact(options, shown.stage, shown.progress)
    for warning in made.warnings:
        typer.echo(f"note: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(made.manifest, indent=2, ensure_ascii=False))
    else:
        show_built(made.manifest, out, console)


def run(
    folder: Folder,
    inputs: Annotated[
        Path, typer.Option("--input", metavar="FILE.npz", help="An array by input's name.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE.npz", help="Where the outputs go, by name.")
    ],
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time goes, layer by layer.")
    ] = False,
    as_json: AsJson = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Picture of the units' work: .png or .html."),
    ] = None,
) -> None:
    """One inference: on the simulated accelerator, bit by bit and cycle by cycle as in hardware; or
    of a library, on this machine. That runs code of the folder: run none of strangers."""
    from cli.interrupts import interruptible
    from cli.views.artefact import profile_json, show_profile, show_run
    from cli.views.terminal import Terminal
    from networks.artefact import CompiledArtefact, load
    from targets.files import pack_arrays, write_atomically

    if timeline is not None and timeline.suffix not in (".png", ".html"):
        raise TilewrightError(f"--timeline {timeline}: a picture is written as .png or .html")
    if output.suffix != ".npz":
        raise TilewrightError(f"--output {output}: outputs are written as .npz")
    artefact = load(folder)
    arrays = _arrays(inputs, artefact)
    if isinstance(artefact, CompiledArtefact):
        if timeline is not None:
            raise TilewrightError("--timeline draws an accelerator's units; leave it out for a cpu")
        _run_library(artefact, arrays, output, profile=profile, as_json=as_json)
        return
    outputs, spent = interruptible(lambda: artefact.run(arrays))
    write_atomically(output, pack_arrays(outputs))
    if timeline is not None:
        from reports.timeline.joined import write_joined

        reports = [each.report for each in artefact.times]
        write_joined(timeline, reports, f"{artefact.name} on {artefact.target}",
                     artefact.clock_hz / 1e6)  # fmt: skip
    if as_json:
        typer.echo(json.dumps(profile_json(spent), indent=2, ensure_ascii=False))
    elif profile:
        show_profile(artefact, spent, Terminal())
    else:
        show_run(artefact, spent, output, Terminal())


def _run_library(
    artefact: CompiledArtefact, arrays: dict[str, Array], output: Path, *, profile: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """One inference on this machine, and its figures."""
    from cli.views.library import library_profile_json, show_library_profile, show_library_run
    from cli.views.terminal import Terminal
    from targets.files import pack_arrays, write_atomically

    outputs, spent = artefact.run(arrays, layers=profile or as_json)
    write_atomically(output, pack_arrays(outputs))
    if as_json:
        typer.echo(json.dumps(library_profile_json(spent), indent=2, ensure_ascii=False))
    elif profile:
        show_library_profile(artefact, spent, Terminal())
    else:
        show_library_run(artefact, spent, output, Terminal())


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Compare the whole network with its source model on stored samples, and every layer with plain
    arithmetic on random data."""
    from cli.interrupts import interruptible
    from cli.views.artefact import checks_json, show_accuracy, show_checks
    from cli.views.terminal import Terminal
    from networks.artefact import CompiledArtefact, load

    artefact = load(folder)
    if isinstance(artefact, CompiledArtefact):
        _verify_library(artefact, as_json=as_json)
        return
    checks, whole = interruptible(lambda: (list(artefact.verify()), artefact.accuracy()))
    found = checks_json(artefact, checks, whole)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        show_checks(artefact, checks, Terminal())
        show_accuracy(artefact, whole, Terminal())
    if not found["right"]:
        raise typer.Exit(1)


def _verify_library(artefact: CompiledArtefact, *, as_json: bool) -> None:
    from cli.views.library import errors_json, show_errors
    from cli.views.terminal import Terminal

    errors, whole = list(artefact.verify()), artefact.output_error()
    found = errors_json(artefact, errors, whole)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        show_errors(artefact, errors, whole, Terminal())
    if not found["right"]:
        raise typer.Exit(1)


def _arrays(path: Path, artefact: Artefact | CompiledArtefact) -> dict[str, Array]:
    """The inputs of an NPZ file. Raises `TilewrightError`."""
    from networks.artefact.run import checked
    from targets.files import unpack_arrays
    from targets.safe_files import read_plain

    try:
        arrays = unpack_arrays(read_plain(path, limit=MOST_INPUT_BYTES))
    except FileNotFoundError:
        raise TilewrightError(
            f"there is no file {path}; name an NPZ file with the inputs"
        ) from None
    except OSError as error:
        raise TilewrightError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise TilewrightError(
            f"{path} is no NPZ file ({error}); write one with numpy.savez"
        ) from None
    return checked(artefact.inputs, arrays)
