"""The commands `tilewright trials`, `diff`, `explain` and `export`, which read finished runs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.paths import MLFLOW_ID, run_text
from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.user_text import printable
from tilewright.core.working_folder import as_typed

if TYPE_CHECKING:
    import pandas as pd

    from tilewright.evaluation.diff import Side
    from tilewright.tuning.run_metadata import WorkloadNames


STATUSES = ("valid", "compile_error", "run_error", "wrong_result", "timeout")
FORMATS = (".csv", ".parquet", ".json")


def trials(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The output directory of a run, an AutoTVM log, or a MetaSchedule database.",
        ),
    ],
    csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="Print CSV with the columns of trials.parquet; configs are printed as "
            "knob indices.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array of one object per trial.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the trials to this .csv, .parquet or .json file instead of printing them.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only trials of this layer or workload ID."),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="|".join(STATUSES), help="Show only trials with this status."),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(help="Show only the best N trials of each layer.", metavar="N", min=1),
    ] = None,
) -> None:
    """Print the trials of a run, best first. The run may be in progress or may have crashed."""
    from tilewright.cli.views.finished_runs import best_trials, show_trials
    from tilewright.cli.views.terminal import Terminal
    from tilewright.reports.number_format import count_text
    from tilewright.search.ledger_import import LEDGERS
    from tilewright.search.trial_store import FILE
    from tilewright.tuning.output_dir import at_work as who_is_at_work
    from tilewright.tuning.read_trials import read_trials
    from tilewright.tuning.run_metadata import is_complete, read_run

    if export is not None and export.suffix not in FORMATS:
        raise TilewrightError(f"--export {export}: the file name must end in {', '.join(FORMATS)}")
    if status is not None and status not in STATUSES:
        raise TilewrightError(
            f"--status {status}: unknown status; choose one of {', '.join(STATUSES)}"
        )
    ours = any(os.path.lexists(folder / name) for name in (FILE, *LEDGERS))
    at_work = who_is_at_work(folder) if ours else None
    trials = read_trials(folder)
    for problem in trials.problems:
        typer.echo(f"note: {as_typed(problem)}", err=True)
    run = read_run(folder) if ours else None
    names = {} if run is None else {workload["id"]: workload for workload in run["workloads"]}
    frame = trials.table
    if layer is not None:
        frame = frame[frame["workload"].isin(_workloads(layer, frame, names))]
    if status is not None:
        frame = frame[frame["status"] == status]
    if csv or as_json or export is not None:
        shown = frame if best is None else best_trials(frame, best)
        _write(shown, export, as_json)
        return
    show_trials(frame, names, best, Terminal())
    state = "written by another tuner"
    if ours:
        ended = "the run is complete" if is_complete(folder) else "the run was stopped"
        state = f"{at_work} is adding trials" if at_work else ended
    workloads = count_text(frame["workload"].nunique(), "workload")
    typer.echo(f"{count_text(len(frame), 'trial')} of {workloads}; {state}")


def _workloads(layer: str, frame: pd.DataFrame, names: dict[str, WorkloadNames]) -> list[str]:
    """Return the IDs of the workloads that the option `--layer` selects.

    Args:
        layer: name of a layer, or ID of a workload.
        frame: table with one row per trial.
        names: names of the layers, by ID of the workload.

    Raises:
        TilewrightError: no workload matches.
    """
    workloads = [
        workload
        for workload in frame["workload"].unique()
        if workload == layer or (workload in names and layer in names[workload]["names"])
    ]
    if not workloads:
        known = sorted({name for about in names.values() for name in about["names"]})
        step = (
            f"the layers of this run are {', '.join(known)}"
            if known
            else "--csv lists the IDs of the workloads"
        )
        raise TilewrightError(f"--layer {layer}: the run has no trial of this layer; {step}")
    return workloads


def _write(frame: pd.DataFrame, path: Path | None, as_json: bool) -> None:
    """Print the trials, or write them to a file in the format of its suffix.

    Args:
        frame: table with one row per trial.
        path: `.parquet`, `.json` or CSV file; None to print to standard output.
        as_json: whether to print JSON instead of CSV.
    """
    from tilewright.core.files import write_atomically
    from tilewright.tuning.outputs import parquet

    kind = path.suffix if path is not None else ".json" if as_json else ".csv"
    if kind == ".parquet":
        data = parquet(frame)
    elif kind == ".json":
        data = (frame.to_json(orient="records", indent=2, double_precision=15) + "\n").encode()
    else:
        data = frame.to_csv(index=False, lineterminator="\n").encode()
    if path is None:
        sys.stdout.write(data.decode())
    else:
        write_atomically(path, data)


WORSE = 1
_RUN = "The reference run: an output directory of 'tilewright tune', or the ID of an MLflow run."


def diff(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=_RUN, callback=run_text)],
    run_b: Annotated[
        str,
        typer.Argument(
            metavar="RUN_B", help="The run to check, given in the same way.", callback=run_text
        ),
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Tolerated increase of the latency in percent; also the tolerated "
            "decrease of the fraction of valid trials, in percentage points.",
        ),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that RUN_B is no worse than RUN_A.

    The command compares the latencies of the layers and of the network, the fraction of valid
    trials, the accuracy of the models, and the settings.

    The exit status is 0 if RUN_B is no worse, 1 if it is worse, and 2 if the runs cannot be
    compared.
    """
    from tilewright.cli.views.finished_runs import show_diff
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.diff import diff_runs

    verdict = diff_runs(_side(run_a), _side(run_b), tolerance)
    if as_json:
        typer.echo(json.dumps(verdict.to_json(), indent=2, ensure_ascii=False))
    else:
        show_diff(verdict, Terminal())
    if verdict.is_worse:
        raise typer.Exit(WORSE)


def _side(run: str) -> Side:
    from tilewright.evaluation.diff import read_side

    if Path(run).exists() or not MLFLOW_ID.fullmatch(run):
        return read_side(Path(run))
    from tilewright.services.mlflow_server import mlflow_login
    from tilewright.services.workspace import use_workspace

    os.environ |= mlflow_login(use_workspace())
    from tilewright.tasks.load_past_run import side_of_run

    return side_of_run(run)


def explain(
    folder: Annotated[Path, typer.Argument(help="The output directory of 'tilewright tune'.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write explain.html to.  [default: the output directory]"),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(help="Number of random configs per layer on which the models are evaluated."),
    ] = 512,
    seed: Annotated[int, typer.Option(help="Seed for drawing the random configs.")] = 0,
) -> None:
    """Show which features Models P, V and A rely on, how accurate they are, and what to do next."""
    from tilewright.cli.views.finished_runs import (
        show,
        show_explaining,
        tell_problems,
        warn_if_changed,
    )
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.explain.figures import model_summaries
    from tilewright.evaluation.explain.finished_run import read_folder
    from tilewright.evaluation.explain.recommendations import advice_of
    from tilewright.evaluation.explain.refitted_models import explain_run
    from tilewright.reports.explanation import write_explanation
    from tilewright.tuning.output_dir import check_folder

    console, place = Terminal(), out or folder
    run = read_folder(folder)
    check_folder(place)
    warn_if_changed(run, console)
    with show_explaining(run, console) as progress:
        explained = explain_run(run, samples, seed, progress)
    tell_problems(run, console)
    models, advice = model_summaries(explained), advice_of(run, explained)
    write_explanation(run, explained, models, advice, place)
    show(explained, models, advice, place, console)


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The output directory of 'tilewright tune'; for gemmini-c also the "
            "folder of a built network.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="autotvm|optuna|kernel-tuner|t4|gemmini-c",
            help="autotvm: schedules in the log format of TVM 0.8 to 0.14. optuna: one "
            "study per layer, as an Optuna journal. kernel-tuner: the trials of one "
            "layer as a Kernel Tuner cache. t4: the trials of one layer in the T4 "
            "format. gemmini-c: one C function of raw commands per layer; for a "
            "built network one per segment, with the weights in a header.",
        ),
    ] = "autotvm",
    layer: Annotated[
        str,
        typer.Option(
            help="Layer whose trials are exported, for formats that hold a single layer.",
            metavar="NAME",
        ),
    ] = "",
) -> None:
    """Export the schedules or trials of a run in the file format of another tool.

    AutoTVM records can only hold schedules of --space template and --space stock. Schedules that
    stock TVM cannot build are left out, and a message says so.
    """
    from tilewright.core.files import write_atomically
    from tilewright.networks.artifact.manifest import is_artifact
    from tilewright.reports.number_format import count_text
    from tilewright.tuning.export import FORMATS, export_schedules
    from tilewright.tuning.output_dir import check_folder

    if form not in FORMATS:
        raise UnknownName("format", form, list(FORMATS))
    left_out: tuple[str, ...] = ()
    if form == "gemmini-c" and is_artifact(folder):
        text, said = _network(folder, form, out)
    elif form in ("autotvm", "gemmini-c"):
        exported = export_schedules(folder, form, time.time())
        text, left_out = exported.text, exported.left_out
        said = f"{count_text(exported.schedules, 'C function')} of raw commands"
        if form == "autotvm":
            said = f"{count_text(exported.schedules, 'record')} for autotvm.apply_history_best"
    else:
        text, said = _trials(folder, form, layer)
    check_folder(out.parent)
    write_atomically(out, text.encode())
    for sentence in left_out:
        typer.echo(f"left out: {printable(sentence)}", err=True)
    typer.echo(f"{as_typed(str(out))}: {said}")


def _network(folder: Path, form: str, out: Path) -> tuple[str, str]:
    """Return a built network as C text, and a sentence about its content.

    The weights are written to a header file beside `out`.

    Args:
        folder: folder of the built network.
        form: name of the file format, for error messages.
        out: file to which the caller writes the C text.

    Raises:
        TilewrightError: the network was built for a machine that the format does not support.
    """
    from tilewright.core.files import write_atomically
    from tilewright.networks.artifact import Artifact, load
    from tilewright.reports.number_format import count_text
    from tilewright.tuning.output_dir import check_folder

    built = load(folder, allow_code=True)  # the code is not executed here
    header = out.with_name(f"{out.stem}_weights.h")
    program = built.program if isinstance(built, Artifact) else None
    files = None if program is None else program.c_files(header.name)
    if program is None or files is None:
        raise TilewrightError(
            f"{folder} was built for a machine that {form} does not support; build it "
            "for a Gemmini, such as --target gemmini"
        )
    text, weights = files
    check_folder(out.parent)
    write_atomically(header, weights.encode())
    segments = count_text(len(program.ports), "C function")
    return text, f"{segments} of raw commands, one per segment; weights in {printable(header.name)}"


def _trials(folder: Path, form: str, name: str) -> tuple[str, str]:
    """Return the trials of a run in another tool's file format, and a sentence about the file.

    Args:
        folder: output directory of the run.
        form: name of the file format.
        name: name of the layer, for formats that hold a single layer; "" if it is not given.

    Returns:
        The content of the file, and the sentence.

    Raises:
        UnknownName: no layer has this name.
        TilewrightError: the format needs a layer, and none was named.
    """
    from tilewright.reports.number_format import count_text
    from tilewright.tuning.export import kernel_tuner_cache, t4_results
    from tilewright.tuning.optuna_study import optuna_journal
    from tilewright.tuning.run_trials import finished_trials

    run = finished_trials(folder)
    if form == "optuna":
        trials, layers = count_text(len(run.table), "trial"), count_text(len(run.layers), "layer")
        return optuna_journal(run), f"{trials} of {layers}, one Optuna study per layer"
    known = {name: layer for layer in run.layers for name in layer.names or [layer.id]}
    if not name and len(run.layers) > 1:
        raise TilewrightError(
            f"a {form} file holds the trials of a single layer; select one with --layer: "
            + printable(", ".join(known))
        )
    if name and name not in known:
        raise UnknownName("layer", name, list(known))
    layer = known[name] if name else run.layers[0]
    write = kernel_tuner_cache if form == "kernel-tuner" else t4_results
    trials = count_text(len(run.trials_of_workload(layer.id)), "trial")
    return write(run, layer), f"{trials} of {printable(layer.name)}"
