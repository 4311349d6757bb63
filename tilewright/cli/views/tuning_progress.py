"""Shows the progress of a tuning run: a live table on a terminal, short lines elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.latency import cost, cycles_text, latency_text, time_text
from tilewright.cli.views.terminal import bare_table, say
from tilewright.reports.number_format import plural, speedup
from tilewright.reports.run_table import sure_time
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import layer
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
from tilewright.tuning.gains import before
from tilewright.tuning.results import TunedWorkload

STAGES = {
    "import_model": "importing the model",
    "extract_subgraphs": "extracting subgraphs",
    "measure_baseline": "timing the baseline",
    "generate_candidates": "Model P proposes candidates",
    "filter_candidates": "Model V filters candidates",
    "lower_candidates": "lowering, Model A re-ranks",
    "simulate_batch": "measuring a batch",
    "retrain_models": "retraining the models",
    "time_again": "timing the winner again",
    "measure_leaders": "validating the leaders",
    "verify_schedule": "verifying the schedule",
    "decide_fusion": "deciding what is fused",
}


FIRST_STAGE = "starting the local servers"


class Display(Protocol):
    """Hears events; is a context in which it may use the terminal."""

    def __call__(self, event: Event) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...


class Heard:
    """Shows what happens, and counts the stages that were not done again."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.reused_stages = 0

    def __call__(self, event: Event) -> None:
        self.reused_stages += isinstance(event, StageReused)
        self.display(event)


def make_display(console: Console, trials: int) -> Display:
    """The display that suits the terminal, or the lack of one; `trials` are those of a workload."""
    return LiveDisplay(console, trials) if console.is_terminal else LineDisplay(console)


@dataclass
class LayerProgress:
    """A line of the display."""

    name: str
    count: int
    baseline: Latency | None = None
    best: Latency | None = None
    trials: int = 0
    valid_share: float | None = None
    begun: bool = False
    done: bool = False


class LineDisplay:
    """One line a finished workload, for logs and pipes; and one in `quiet_seconds` without any,
    about what the run waits for or works on."""

    def __init__(self, console: Console, quiet_seconds: float = 30.0) -> None:
        self.console = console
        self.layers: dict[str, LayerProgress] = {}
        self._quiet_seconds = quiet_seconds
        self._stage, self._since = FIRST_STAGE, time.monotonic()
        self._shared = ""
        self._spoke, self._ended = threading.Event(), threading.Event()

    def __enter__(self) -> LineDisplay:
        threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._spoke.set()

    def __call__(self, event: Event) -> None:
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                count = len(self.layers)
                found = f"{event.name} on {event.target}: {count} {plural(count, 'workload')}"
                self._say(found)
            case WorkloadsAdded():
                self.layers |= _layers(event)
            case StageBegan():
                self._stage, self._since = STAGES.get(event.name, event.name), time.monotonic()
            case RoundScheduled():
                self._shared = f"{shared_text(event)}, "
            case WorkloadTuned():
                place = list(self.layers).index(event.outcome.workload.id) + 1
                self._say(f"[{place}/{len(self.layers)}] {tuned_line(event.outcome)}")
            case Note():
                self._say(event.text)

    def _say(self, text: str) -> None:
        say(self.console, text)
        self._spoke.set()

    def _break_silence(self) -> None:
        while not self._ended.is_set():
            if self._spoke.wait(self._quiet_seconds):
                self._spoke.clear()
            elif not self._ended.is_set():
                seconds = time.monotonic() - self._since
                say(self.console, f"… {self._shared}{self._stage}, for {seconds:.0f} s now")


class LiveDisplay:
    """A table that grows with the run, and the stage that is running now."""

    def __init__(self, console: Console, trials: int) -> None:
        self.console = console
        self.trials = trials
        self.layers: dict[str, LayerProgress] = {}
        self.title = "starting"
        self.stage = FIRST_STAGE
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
                layer.begun, layer.baseline = True, event.baseline
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

    def __rich__(self) -> RenderableType:
        seconds = int(time.monotonic() - self.start)
        done = sum(layer.done for layer in self.layers.values())
        layers = f"{done}/{len(self.layers)} layers   " if self.layers else ""
        clock = f"{seconds // 60}:{seconds % 60:02d}"
        trials = f"{shared_text(self.shared)}   " if self.shared else ""
        about = f"   {layers}{trials}{clock}   "
        head = Text.assemble((self.title, "bold"), about, (self.stage, "cyan"))
        return Group(head, self._table()) if self.layers else head

    def _table(self) -> Table:
        table = bare_table()
        for name in ("layer", "×", "progress", "baseline", "best", "ms", "gain", "valid"):
            left = name in ("layer", "progress")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for key, each in self.layers.items():
            style = "bold" if key == self.current and not each.done else None
            table.add_row(
                each.name, str(each.count), self._bar(each),
                _short(each.baseline), _short(each.best), time_text(each.best),
                speedup(cost(each.baseline), cost(each.best)),
                "" if each.valid_share is None else f"{each.valid_share:.0%}",
                style=style if each.begun else "dim",
            )  # fmt: skip
        return table

    def _bar(self, layer: LayerProgress) -> ProgressBar:
        """How far a layer is; where trials are shared, also how many of them it got."""
        if self.shared:
            most = max(each.trials for each in self.layers.values())
            return ProgressBar(total=max(most, self.trials), completed=layer.trials, width=12)
        done = self.trials if layer.done else min(layer.trials, self.trials)
        return ProgressBar(total=self.trials, completed=done, width=12)


def shared_text(event: RoundScheduled) -> str:
    """How many of the shared trials are spent."""
    return f"{event.trials} of at most {event.most} trials"


def tuned_line(outcome: TunedWorkload) -> str:
    """A workload that is done, in a line."""
    row, chosen = outcome.summary(), outcome.chosen
    had = before(row)
    mark = "" if had.is_published else "~"
    earlier = f"baseline {mark}{_short(had.latency)}" if had.latency else "no baseline"
    after = latency_text(chosen.latency) if chosen else "nothing valid"
    after += f" ({sure})" if (sure := sure_time(row)) else ""
    bound = f", bound {_short(outcome.bound)}" if outcome.bound else ""
    reused = f", {outcome.reused_trials} reused" if outcome.reused_trials else ""
    return (
        f"{layer(outcome.names, outcome.workload)}: {earlier} → {after}{bound}; "
        f"{outcome.trials} {plural(outcome.trials, 'trial')}, "
        f"{outcome.invalid_trials} invalid{reused}"
    )


def _short(latency: Latency | None) -> str:
    """Cycles alone where they are counted: the time stands beside the best."""
    return cycles_text(latency) or latency_text(latency)


def _layers(event: NetworkFound | WorkloadsAdded) -> dict[str, LayerProgress]:
    return {each.id: LayerProgress(each.title, each.count) for each in event.workloads}
