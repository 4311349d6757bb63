"""A tuning run as a command: servers around the flow, progress before, results after.

Heavy imports wait until the server is on its way: both take seconds.
"""

from __future__ import annotations

from rich.console import Console

from flows.checks import check, check_tuner
from flows.display import make_display, results_table
from flows.embedded import embedded
from flows.options import TuningOptions
from tasks.session import listening


def run_tuning(options: TuningOptions, console: Console) -> None:
    """Run `tune_network` and print what came of it. Raises `TilewrightError`."""
    check(options)
    display = make_display(console, options.trials)
    with display, listening(display), embedded(lambda: _prepare(options)):
        from flows.tuning import tune_network

        summary = tune_network(options)
    console.print(results_table(summary))
    console.print(
        f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"results in {options.folder}: summary.json, schedules.json, trials.parquet, "
        "convergence.png\n"
        "'tilewright ui' shows this run in MLflow and Prefect",
        highlight=False,
        soft_wrap=True,
    )


def _prepare(options: TuningOptions) -> None:
    check_tuner(options)
    import flows.tuning  # noqa: F401
    import networks.network  # noqa: F401
