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
    say,
    time_text,
)
from tilewright.reports.number_format import counted, speedup
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
    "measure_baseline": "timing the schedule chosen by rule",
    "begin_models": "looking at the schedule space",
    "generate_candidates": "Model P proposes candidates",
    "filter_candidates": "Model V filters candidates",
    "lower_and_choose": "lowering, Model A re-ranks",
    "measure_batch": "measuring a batch",
    "retrain_models": "retraining the models",
    "time_again": "timing the winner again",
    "measure_leaders": "validating the leaders",
    "verify_schedule": "verifying the schedule",
    "decide_fusion": "deciding what is fused",
}


BAR = "━" * 12
WIDE = 100
"""Terminal width from which the shapes of layers are shown beside their progress."""
READING, STARTING = "reading the model", "starting the local servers"
"""First step of a run without servers, and of a run with servers."""


class Display(Protocol):
    """A context manager that receives events and shows them in the terminal."""

    def __call__(self, event: Event) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...


class Heard:
    """Listener that passes events to a display, and counts the steps whose results were reused."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.reused_stages = 0

    def __call__(self, event: Event) -> None:
        self.reused_stages += isinstance(event, StageReused)
        self.display(event)


def make_display(console: Console, trials: int, first: str = READING) -> Display:
    """Return a display for a terminal, or for other outputs.

    Args:
        console: the console.
        trials: trials per workload.
        first: description of the first step.
    """
    if console.is_terminal:
        return LiveDisplay(console, trials, first)
    return LineDisplay(console, first)


@dataclass
class LayerProgress:
    """Progress of a layer, one line of the display.

    Attributes:
        name: display name of the layer.
        count: number of calls per inference.
        rule: latency of the schedule that is used without tuning, if known.
        best: latency of the best trial so far.
        trials: number of trials so far.
        valid_share: fraction of the trials that are valid.
        begun: whether tuning of the layer has begun.
        done: whether it has ended.
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
    """Prints one line per finished workload, for logs and pipes.

    If nothing is printed for a while, it prints what the run is doing.
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
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                found = counted(len(self.layers), "workload")
                self._say(f"{event.name} on {event.target}: {found}")
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
        say(self.console, text)
        self._silence.broken()

    def _under_way(self) -> Activity:
        seconds = round(time.monotonic() - self._since)
        progress = f", for {seconds} s now" if seconds else ""
        return Activity(self._stage, f"{self._stage}{progress}{self._shared}")


class LiveDisplay:
    """Live table of the run's progress, with the current step."""

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
                "layer": each.name if width >= WIDE else each.name.partition(BREAK)[0],
                "×": str(each.count),
                "progress": BAR,
                "rule": _short(each.rule),
                "best": _short(each.best),
                "ms": time_text(each.best),
                "gain": speedup(cost(each.rule), cost(each.best)),
                "valid": "" if each.valid_share is None else f"{each.valid_share:.0%}",
            }
            for each in self.layers.values()
        ]
        styles = [
            "dim" if not each.begun else "bold" if key == self.current and not each.done else None
            for key, each in self.layers.items()
        ]
        columns: dict[str, Sequence[str | Text]] = {**columns_of(rows)}
        columns["progress"] = [self._bar(each) for each in self.layers.values()]
        droppable = ("rule", "×", "valid", "ms", "gain")
        return fitted_table(columns, droppable, width, left=("progress",), styles=styles)

    def _bar(self, layer: LayerProgress) -> Text:
        """Return the progress bar of a layer, which also shows how many of the shared trials it
        got."""
        most, done = self.trials, layer.trials
        if self.shared:
            most = max(most, *(each.trials for each in self.layers.values()))
        elif layer.done:
            done = most
        filled = len(BAR) * min(done, most) // most
        return Text.assemble((BAR[:filled], "green"), (BAR[filled:], "bright_black"))


def shared_text(event: RoundScheduled) -> str:
    """Return how many of the shared trials are spent."""
    return f"{event.trials:,} of at most {counted(event.most, 'trial')}"


def tuned_line(outcome: TunedWorkload) -> str:
    """Return one line about a tuned workload."""
    row, chosen = outcome.summary(), outcome.chosen
    rule = four_figures(row).rule
    earlier = f"rule {_short(rule)}" if rule else "no rule"
    after = latency_text(chosen.latency) if chosen else "nothing valid"
    after += f" ({sure})" if (sure := sure_time(row)) else ""
    bound = f", bound {_short(outcome.bound)}" if outcome.bound else ""
    reused = f", {outcome.reused_trials} reused" if outcome.reused_trials else ""
    return (
        f"{layer(outcome.names, outcome.workload)}: {earlier} → {after}{bound}; "
        f"{counted(outcome.trials, 'trial')}, "
        f"{outcome.invalid_trials} invalid{reused}"
    )


def _short(latency: Latency | None) -> str:
    """Return a latency in cycles if they are counted, else in milliseconds."""
    return cycles_text(latency) or latency_text(latency)


def _layers(event: NetworkFound | WorkloadsAdded) -> dict[str, LayerProgress]:
    return {each.id: LayerProgress(each.title, each.count) for each in event.workloads}
