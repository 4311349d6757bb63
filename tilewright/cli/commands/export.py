"""Implements `tilewright export`: tuned schedules, and their trials, for other tools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed


def register(app: typer.Typer) -> None:
    app.command("export", short_help="Write a run's schedules or trials for other tools.")(export)


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The --out folder of 'tilewright tune'; for gemmini-c that of a build, too.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="autotvm|optuna|kernel-tuner|t4|gemmini-c",
            help="autotvm: schedules as TVM 0.8 to 0.14 logs them; optuna: a study a layer, as a "
            "journal; kernel-tuner, t4: the trials of a layer as its cache, or in the T4 format; "
            "gemmini-c: a C function of raw commands a layer; of a built network, a segment, "
            "with the weights in a header.",
        ),
    ] = "autotvm",
    layer: Annotated[
        str, typer.Option(help="Whose trials, where the format holds one layer's.", metavar="NAME")
    ] = "",
) -> None:
    """Write what a run found in the form that another tool reads. As AutoTVM records, schedules of
    --space template are written; those of another space are left out, with a sentence."""
    from tilewright.core.files import write_atomically
    from tilewright.networks.artifact.folder import is_artifact
    from tilewright.reports.number_format import counted
    from tilewright.tuning.export import FORMATS, export_autotvm, export_c
    from tilewright.tuning.output_dir import check_folder

    if form not in FORMATS:
        raise UnknownName("format", form, list(FORMATS))
    if form == "autotvm":
        exported = export_autotvm(folder, time.time())
        text, left_out = exported.text, exported.left_out
        said = f"{counted(exported.schedules, 'record')} for "
        said += "autotvm.apply_history_best"
    elif form == "gemmini-c" and is_artifact(folder):
        text, said = _network(folder, form, out)
        left_out = ()
    elif form == "gemmini-c":
        exported = export_c(folder, form)
        text, left_out = exported.text, exported.left_out
        said = f"{counted(exported.schedules, 'C function')} of raw commands"
    else:
        text, said = _trials(folder, form, layer)
        left_out = ()
    check_folder(out.parent)
    write_atomically(out, text.encode())
    for sentence in left_out:
        typer.echo(f"left out: {printable(sentence)}", err=True)
    typer.echo(f"{as_typed(str(out))}: {said}")


def _network(folder: Path, form: str, out: Path) -> tuple[str, str]:
    """The text of a built network as C, whose weights are written beside it, and what is in it."""
    from tilewright.core.files import write_atomically
    from tilewright.networks.artifact import Artifact, load
    from tilewright.reports.number_format import counted
    from tilewright.targets.capabilities import WritesNetworkC
    from tilewright.tuning.output_dir import check_folder

    built = load(folder, allow_code=True)  # which is not run here
    program = built.program if isinstance(built, Artifact) else None
    if not isinstance(program, WritesNetworkC) or program.c_format != form:
        raise TilewrightError(
            f"{folder} was not built for a machine that {form} is written for; build for a "
            "Gemmini, such as --target gemmini"
        )
    header = out.with_name(f"{out.stem}_weights.h")
    text, weights = program.c_files(header.name)
    check_folder(out.parent)
    write_atomically(header, weights.encode())
    segments = counted(len(program.ports), "C function")
    return text, f"{segments} of raw commands, a segment each; weights in {printable(header.name)}"


def _trials(folder: Path, form: str, name: str) -> tuple[str, str]:
    """The text of a file of trials, and what is in it."""
    from tilewright.reports.number_format import counted
    from tilewright.tuning.export import kernel_tuner_cache, t4_results
    from tilewright.tuning.optuna_study import optuna_journal
    from tilewright.tuning.run_trials import finished_trials

    run = finished_trials(folder)
    if form == "optuna":
        trials, layers = counted(len(run.table), "trial"), counted(len(run.layers), "layer")
        return optuna_journal(run), f"{trials} of {layers}, a study of Optuna each"
    known = {name: each for each in run.layers for name in each.names or [each.id]}
    if not name and len(run.layers) > 1:
        raise TilewrightError(
            f"a {form} file holds the trials of one layer; name it with --layer: "
            + printable(", ".join(known))
        )
    if name and name not in known:
        raise UnknownName("layer", name, list(known))
    layer = known[name] if name else run.layers[0]
    write = kernel_tuner_cache if form == "kernel-tuner" else t4_results
    trials = counted(len(run.of(layer.id)), "trial")
    return write(run, layer), f"{trials} of {printable(layer.name)}"
