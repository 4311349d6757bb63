"""Implements `tilewright compare`: tuners against each other and against the enumerated optimum."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import Cluster, MaxWaste, Space, Target, say_remarks
from tilewright.cli.paths import file_texts, model_text
from tilewright.cli.signals import keep_count
from tilewright.core.errors import TilewrightError
from tilewright.tuning.options import DEFAULTS

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.evaluation.compare.benchmark_suite import TestBed
    from tilewright.evaluation.compare.comparison import Comparison
    from tilewright.evaluation.compare.run_cache import RUNS
    from tilewright.evaluation.row_cache import count_rows

BATCH, TRIALS, SEEDS, TUNERS = 8, 128, "0-9", "default,default-blind,ml2tuner,autotvm,random"
GROUND_TRUTH = "oracle"
"""Folder of enumerated spaces, below the workspace."""


def register(app: typer.Typer) -> None:
    app.command("compare", short_help="Hold several tuners against the enumerated optimum.")(
        compare
    )


def compare(
    tuners: Annotated[
        str,
        typer.Option(
            help="Comma-separated; options behind colons: default,ml2tuner:alpha=2:first=32"
        ),
    ] = TUNERS,
    network: Annotated[
        str | None,
        typer.Option(
            help="A model file or a built-in network to take layers from.", callback=model_text
        ),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            help="Tables of a real stack instead; reference.json lies beside them.",
            callback=file_texts,
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="More tables to replay.", callback=file_texts),
    ] = None,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            help="Which of them: places like 1,3-5, names like C4, or whole texts like "
            "'conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1' (repeat the option)."
        ),
    ] = None,
    target: Target = DEFAULTS.target,
    space: Space = DEFAULTS.space,
    trials: Annotated[int, typer.Option(help="Measurements a run.")] = TRIALS,
    seeds: Annotated[str, typer.Option(help="0-19 or 0,3,7: a run for each.")] = SEEDS,
    batch: Annotated[int, typer.Option(help="Measurements a round.")] = BATCH,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("compared"),
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Runs at a time: N is short for --cluster local:N.  [default: all cores]", min=1
        ),
    ] = None,
    cluster: Cluster = "",
    live: Annotated[
        bool,
        typer.Option("--live", help="Tune on the target itself, so that seconds include it."),
    ] = False,
    mlflow: Annotated[
        bool, typer.Option("--mlflow/--no-mlflow", help="Log runs and register the champion.")
    ] = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; do not reuse finished runs.")
    ] = False,
    max_waste: MaxWaste = DEFAULTS.max_waste,
) -> None:
    """Run several tuners with many seeds and compare them with the enumerated optimum."""
    from tilewright.cli.views.comparison import comparing, show
    from tilewright.cli.views.terminal import Terminal
    from tilewright.core.process_info import usable_cores
    from tilewright.evaluation.compare.plan import (
        check_budget,
        parse_seeds,
        parse_tuner_configs,
        plan,
    )
    from tilewright.evaluation.compare.workload_selection import recorded
    from tilewright.flows.comparison import compare_tuners
    from tilewright.search import LocalRunner
    from tilewright.services.workspace import use_workspace
    from tilewright.targets.cluster.connection import check_address, local_cluster
    from tilewright.tuning.output_dir import check_folder

    check_budget(trials, batch)
    if cluster and jobs:
        raise TilewrightError(
            f"--jobs {jobs} is short for --cluster local:{jobs}, and --cluster {cluster} is given, "
            "too; leave one of the two out"
        )
    cluster = cluster or local_cluster(jobs or usable_cores())
    if cluster:
        check_address(cluster)
    numbers = parse_seeds(seeds)
    check_folder(out)
    if mlflow:
        use_workspace()  # says before any work that it cannot be written
    tuner_configs = parse_tuner_configs(tuners)
    files = [*(replay or []), *(more or [])]
    if network is not None and files:
        raise TilewrightError(f"either --network {network} or --replay {files[0]}, not both")
    console = Terminal()
    if files:
        test_bed: TestBed = recorded(files, workloads or [])
    else:
        test_bed = _enumerated(network, workloads or [], target, space, live, max_waste, console)
    what = plan(test_bed, tuner_configs, numbers, trials, batch)
    keep_count("run", lambda: count_rows(out / RUNS))
    with comparing(console) as progress:
        run = LocalRunner(progress)
        compared = compare_tuners(run, what, out, cluster, fresh)
    show(compared, out, console)
    if mlflow:
        _record(compared, out, console)


def _enumerated(
    network: str | None,
    workloads: list[str],
    target: str,
    space: str,
    live: bool,
    max_waste: float,
    console: Console,
) -> TestBed:
    """Says which workloads are left out. What was enumerated once is kept below the workspace."""
    from tilewright.cli.views.comparison import show_left_out
    from tilewright.evaluation.compare.workload_selection import enumerated
    from tilewright.services.workspace import use_workspace

    say_remarks(target)
    tables = use_workspace().root / GROUND_TRUTH
    test_bed, left_out = enumerated(network, workloads, target, space, live, max_waste, tables)
    show_left_out(left_out, console)
    return test_bed


def _record(compared: Comparison, folder: Path, console: Console) -> None:
    """Log a comparison to MLflow and register its champion. MLflow reads where its records are
    when it is imported."""
    from tilewright.services.mlflow_server import mlflow_login
    from tilewright.services.workspace import use_workspace

    os.environ |= mlflow_login(use_workspace())
    from tilewright.cli.views.comparison import recording, show_recorded
    from tilewright.evaluation.compare.comparison import COMPARISON
    from tilewright.reports.comparison import REPORT
    from tilewright.tasks.log_comparison import log_runs
    from tilewright.tasks.register_champion import register_champion

    plan, results = compared.plan, compared.results
    with recording(plan, console) as (logging, registering):
        files = [folder / REPORT, folder / COMPARISON]
        logged = log_runs(plan, results, compared.runs, files, logging)
        registered = register_champion(plan, results, compared.leaderboard, logged, registering)
    show_recorded(logged.name, len(registered), console)
