"""What a person sees of a tuning run: live progress on a terminal, short lines elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from targets.capabilities import Latency
from tuning.events import (
    Event,
    NetworkFound,
    Note,
    RoundDone,
    StageBegan,
    WorkloadBegan,
    WorkloadTuned,
)
from tuning.outcome import WorkloadRow
from tuning.outputs import Summary, Total

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
    default: Latency | None = None
    best: Latency | None = None
    trials: int = 0
    valid_share: float | None = None
    begun: bool = False
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
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                self._say(f"{event.name} on {event.target}: {len(self.layers)} workloads")
            case WorkloadTuned():
                row = event.outcome.summary()
                self._say(f"[{self._place(row)}/{len(self.layers)}] {_line(row)}")
            case Note():
                self._say(event.text)

    def _place(self, row: WorkloadRow) -> int:
        return list(self.layers).index(row["id"]) + 1

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
        match event:
            case NetworkFound():
                self.layers = _layers(event)
                self.title = f"{event.name} on {event.target}"
            case StageBegan():
                self.stage = STAGES.get(event.name, event.name)
            case WorkloadBegan():
                self.current = event.id
                self.layers[event.id].begun = True
                self.layers[event.id].default = event.default
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
        head = Text.assemble((self.title, "bold"), f"   {layers}{clock}   ", (self.stage, "cyan"))
        return Group(head, self._table()) if self.layers else head

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("layer", "×", "progress", "stock", "best", "gain", "valid"):
            table.add_column(name, justify="left" if name in ("layer", "progress") else "right")
        for key, layer in self.layers.items():
            style = "bold" if key == self.current and not layer.done else None
            table.add_row(
                shorten(layer.text), str(layer.count), self._bar(layer), _latency(layer.default),
                _latency(layer.best), _gain(_cost(layer.default), _cost(layer.best)),
                "" if layer.valid_share is None else f"{layer.valid_share:.0%}",
                style=style if layer.begun else "dim",
            )  # fmt: skip
        return table

    def _bar(self, layer: Layer) -> ProgressBar:
        done = self.trials if layer.done else min(layer.trials, self.trials)
        return ProgressBar(total=self.trials, completed=done, width=16)


def results_table(summary: Summary) -> Table:
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


def _figures(row: WorkloadRow | Total) -> list[str]:
    default = Latency(*_pair(row["default_seconds"], row["default_cycles"]))
    tuned = Latency(*_pair(row["tuned_seconds"], row["tuned_cycles"]))
    bound = Latency(*_pair(row["roofline_seconds"], row["roofline_cycles"]))
    cost, least = _cost(tuned), _cost(bound)
    above = f"{cost / least - 1:.1%}" if cost and least else ""
    gain = _gain(_cost(default), cost)
    return [_latency(default), _latency(tuned), gain, _latency(bound), above]


def _trials(rows: list[WorkloadRow]) -> list[str]:
    trials = sum(row["trials"] for row in rows)
    valid = trials - sum(row["invalid_trials"] for row in rows)
    return [f"{trials:,}", f"{valid / max(trials, 1):.0%}"]


def _line(row: WorkloadRow) -> str:
    """A tuned workload in a line."""
    default, tuned, _, bound, _ = _figures(row)
    unit = "" if row["tuned_cycles"] is None else " cycles"
    return (
        f"{row['workload']}: {default or 'no default'} → {tuned or 'nothing valid'}{unit}"
        + (f" (roofline {bound})" if bound else "")
        + f", {row['trials']} trials, {row['invalid_trials']} invalid"
        + (f", {row['reused_trials']} reused" if row["reused_trials"] else "")
    )


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


def _layers(event: NetworkFound) -> dict[str, Layer]:
    return {each.id: Layer(each.text, each.count) for each in event.workloads}


def _pair(seconds: float | None, cycles: int | None) -> tuple[float, int]:
    """A latency as `summary.json` has it."""
    return (float("nan") if seconds is None else seconds), (-1 if cycles is None else cycles)


def _cost(latency: Latency | None) -> float | None:
    """In cycles, or seconds where none are counted."""
    if latency is None or (latency.cycles < 0 and math.isnan(latency.seconds)):
        return None
    return float(latency.cycles) if latency.cycles >= 0 else latency.seconds


def _latency(latency: Latency | None) -> str:
    """`1,371` cycles, or `13.7 µs`."""
    cost = _cost(latency)
    if latency is None or cost is None:
        return ""
    if latency.cycles >= 0:
        return f"{latency.cycles:,}"
    return f"{cost * 1e3:.4g} ms" if cost >= 1e-3 else f"{cost * 1e6:.4g} µs"


def _gain(default: float | None, best: float | None) -> str:
    if default is None or not best:
        return ""
    return f"{default / best:.2f}×"
