"""A tuning run as a command: servers around the flow, progress before, results after."""

from __future__ import annotations

from rich.console import Console

from flows.display import make_display, results_table
from flows.embedded import embedded
from flows.options import TuningOptions
from tasks import outputs
from tasks.session import listening


def run_tuning(options: TuningOptions, console: Console) -> None:
    """Run `tune_network` and print what came of it. Raises what the flow raises."""
    display = make_display(console, options.trials)
    with display, listening(display), embedded(_load_libraries):
        from flows.tuning import tune_network

        summary = tune_network(options)
    console.print(results_table(summary))
    console.print(
        f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"{options.folder / outputs.SCHEDULES}: the schedules; "
        f"{outputs.SUMMARY}, {outputs.TRIALS}, {outputs.CONVERGENCE} beside it\n"
        "tilewright ui: this run in MLflow and Prefect",
        highlight=False,
        soft_wrap=True,
    )


def _load_libraries() -> None:
    """The server takes seconds to start; meanwhile load what the flow will need."""
    import flows.tuning  # noqa: F401
    import networks.network  # noqa: F401
