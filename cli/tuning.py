"""A tuning run as a command: servers around the flow, progress before, results after.

Heavy imports wait until the server is on its way: both take seconds.
"""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from cli.display import make_display, results_table
from services.embedded import embedded
from targets.files import Json
from tasks.session import Event, isolating, listening
from tuning.checks import check, check_tuner
from tuning.options import TuningOptions


def run_tuning(options: TuningOptions, console: Console, isolate_seconds: float = 0.0) -> None:
    """Run `tune_network` and print what came of it. `isolate_seconds` is for a batch in a process
    of its own, 0 for none. Raises `TilewrightError`."""
    check(options)
    display = make_display(console, options.trials)
    events: Counter[str] = Counter()

    def hear(event: Event) -> None:
        events[event.kind] += 1
        display(event)

    servers = embedded(lambda: _prepare(options))
    with display, listening(hear), isolating(isolate_seconds), servers:
        from flows.tuning import tune_network

        summary = tune_network(options)
    console.print(results_table(summary))
    console.print(
        _reused(summary, events["reused"])
        + f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"results in {options.folder}: summary.json, schedules.json, trials.parquet, "
        "convergence.png\n"
        "'tilewright ui' shows this run in MLflow and Prefect",
        highlight=False,
        soft_wrap=True,
    )


def _reused(summary: dict[str, Json], stages: int) -> str:
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
