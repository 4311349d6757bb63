"""Display of the progress of a tuning run: a live table on a terminal, short lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import (
    BREAK,
    Activity,
    Silence,
    columns_of,
    cost,
    cycles_text,
    fitted_table,
    latency_text,
    print_line,
    time_text,
)
from tilewright.reports.number_format import count_text, speedup
from tilewright.reports.run_results import sure_time
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import layer
from tilewright.targets.kernel_compilation import describe_compilation
from tilewright.tuning.events import (
    Event,
    NetworkFound,
    Note,
    RoundDone,
    RoundScheduled,
    StageBegan,
    StageReused,
    WorkloadBegan,
    WorkloadsAdded,
    WorkloadTuned,
)
from tilewright.tuning.gains import four_figures
from tilewright.tuning.results import TunedWorkload

STAGES = {
    "import_model": "importing the model",
    "extract_subgraphs": "extracting subgraphs",
    "measure_baseline": "measuring the rule schedule",
    "begin_models": "inspecting the schedule space",
    "generate_candidates": "Model P proposes candidates",
    "filter_candidates": "Model V filters candidates",
    "lower_and_choose": "lowering candidates, Model A re-ranks them",
    "measure_batch": "measuring a batch",
    "retrain_models": "retraining the models",
    "time_again": "measuring the best schedule again",
    "measure_leaders": "validating the best schedules",
    "verify_schedule": "verifying the schedule",
    "decide_fusion": "deciding which operators to fuse",
}


BAR = "━" * 12
WIDE = 100
"""Minimum terminal width, in characters, at which the shapes of layers are shown beside their
progress."""
READING, STARTING = "reading the model", "starting the local servers"
"""Text for the first step of a run: `READING` without servers, `STARTING` with servers."""


class Display(Protocol):
    """Interface of progress displays: context managers that are called with each event of a run."""

    def __call__(self, event: Event) -> None:
        """Show an event of a run."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...


class Heard:
    """Listener that passes events to a display, and counts the steps whose results were reused.

    Args:
        display: progress display, which receives all events.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.reused_stages = 0

    def __call__(self, event: Event) -> None:
        """Count reused stages, and pass the event on to the display."""
        self.reused_stages += isinstance(event, StageReused)
        self.display(event)


def make_display(console: Console, trials: int, first: str = READING) -> Display:
    """Return a live display for a terminal, or a display of single lines for other outputs.

    Args:
        console: the console.
        trials: number of trials per workload.
        first: description of the first step.
    """
    if console.is_terminal:
        return LiveDisplay(console, trials, first)
    return LineDisplay(console, first)


@dataclass
class LayerProgress:
    """Progress of a layer: one line of the display.

    Attributes:
        name: display name of the layer.
        count: number of calls per inference.
        rule: latency of the rule schedule, which is chosen without a trial, if it is known.
        best: latency of the best trial so far.
        trials: number of trials so far.
        valid_share: fraction of the trials that are valid.
        begun: whether tuning of the layer has begun.
        done: whether tuning of the layer has ended.
    """

    name: str
    count: int
    rule: Latency | None = None
    best: Latency | None = None
    trials: int = 0
    valid_share: float | None = None
    begun: bool = False
    done: bool = False


class LineDisplay:
    """Display that prints one line per finished workload, for logs and pipes.

    If nothing is printed for a while, it prints the current step.

    Args:
        console: the console.
        first: description of the first step.
    """

    def __init__(self, console: Console, first: str = READING) -> None:
        self.console = console
        self.layers: dict[str, LayerProgress] = {}
        self._stage, self._since = first, time.monotonic()
        self._shared = ""
        self._silence = Silence(console, self._under_way)

    def __enter__(self) -> LineDisplay:
        self._silence.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._silence.__exit__()

    def __call__(self, event: Event) -> None:
        """Print a line about an event, unless the event is of no interest to the user."""
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                result = count_text(len(self.layers), "workload")
                self._say(f"{event.name} on {event.target}: {result}")
            case WorkloadsAdded():
                self.layers |= _layers(event)
            case StageBegan():
                self._stage, self._since = STAGES.get(event.name, event.name), time.monotonic()
            case RoundScheduled():
                self._shared = f", {shared_text(event)}"
            case WorkloadTuned():
                place = list(self.layers).index(event.outcome.workload.id) + 1
                self._say(f"[{place}/{len(self.layers)}] {tuned_line(event.outcome)}")
            case Note():
                self._say(event.text)

    def _say(self, text: str) -> None:
        print_line(self.console, text)
        self._silence.restart()

    def _under_way(self) -> Activity:
        seconds = round(time.monotonic() - self._since)
        progress = f", for {seconds} s so far" if seconds else ""
        return Activity(self._stage, f"{self._stage}{progress}{self._shared}")


class LiveDisplay:
    """Live table with the progress of each layer and the current step.

    Args:
        console: the terminal.
        trials: number of trials per workload.
        first: description of the first step.
    """

    def __init__(self, console: Console, trials: int, first: str = READING) -> None:
        self.console = console
        self.trials = trials
        self.layers: dict[str, LayerProgress] = {}
        self.title = "starting"
        self.stage = first
        self.current: str | None = None
        self.shared: RoundScheduled | None = None
        self.start = time.monotonic()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Update the live display with an event."""
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                self.title = f"{event.name} on {event.target}"
            case WorkloadsAdded():
                self.layers |= _layers(event)
            case StageBegan():
                self.stage = STAGES.get(event.name, event.name)
            case WorkloadBegan():
                self.current, layer = event.id, self.layers[event.id]
                layer.begun, layer.rule = True, event.rule
            case RoundScheduled():
                self.current, self.shared = event.id, event
            case RoundDone():
                layer = self.layers[event.id]
                layer.trials, layer.best = event.trials, event.best
                layer.valid_share = event.valid_share
            case WorkloadTuned():
                layer, chosen = self.layers[event.outcome.workload.id], event.outcome.chosen
                layer.best, layer.done = chosen.latency if chosen else None, True
            case Note():
                self.console.print(event.text, markup=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seconds = int(time.monotonic() - self.start)
        done = sum(layer.done for layer in self.layers.values())
        layers = f"{done}/{len(self.layers)} layers   " if self.layers else ""
        clock = f"{seconds // 60}:{seconds % 60:02d}"
        trials = f"{shared_text(self.shared)}   " if self.shared else ""
        about = f"   {layers}{trials}{clock}   "
        yield Text.assemble(
            (self.title, "bold"), about, (describe_compilation() or self.stage, "cyan")
        )
        if self.layers:
            yield self._table(options.max_width)

    def _table(self, width: int) -> Table:
        """Return a table with one line per layer. A narrow terminal does not show the shapes."""
        rows = [
            {
                "layer": layer.name if width >= WIDE else layer.name.partition(BREAK)[0],
                "×": str(layer.count),
                "progress": BAR,
                "rule": _short(layer.rule),
                "best": _short(layer.best),
                "ms": time_text(layer.best),
                "gain": speedup(cost(layer.rule), cost(layer.best)),
                "valid": "" if layer.valid_share is None else f"{layer.valid_share:.0%}",
            }
            for layer in self.layers.values()
        ]
        styles = [
            "dim" if not layer.begun else "bold" if key == self.current and not layer.done else None
            for key, layer in self.layers.items()
        ]
        columns: dict[str, Sequence[str | Text]] = {**columns_of(rows)}
        columns["progress"] = [self._bar(layer) for layer in self.layers.values()]
        droppable = ("rule", "×", "valid", "ms", "gain")
        return fitted_table(columns, droppable, width, left=("progress",), styles=styles)

    def _bar(self, layer: LayerProgress) -> Text:
        """Return the progress bar of a layer.

        The full length stands for the trials of a layer. If the layers share their trials, it
        stands for the trials of the layer that has used the most.

        Args:
            layer: progress of the layer.
        """
        most, done = self.trials, layer.trials
        if self.shared:
            most = max(most, *(layer.trials for layer in self.layers.values()))
        elif layer.done:
            done = most
        filled = len(BAR) * min(done, most) // most
        return Text.assemble((BAR[:filled], "green"), (BAR[filled:], "bright_black"))


def shared_text(event: RoundScheduled) -> str:
    """Return how many of the shared trials are used, such as `64 of at most 512 trials`."""
    return f"{event.trials:,} of at most {count_text(event.most, 'trial')}"


def tuned_line(outcome: TunedWorkload) -> str:
    """Return one line about a tuned workload: its latencies and numbers of trials.

    The latencies are those of the rule schedule, the tuned schedule and the lower bound.
    """
    row, chosen = outcome.summary(), outcome.chosen
    rule = four_figures(row).rule
    earlier = f"rule {_short(rule)}" if rule else "no rule schedule"
    after = latency_text(chosen.latency) if chosen else "no valid schedule"
    after += f" ({sure})" if (sure := sure_time(row)) else ""
    bound = f", bound {_short(outcome.bound)}" if outcome.bound else ""
    reused = f", {outcome.reused_trials} reused" if outcome.reused_trials else ""
    return (
        f"{layer(outcome.names, outcome.workload)}: {earlier} → {after}{bound}; "
        f"{count_text(outcome.trials, 'trial')}, "
        f"{outcome.invalid_trials} invalid{reused}"
    )


def _short(latency: Latency | None) -> str:
    """Return a latency in cycles or, if no cycles are counted, in milliseconds."""
    return cycles_text(latency) or latency_text(latency)


def _layers(event: NetworkFound | WorkloadsAdded) -> dict[str, LayerProgress]:
    return {
        workload.id: LayerProgress(workload.title, workload.count) for workload in event.workloads
    }
