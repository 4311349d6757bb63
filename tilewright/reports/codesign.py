"""Results of a co-design run: the Pareto front as an HTML page with a picture, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from tilewright.core.files import write_atomically
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.output_folder import PAGE
from tilewright.hardware_search.results import CodesignOutcome, FrontRow, LayerRow
from tilewright.reports.markdown import (
    Links,
    Row,
    block,
    escape_text,
    list_links,
    markdown_table,
    paragraphs,
)
from tilewright.reports.number_format import count_text, milliseconds, percent
from tilewright.reports.plot_style import round_ticks
from tilewright.reports.templates import render
from tilewright.targets.capabilities import PARTS
from tilewright.targets.display_names import shape
from tilewright.targets.workload import parse_workload

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 18, 48, 54
"""Margins of the picture. They leave room for one line of tick labels and one line of axis labels
in the large font of narrow screens."""
_NARROW = 4.0  # ratio of the largest to the smallest latency below which ticks are linear
_LAYERS = 12
"""Maximum number of layers of a machine that are listed. One line summarises the other layers."""


@dataclass(frozen=True)
class PlotAxis:
    """Linear or logarithmic mapping from values to positions in an SVG picture.

    Attributes:
        low: value at the first end of the axis.
        high: value at the other end of the axis.
        begin: position of `low`, in units of the picture.
        end: position of `high`, in units of the picture.
        logarithmic: True for a logarithmic scale.
    """

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in units of the picture."""
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return ticks at round values between the ends, as pairs of position and label."""
        if self.logarithmic and self.high / self.low >= _NARROW:
            values = round_ticks(self.low, self.high)
        else:
            locator = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10])
            values = list(locator.tick_values(self.low, self.high))
        return [(self.place(item), f"{item:g}") for item in values if self.low <= item <= self.high]


@dataclass(frozen=True)
class PlotLine:
    """Line of a machine's table on the co-design page: one layer and its share of the time.

    Attributes:
        title: name of the workload.
        where: operators of the networks that run the workload.
        row: entry of the layer in `front.json`.
        calls: calls of the layer in one inference of each network, summed over the networks.
        width: length of the layer's bar: its time relative to the slowest layer of the machine.
    """

    title: str
    where: str
    row: LayerRow
    calls: int
    width: float

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of the layer's cycles, by activity; empty if the breakdown is unknown."""
        total = sum(self.row["parts"].values())
        return {name: cycles / total for name, cycles in self.row["parts"].items()} if total else {}


@dataclass(frozen=True)
class PlottedMachine:
    """A machine on the Pareto front, with its position in the picture and its slowest layers.

    Attributes:
        row: entry of the machine in `front.json`.
        x: horizontal position in the picture.
        y: vertical position in the picture.
        milliseconds: latency of one inference of each network, summed over the networks.
        lines: the slowest layers.
        rest: number of layers that are not in `lines`.
        rest_share: fraction of the time that the layers outside of `lines` take.
    """

    row: FrontRow
    x: float
    y: float
    milliseconds: float
    lines: list[PlotLine]
    rest: int
    rest_share: float


def front_page(outcome: CodesignOutcome) -> bytes:
    """Render the results of a co-design run as a self-contained HTML page.

    Args:
        outcome: the results.

    Returns:
        The page in UTF-8.
    """
    summary = outcome.summary
    across, up = _axes(outcome)
    machines = [_machine(row, across, up) for row in outcome.front]
    others = [
        (item, across.place(item.area), up.place(item.milliseconds)) for item in outcome.beaten
    ]
    return render(
        "codesign.html.jinja",
        title=f"Accelerators for {', '.join(summary['networks'])}",
        summary=summary,
        networks=summary["networks"],
        machines=machines,
        others=others,
        stairs=_stairs(machines),
        across=across,
        up=up,
        parts=PARTS,
        size=(WIDTH, HEIGHT),
        frame=(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
    )


def _axes(outcome: CodesignOutcome) -> tuple[PlotAxis, PlotAxis]:
    """Return the axes of the picture: area (horizontal, linear) and latency in ms (vertical, log).

    The axes cover all completely measured machines, whether or not they are on the Pareto front.
    """
    areas = [row["area"] for row in outcome.front] + [item.area for item in outcome.beaten]
    times = [_total(row) for row in outcome.front]
    times += [item.milliseconds for item in outcome.beaten]
    low, high = min(areas, default=0.0), max(areas, default=1.0)
    margin = 0.06 * (high - low) or 0.05
    across = PlotAxis(max(low - margin, 0.0), high + margin, LEFT, WIDTH - RIGHT, logarithmic=False)
    least, most = min(times, default=1.0), max(times, default=10.0)
    factor = max((most / least) ** 0.08, 1.02)
    up = PlotAxis(least / factor, most * factor, HEIGHT - BOTTOM, TOP, logarithmic=True)
    return across, up


def _machine(row: FrontRow, across: PlotAxis, up: PlotAxis) -> PlottedMachine:
    layers = sorted(row["layers"], key=lambda layer: -layer["share"])
    most = layers[0]["share"] if layers else 1.0
    lines = [_line(layer, most) for layer in layers[:_LAYERS]]
    rest = layers[_LAYERS:]
    return PlottedMachine(
        row, across.place(row["area"]), up.place(_total(row)), _total(row), lines, len(rest),
        sum(layer["share"] for layer in rest),
    )  # fmt: skip


def _line(row: LayerRow, most: float) -> PlotLine:
    where = "; ".join(
        f"{network}: {names[0]}" + f" +{len(names) - 1}" * (len(names) > 1)
        for network, names in row["names"].items()
    )
    calls = sum(row["calls"].values())
    return PlotLine(shape(parse_workload(row["workload"])), where, row, calls, row["share"] / most)


def _total(row: FrontRow) -> float:
    """Return the sum of the latencies of one inference of each network, in milliseconds."""
    return sum(row["milliseconds"].values())


def _stairs(machines: Sequence[PlottedMachine]) -> str:
    """Return the Pareto front as a staircase: the `points` attribute of an SVG polyline."""
    points, before = [], None
    for machine in machines:
        if before is not None:
            points.append((machine.x, before.y))
        points.append((machine.x, machine.y))
        before = machine
    if before is not None:
        points.append((WIDTH - RIGHT, before.y))
    return " ".join(f"{x},{y}" for x, y in points)


def run_note(options: CodesignOptions, flow_page: str) -> str:
    """Return the description of a co-design run in Markdown, which is written when the run begins.

    Args:
        options: options of the run.
        flow_page: address of the page of the Prefect flow run.

    Returns:
        The text.
    """
    what = (
        f"**{escape_text(options.subject)}** on one accelerator of at most {options.budget:g} of "
        f"the default machine's area: {count_text(options.trials, 'measurement')} "
        f"by {options.method}."
    )
    links = {"the flow run in Prefect": flow_page}
    return paragraphs(what, block(options.command_line("codesign"), "sh"), list_links(links))


def front_rows(outcome: CodesignOutcome) -> list[Row]:
    """Return the Pareto front as a table with one row per machine, by ascending area.

    The columns are the machine's name and area, the latency of each network in ms, the activity
    that takes the most cycles, and the share of each activity.

    Args:
        outcome: the results of the run.
    """
    networks = outcome.summary["networks"]
    return [
        {
            "machine": row["name"],
            "area": f"{row['area']:.3f}",
            **{f"{name}, ms": milliseconds(row["milliseconds"][name] / 1e3) for name in networks},
            "bottleneck": row["bottleneck"],
            **{part: percent(share) for part, share in row["shares"].items()},
        }
        for row in outcome.front
    ]


def front_note(outcome: CodesignOutcome, links: Links) -> str:
    """Return the results of a co-design run as a Markdown page.

    Args:
        outcome: the results.
        links: addresses of related pages, by title.

    Returns:
        The text.
    """
    summary, best = outcome.summary, outcome.summary["best"]
    message = "No machine has a valid schedule of every layer yet."
    if best is not None:
        message = (
            f"The fastest within an area of {summary['budget']:g}: **{best['name']}**, area "
            f"{best['area']:.3f}, {milliseconds(best['milliseconds'] / 1000.0)} ms."
        )
    count = summary["measurements"]
    facts = (
        f"{count_text(count, 'measurement')} of "
        f"{count_text(summary['hardware']['seen'], 'machine')} by {summary['method']}, clock "
        f"{summary['clock']}. Area is {summary['area_model']}."
    )
    table = markdown_table(front_rows(outcome)) if outcome.front else ""
    names = escape_text(", ".join(summary["networks"]))
    return paragraphs(f"# Accelerators for {names}", message, table, facts, list_links(links))


def draw_front(place: Path, outcome: CodesignOutcome) -> None:
    """Write the HTML page of a co-design run to `front.html`.

    Args:
        place: folder in which the file is written.
        outcome: the results of the run.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(place / PAGE, front_page(outcome))
