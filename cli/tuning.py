"""A tuning run as a command: servers around the flow, progress before, results after.

Heavy imports wait until the server is on its way: both take seconds.
"""

from __future__ import annotations

from rich.console import Console

from cli.display import make_display, results_table
from tuning.checks import check, check_tuner
from tuning.events import Event, StageReused
from tuning.options import TuningOptions
from tuning.outputs import Summary


def run_tuning(options: TuningOptions, console: Console) -> None:
    """Run the flow `tune_network` and print what came of it. Raises `TilewrightError`."""
    from services.embedded import embedded

    check(options)
    heard = _Heard(options, console)
    with heard.display, embedded(lambda: _prepare(options)):
        from flows.tuning import network_flow

        summary = network_flow(heard)(options)
    _show(options, summary, heard.reused_stages, console)
    console.print("'tilewright ui' shows this run in MLflow and Prefect", highlight=False)


def run_bare(options: TuningOptions, console: Console) -> None:
    """The same run without Prefect and MLflow. Raises `TilewrightError`."""
    check(options)
    check_tuner(options)
    heard = _Heard(options, console)
    with heard.display:
        from reports.convergence import network_convergence
        from tuning import tune_network

        summary = tune_network(options, heard, network_convergence)
    _show(options, summary, heard.reused_stages, console)


class _Heard:
    """Shows what happens, and counts the stages that were not done again."""

    def __init__(self, options: TuningOptions, console: Console) -> None:
        self.display = make_display(console, options.trials)
        self.reused_stages = 0

    def __call__(self, event: Event) -> None:
        self.reused_stages += isinstance(event, StageReused)
        self.display(event)


def _show(options: TuningOptions, summary: Summary, stages: int, console: Console) -> None:
    console.print(results_table(summary))
    console.print(
        _reused(summary, stages)
        + f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"results in {options.folder}: summary.json, schedules.json, trials.parquet, "
        "convergence.png",
        highlight=False,
        soft_wrap=True,
    )


def _reused(summary: Summary, stages: int) -> str:
    """What was not done again, in a line; nothing if all was."""
    rows = summary["workloads"]
    held = sum(row["reused_trials"] for row in rows)
    if not held and not stages:
        return ""
    trials = sum(row["trials"] for row in rows)
    return f"reused {held} of {trials} trials and {stages} finished stages; --fresh starts over\n"


def _prepare(options: TuningOptions) -> None:
    check_tuner(options)
    import flows.tuning  # noqa: F401
    import networks.network  # noqa: F401
    from tasks import tracking

    tracking.connect()
