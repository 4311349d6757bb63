"""Defines options that several commands take; `tuning.options.DEFAULTS` has their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.paths import model_text, target_text
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed
from tilewright.tuning.options import OptionsError, TrackingOptions

ReadCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Read a torch.export file, which can run any code with your rights when it is read.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        help="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'.",
        callback=model_text,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        help="A preset, a file, or KIND:…; 'tilewright targets' lists them.", callback=target_text
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="f32|bf16|int8|auto",
        help="Numbers that a cpu multiplies: all layers in float32, those of a float network in "
        "bfloat16 by AMX or AVX512-BF16, quantised ones in int8, or each by AMX where there is "
        "such.  [default: as the model says]",
    ),
]
Tuner = Annotated[str, typer.Option(help="The search strategy; 'tilewright tuners' lists them.")]
Trials = Annotated[int, typer.Option(help="Measurements a workload.")]
Seed = Annotated[int, typer.Option(help="Same seed, same schedules.")]
Space = Annotated[
    str, typer.Option(help="A schedule space of the target.  [default: its usual one]")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: tuned/<model>]")]
Cluster = Annotated[
    str,
    typer.Option(
        help="The Dask cluster that does the work: tls://HOST:PORT of a scheduler, or local:N for "
        "N processes of this machine.",
        metavar="tls://HOST:PORT|local:N",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        help="The PostgreSQL database that keeps the trials of a new output directory, instead of "
        "the file trials.sqlite in it. The variable TILEWRIGHT_STORE, and 'store' in the "
        "workspace's workspace.json, say it for every command.",
        metavar="postgresql+psycopg://USER@HOST/DATABASE",
    ),
]
Batch = Annotated[int, typer.Option(help="Measurements a round.")]
InputShape = Annotated[
    list[str] | None,
    typer.Option("--input-shape", help="Fix an input's shape, NAME=1x3x224x224."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="NAME=1,8",
        help="Compile a library for these sizes of a dynamic "
        "dimension; the fitting one is chosen when it runs. Only for a cpu.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(help="Samples for a float model: an NPZ file, or a folder of them."),
]

MaxWaste = Annotated[
    float,
    typer.Option(help="Offload a layer if at most this share of its multiplications is by zeros."),
]

SystemMetrics = Annotated[
    bool,
    typer.Option(
        "--system-metrics",
        help="Log the use of processor, memory, disk and network to MLflow every ten seconds. "
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true does the same.",
    ),
]


def tracking_options(system_metrics: bool, *, bare: bool = False) -> TrackingOptions:
    """Return the tracking options of a command.

    Raises:
        OptionsError: system metrics were requested for a `bare` run, which does not use MLflow.
    """
    if bare and system_metrics:
        raise OptionsError(
            "--system-metrics --bare: system metrics are logged to MLflow, and --bare runs without "
            "it; leave one of the two out"
        )
    return TrackingOptions(system_metrics=system_metrics)


def say_remarks(target: str) -> None:
    """What a person should know of a target, on standard error. Raises as
    `targets.registry.check_target`."""
    from tilewright.targets.registry import target_remarks

    for remark in target_remarks(target):
        typer.echo(f"note: {as_typed(remark)}", err=True)


def with_precision(target: str, precision: str | None) -> str:
    """The target that computes in a precision. Raises `TilewrightError`."""
    if precision is None:
        return target
    kind, _, rest = target.partition(":")
    if kind != "cpu":
        raise TilewrightError(
            f"--precision is about the target cpu, and {target} has its own; leave it out"
        )
    if "precision=" in rest:
        raise TilewrightError(f"{target} names a precision already; leave out --precision")
    return f"cpu:{rest}{',' if rest else ''}precision={precision}"


def read_input_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Values of `--input-shape`. Raises `TilewrightError`."""
    shapes = {}
    for text in texts or []:
        name, sizes = read_pair(text, "--input-shape")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            raise TilewrightError(f"--input-shape {text}: write NAME=1x3x224x224") from None
    return shapes


def read_sizes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Values of `--sizes`. Raises `TilewrightError`."""
    found = {}
    for text in texts or []:
        name, sizes = read_pair(text, "--sizes")
        try:
            found[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            raise TilewrightError(f"--sizes {text}: write NAME=1,8") from None
    return found


def read_pair(text: str, flag: str) -> tuple[str, str]:
    """NAME and VALUE of what was given to an option. Raises `TilewrightError`."""
    name, _, value = text.rpartition("=")
    if not (name and value):
        raise TilewrightError(f"{flag} {text}: write NAME=VALUE")
    return name, value
