"""The command `tilewright compare`, which compares tuners.

Tuners are compared by tuning whole networks, or on workloads with a known optimum.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import OfferedFields, say_remarks, with_options
from tilewright.cli.signals import keep_count
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import from_start
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.tuning.options import TrackingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.evaluation.compare.network_comparison import NetworkComparison
    from tilewright.evaluation.compare.network_plan import NetworksPlan
    from tilewright.evaluation.compare.workload_comparison import Comparison
    from tilewright.search.events import Listener

GROUND_TRUTH = "oracle"
"""Name of the workspace folder that stores enumerated schedule spaces."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Bare = Annotated[
    bool,
    typer.Option("--bare", help="Only write trials and result files, without Prefect and MLflow."),
]


@with_options
def compare(
    *,
    options: CompareOptions,
    mlflow: Annotated[
        bool,
        typer.Option(
            "--mlflow/--no-mlflow", help="Log the runs to MLflow and register the champion."
        ),
    ] = True,
    tracking: TrackingOptions,
    bare: Bare = False,
    as_json: AsJson = False,
) -> None:
    """Run several tuners with many seeds, and report which tuner is best on which workload.

    If networks are given, each tuner tunes them completely, and the latencies are compared. If not,
    the tuners run on single workloads, and their results are compared with the optimum, which is
    known because every schedule was measured. Repeating the command runs only what is not finished
    yet.
    """
    bare = bare or not mlflow
    tracking.check_bare(bare)
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    if options.networks:
        _compare_networks(options, tracking, bare, as_json)
    else:
        _compare_on_workloads(options, bare, as_json)


@with_options
def sweep(
    options: Annotated[
        CompareOptions,
        OfferedFields(
            "networks",
            "tuners",
            "seeds",
            "targets",
            "trials",
            "stop_gain",
            "batch",
            "space",
            "epilogue",
            "layers",
            "input_shapes",
            "max_waste",
            "jobs",
            "cluster",
            "store",
            "out",
            "fresh",
            required=("networks",),
        ),
    ],
    tracking: TrackingOptions,
    bare: Bare = False,
    as_json: AsJson = False,
) -> None:
    """Compare tuners on whole networks. Deprecated: use 'tilewright compare NETWORK...'."""
    typer.echo(
        "note: 'tilewright sweep' is deprecated and will be removed in version 0.4; "
        "use 'tilewright compare' with the same arguments",
        err=True,
    )
    if not options.networks:
        raise TilewrightError(
            "'tilewright sweep' needs at least one network; to compare tuners on single "
            "workloads, use 'tilewright compare'"
        )
    tracking.check_bare(bare)
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    _compare_networks(options, tracking, bare, as_json)


# -- whole runs of networks ----------------------------------------------------------------------


def _compare_networks(
    options: CompareOptions, tracking: TrackingOptions, bare: bool, as_json: bool
) -> None:
    """Compare tuners on whole networks with a progress display, and show the tables.

    Args:
        options: options of the comparison.
        tracking: tracking options; ignored if `bare` is set.
        bare: run the comparison without Prefect and MLflow.
        as_json: print the results as JSON instead of tables.
    """
    from tilewright.cli.views.comparison import comparing_networks, show_networks
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.compare.network_plan import plan_networks
    from tilewright.evaluation.row_cache import RUNS, count_rows
    from tilewright.search.events import StageBegan

    keep_count("run", lambda: count_rows(options.folder / RUNS))
    with comparing_networks(Terminal(stderr=as_json)) as listen:
        listen(StageBegan("plan_networks"))
        plan = plan_networks(options)  # fail before a server is started
        compared, links = _run_bare(plan, listen) if bare else _run_tracked(plan, tracking, listen)
    if as_json:
        typer.echo(json.dumps(compared.to_json(), indent=2, ensure_ascii=False))
        return
    show_networks(compared, options.folder, links, Terminal())


def _run_bare(plan: NetworksPlan, listen: Listener) -> tuple[NetworkComparison, dict[str, str]]:
    """Run the comparison in this process, without Prefect and MLflow.

    Args:
        plan: plan of the comparison.
        listen: function that receives the events.

    Returns:
        The finished comparison, and an empty dictionary in place of the addresses of its pages.
    """
    from tilewright.flows.comparison import compare_networks
    from tilewright.search import LocalRunner

    return compare_networks(LocalRunner(listen), plan.options, plan), {}


def _run_tracked(
    plan: NetworksPlan, tracking: TrackingOptions, listen: Listener
) -> tuple[NetworkComparison, dict[str, str]]:
    """Run the comparison flow with Prefect and MLflow.

    Args:
        plan: plan of the comparison.
        tracking: tracking options.
        listen: function that receives the events.

    Returns:
        The finished comparison, and the addresses of its pages by name.
    """
    from tilewright.search.events import StageBegan
    from tilewright.services.start_servers import embedded

    listen(StageBegan("start_servers"))
    with embedded(_prepare):
        from tilewright.flows.comparison_prefect import Compared, comparison_flow
        from tilewright.flows.forms import fields_of

        asked = fields_of(plan.options, tracking)
        for name in ("replay", "live"):
            del asked[name]
        result: Compared = comparison_flow(listen, plan)(**asked)
        compared, links = result
        assert compared is not None
        return compared, links


def _prepare() -> None:
    """Import slow modules while the Prefect server starts."""
    import tilewright.flows.comparison_prefect  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()


# -- workloads whose optimum is known ------------------------------------------------------------


def _compare_on_workloads(options: CompareOptions, bare: bool, as_json: bool) -> None:
    """Compare tuners on workloads with a known optimum, and show the tables.

    Args:
        options: options of the comparison.
        bare: do not log the comparison to MLflow, and register no champion.
        as_json: print the leaderboards as JSON instead of tables.
    """
    from tilewright.cli.views.comparison import show_comparing, show_left_out, show_workloads
    from tilewright.cli.views.terminal import Terminal
    from tilewright.core.process_info import usable_cores
    from tilewright.evaluation.compare.plan import (
        parse_seeds,
        plan_workloads,
        tuner_configs_of,
    )
    from tilewright.evaluation.compare.record import to_json
    from tilewright.evaluation.compare.workload_selection import test_bed_of
    from tilewright.evaluation.row_cache import RUNS, count_rows
    from tilewright.flows.comparison import compare_tuners
    from tilewright.search import LocalRunner
    from tilewright.services.workspace import use_workspace
    from tilewright.targets.cluster.connection import check_address, local_cluster
    from tilewright.tuning.output_dir import check_folder

    if cluster := options.cluster or local_cluster(options.jobs or usable_cores()):
        check_address(cluster)
    parse_seeds(options.seeds)
    check_folder(options.folder)
    if not bare:
        use_workspace()  # fail before the work if it cannot be written
    tuner_configs_of(options.tuners)
    console = Terminal(stderr=as_json)
    if not options.replay:
        say_remarks(options.target)
    tables = Path() if options.replay else use_workspace().root / GROUND_TRUTH
    test_bed, left_out = test_bed_of(options, tables)
    show_left_out(left_out, console)
    plan = plan_workloads(options, test_bed)
    keep_count("run", lambda: count_rows(options.folder / RUNS))
    with show_comparing(console) as progress:
        run = LocalRunner(progress)
        compared = compare_tuners(run, plan, options.folder, cluster, options.fresh)
    if as_json:
        boards = to_json(compared.leaderboards)
        typer.echo(json.dumps({"leaderboards": boards}, indent=2, ensure_ascii=False))
    else:
        show_workloads(compared, options.folder, console)
    if not bare:
        _record(compared, options, console)


def _record(compared: Comparison, options: CompareOptions, console: Console) -> None:
    """Log a comparison to MLflow, and register the best tuner's models as champions.

    MLflow reads the address of its server at import. It is therefore imported here, after that
    address is set.

    Args:
        compared: the finished comparison.
        options: options of the comparison.
        console: the terminal.
    """
    from tilewright.services.mlflow_server import mlflow_login
    from tilewright.services.workspace import use_workspace

    os.environ |= mlflow_login(use_workspace())
    from tilewright.cli.views.comparison import recording, show_recorded
    from tilewright.evaluation.compare.record import RECORD
    from tilewright.reports.comparison import REPORT
    from tilewright.tasks import tracking
    from tilewright.tasks.log_comparison import (
        comparison_run,
        log_leaderboards,
        log_workload_runs,
    )
    from tilewright.tasks.register_champion import register_champion

    plan, results, runs = compared.plan, compared.results, len(compared.runs)
    files = [options.folder / REPORT, options.folder / RECORD]
    with (
        recording(plan, console) as (logging, registering),
        comparison_run(options, runs) as run_id,
    ):
        logged = log_workload_runs(run_id, plan, results, compared.runs, logging)
        log_leaderboards(run_id, options, runs, {}, compared.leaderboards, files=files)
        registered = register_champion(plan, results, compared.leaderboard, logged, registering)
    show_recorded(tracking.run_url(run_id), len(registered), console)
