"""What a person sees of a tuning run: live progress on a terminal, short lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from targets.files import Json
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

    text: str
    count: int
    default: int | None = None
    roofline: int | None = None
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
            self._say(f"{facts['name']} on {facts['target']}: {len(self.layers)} workloads")
        elif event.kind == "tuned":
            place = list(self.layers).index(facts["id"]) + 1
            self._say(
                f"[{place}/{len(self.layers)}] {facts['workload']}: {facts['default_cycles']:,} → "
                f"{facts['tuned_cycles']:,} cycles (roofline {facts['roofline_cycles']:,}), "
                f"{facts['trials']} trials, {facts['invalid_trials']} invalid"
                + (f", {facts['reused_trials']} reused" if facts["reused_trials"] else "")
            )
        elif event.kind == "note":
            self._say(str(facts["text"]))

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


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
            layer.default, layer.roofline = facts["default"], facts["roofline"]
        elif event.kind == "round":
            layer = self.layers[str(facts["id"])]
            layer.trials, layer.best = facts["trials"], facts["best"]
            layer.valid_share = facts["valid_share"]
        elif event.kind == "tuned":
            layer = self.layers[str(facts["id"])]
            layer.best, layer.done = facts["tuned_cycles"], True
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
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("layer", "×", "progress", "stock", "best", "gain", "valid"):
            table.add_column(name, justify="left" if name in ("layer", "progress") else "right")
        for key, layer in self.layers.items():
            style = "bold" if key == self.current and not layer.done else None
            table.add_row(
                shorten(layer.text), str(layer.count), self._bar(layer), _number(layer.default),
                _number(layer.best), _gain(layer.default, layer.best),
                "" if layer.valid_share is None else f"{layer.valid_share:.0%}",
                style=style if layer.default else "dim",
            )  # fmt: skip
        return table

    def _bar(self, layer: Layer) -> ProgressBar:
        done = self.trials if layer.done else min(layer.trials, self.trials)
        return ProgressBar(total=self.trials, completed=done, width=16)


def results_table(summary: dict[str, Json]) -> Table:
    """What each layer costs by default and tuned, how far from the roofline, and at what price."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for name in ("layer", "×", "stock", "tuned", "gain", "roofline", "above", "trials", "valid"):
        table.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    rows = summary["workloads"]
    for row in rows:
        table.add_row(shorten(row["workload"]), str(row["count"]), *_figures(row), *_trials([row]))
    table.add_section()
    table.add_row("one inference", "", *_figures(summary["total"]), *_trials(rows), style="bold")
    return table


def _figures(row: dict[str, Json]) -> list[str]:
    default, tuned, bound = (row[f"{k}_cycles"] for k in ("default", "tuned", "roofline"))
    above = f"{tuned / bound - 1:.1%}"
    return [_number(default), _number(tuned), _gain(default, tuned), _number(bound), above]


def _trials(rows: list[dict[str, Json]]) -> list[str]:
    trials = sum(row["trials"] for row in rows)
    valid = trials - sum(row["invalid_trials"] for row in rows)
    return [_number(trials), f"{valid / max(trials, 1):.0%}"]


def shorten(workload: str) -> str:
    """`conv2d:n=1,c=64,h=56,w=56,o=128,k=3,s=2,p=1` as `3×3/2 64→128 @56`."""
    kind, _, body = workload.partition(":")
    value = dict(item.split("=") for item in body.split(","))
    channels = f"{value['c']}→{value['o']}"
    batch = f" n={value['n']}" if value["n"] != "1" else ""
    if kind == "dense":
        return f"dense {channels}{batch}"
    kernel = value["k"].replace("x", "×") if "x" in value["k"] else f"{value['k']}×{value['k']}"
    image = value["h"] if value["h"] == value["w"] else f"{value['h']}×{value['w']}"
    extra = "".join(f" {k}={value[k]}" for k in ("d", "g") if k in value)
    return f"{kernel}/{value['s']} {channels} @{image}{extra}{batch}"


def _layers(facts: dict[str, Json]) -> dict[str, Layer]:
    return {key: Layer(text, count) for key, text, count in facts["workloads"]}


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _gain(default: int | None, best: int | None) -> str:
    if default is None or best is None:
        return ""
    return f"{default / best:.2f}×"
