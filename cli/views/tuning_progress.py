"""How a tuning run goes: a live table on a terminal, short lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.views.terminal import bare_table, say
from reports.figures import speedup, whole
from targets.files import Json, as_int, as_list, as_number, as_text
from targets.titles import shape
from targets.workload import parse_workload
from tasks.session import Event

STAGES = {
    "import_model": "importing the model",
    "extract_subgraphs": "extracting subgraphs",
    "measure_default": "timing the stock schedule",
    "generate_candidates": "Model P proposes candidates",
    "filter_candidates": "Model V filters candidates",
    "lower_candidates": "lowering, Model A re-ranks",
    "simulate_batch": "simulating a batch",
    "retrain_models": "retraining the models",
    "verify_schedule": "verifying the schedule",
}


class Display(Protocol):
    """Hears events; is a context in which it may use the terminal."""

    def __call__(self, event: Event) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...


def make_display(console: Console, trials: int) -> Display:
    return LiveDisplay(console, trials) if console.is_terminal else LineDisplay(console)


@dataclass
class Layer:
    """A line of the display."""

    name: str
    count: int
    default: int | None = None
    best: int | None = None
    trials: int = 0
    valid_share: float | None = None
    done: bool = False


@dataclass
class LineDisplay:
    """One line a finished workload, for logs and pipes."""

    console: Console
    layers: dict[str, Layer] = field(default_factory=dict)

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.kind == "network":
            self.layers = _layers(facts)
            say(self.console, f"{facts['name']} on {facts['target']}: {len(self.layers)} workloads")
        elif event.kind == "tuned":
            default, tuned, roofline = (
                as_int(facts[f"{k}_cycles"]) for k in ("default", "tuned", "roofline")
            )
            place = list(self.layers).index(as_text(facts["id"])) + 1
            say(
                self.console,
                f"[{place}/{len(self.layers)}] {facts['workload']}: {default:,} → "
                f"{tuned:,} cycles (roofline {roofline:,}), "
                f"{facts['trials']} trials, {facts['invalid_trials']} invalid"
                + (f", {facts['reused_trials']} reused" if facts["reused_trials"] else ""),
            )
        elif event.kind == "note":
            say(self.console, str(facts["text"]))


class LiveDisplay:
    """A table that grows with the run, and the stage that is running now."""

    def __init__(self, console: Console, trials: int) -> None:
        self.console = console
        self.trials = trials
        self.layers: dict[str, Layer] = {}
        self.title = "starting"
        self.stage = "starting the local servers"
        self.current: str | None = None
        self.start = time.monotonic()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.kind == "network":
            self.layers = _layers(facts)
            self.title = f"{facts['name']} on {facts['target']}"
        elif event.kind == "stage":
            self.stage = STAGES.get(str(facts["name"]), str(facts["name"]))
        elif event.kind == "workload":
            self.current = str(facts["id"])
            layer = self.layers[self.current]
            layer.default = as_int(facts["default"])
        elif event.kind == "round":
            layer = self.layers[str(facts["id"])]
            best = facts["best"]
            layer.trials = as_int(facts["trials"])
            layer.best = None if best is None else as_int(best)
            layer.valid_share = as_number(facts["valid_share"])
        elif event.kind == "tuned":
            layer = self.layers[str(facts["id"])]
            layer.best, layer.done = as_int(facts["tuned_cycles"]), True
        elif event.kind == "note":
            self.console.print(str(facts["text"]), markup=False)

    def __rich__(self) -> RenderableType:
        seconds = int(time.monotonic() - self.start)
        done = sum(layer.done for layer in self.layers.values())
        layers = f"{done}/{len(self.layers)} layers   " if self.layers else ""
        clock = f"{seconds // 60}:{seconds % 60:02d}"
        head = Text.assemble((self.title, "bold"), f"   {layers}{clock}   ", (self.stage, "cyan"))
        return Group(head, self._table()) if self.layers else head

    def _table(self) -> Table:
        table = bare_table()
        for name in ("layer", "×", "progress", "stock", "best", "gain", "valid"):
            table.add_column(name, justify="left" if name in ("layer", "progress") else "right")
        for key, layer in self.layers.items():
            style = "bold" if key == self.current and not layer.done else None
            table.add_row(
                layer.name, str(layer.count), self._bar(layer), whole(layer.default),
                whole(layer.best), speedup(layer.default, layer.best),
                "" if layer.valid_share is None else f"{layer.valid_share:.0%}",
                style=style if layer.default else "dim",
            )  # fmt: skip
        return table

    def _bar(self, layer: Layer) -> ProgressBar:
        done = self.trials if layer.done else min(layer.trials, self.trials)
        return ProgressBar(total=self.trials, completed=done, width=16)


def _layers(facts: dict[str, Json]) -> dict[str, Layer]:
    """By id, in the order of the network."""
    layers = {}
    for row in as_list(facts["workloads"]):
        key, text, count = as_list(row)
        layers[as_text(key)] = Layer(shape(parse_workload(as_text(text))), as_int(count))
    return layers
