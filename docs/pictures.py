"""Draws the pictures of `explanation/from-convolution-to-schedule.md` from real programs.

    python docs/pictures.py        # writes docs/images/schedules/*.svg

The pictures show one layer: a 3×3 convolution of ResNet-18 with 64 channels and 56×56 pixels, on
the preset `vta-pynq`, in the stock compiler's space.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from tilewright.reports.timeline import KIND_COLOURS, instruction_kinds
from tilewright.targets.registry import make_target
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.timing import MODULE_NAMES, CycleReport, simulate_program
from tilewright.targets.workload import parse_workload

OUT = Path(__file__).parent / "images" / "schedules"
LAYER = parse_workload("conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1")
TILES = {"tile_b": 1, "tile_h": 8, "tile_w": 56, "tile_ci": 1, "tile_co": 2}
OVERLAPPED = TILES | {"oc_nthread": 2, "h_nthread": 1}
ALONE = TILES | {"oc_nthread": 1, "h_nthread": 1}
INK, MUTED, ACCENT, SOFT = "#1f2933", "#7b8794", "#2f7d4f", "#d7eadf"
BLUE, AMBER, RED = "#dbe7f3", "#f7e8c4", "#f6d5d2"


def main() -> None:
    """Write all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "tilewright", "font.size": 10, "text.color": INK})
    target = make_target("vta-pynq", "stock")
    assert isinstance(target, VtaTarget)
    _save(_loop(), "loop")
    _save(_tiles(), "tiles")
    _save(_timelines(target), "timelines")
    _save(_space(target), "space")


def _save(figure: Figure, name: str) -> None:
    FigureCanvasSVG(figure)  # type: ignore[no-untyped-call]
    figure.savefig(OUT / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def _loop() -> Figure:
    """Draw the round of a tuner, from a network to an artifact."""
    figure = Figure(figsize=(9.8, 2.7))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 108), ylim=(0, 29))
    axes.axis("off")
    boxes = {
        "network": (1, 18, 12, "network\nONNX, TFLite", BLUE),
        "candidates": (17, 18, 13, "candidates\nschedules to\ntry", SOFT),
        "v": (34, 18, 12, "Model V\ndrops what\nwould fail", AMBER),
        "compile": (50, 18, 11, "compiler\nhidden\nfeatures", SOFT),
        "a": (65, 18, 11, "Model A\nchooses the\nbatch", AMBER),
        "measure": (80, 18, 11, "simulation\nor board", SOFT),
        "p": (34, 3, 27, "Models P, V and A are retrained\nP ranks the next candidates", AMBER),
        "best": (80, 3, 11, "best\nschedules", BLUE),
        "artifact": (95, 3, 11, "artifact\nthat runs", BLUE),
    }
    for left, bottom, width, text, colour in boxes.values():
        axes.add_patch(
            FancyBboxPatch(
                (left, bottom),
                width,
                8,
                boxstyle="round,pad=0,rounding_size=1",
                fc=colour,
                ec=MUTED,
            )
        )
        axes.text(left + width / 2, bottom + 4, text, ha="center", va="center", fontsize=8.5)
    for start, end in (
        ((13, 22), (17, 22)), ((30, 22), (34, 22)), ((46, 22), (50, 22)), ((61, 22), (65, 22)),
        ((76, 22), (80, 22)), ((87, 18), (87, 11)), ((91, 7), (95, 7)),
    ):  # fmt: skip
        _arrow(axes, start, end)
    _arrow(axes, (82, 18), (61, 7), "arc3,rad=-0.25")
    _arrow(axes, (34, 7), (23, 18), "arc3,rad=-0.35")
    axes.text(22, 9.5, "next round", fontsize=8.5, color=MUTED, ha="center")
    return figure


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: str = "arc3"
) -> None:
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "connectionstyle": bend}
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)


def _tiles() -> Figure:
    """Draw the output of a layer in tiles, and the input and the weights that one tile needs."""
    figure = Figure(figsize=(9.2, 3.2), layout="constrained")
    for axes, (title, draw) in zip(
        figure.subplots(1, 3, width_ratios=(1, 1, 1)),
        {
            "output: 64 channels of 56×56": _output_tiles,
            "input that one tile reads": _input_window,
            "weights that one tile reads": _weight_blocks,
        }.items(),
        strict=True,
    ):
        draw(axes)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_aspect("equal")
        axes.axis("off")
    return figure


def _output_tiles(axes: Axes) -> None:
    for group in (1, 0):  # two groups of 32 channels, one behind the other
        for row in range(0, 56, 8):
            chosen = group == 0 and row == 16
            axes.add_patch(
                Rectangle(
                    (group * 9, 48 - row + group * 9), 56, 8, fc=SOFT if not chosen else ACCENT,
                    ec="white", lw=1.5, alpha=1 if group == 0 else 0.6,
                )
            )  # fmt: skip
    axes.text(28, 36, "one tile: 8 rows × 56 columns\n× 32 channels", ha="center", va="center",
              color="white", fontsize=6)  # fmt: skip
    axes.text(0, -7, "7 × 2 tiles (tile_h=8, tile_w=56,\ntile_co=2 blocks of 16 channels)",
              fontsize=8, va="top")  # fmt: skip
    axes.set(xlim=(-1, 68), ylim=(-18, 68))


def _input_window(axes: Axes) -> None:
    axes.add_patch(Rectangle((0, 0), 56, 56, fc=BLUE, ec="white"))
    axes.add_patch(Rectangle((0, 31), 56, 10, fc="#4e79a7", ec="white"))
    axes.text(28, 36, "10 rows: 8, and one on either side", ha="center", va="center", fontsize=6.5,
              color="white")  # fmt: skip
    axes.text(0, -7, "one of 4 blocks of 16 channels at a\ntime (tile_ci=1); the sums of all four\n"
              "stay in the accumulators", fontsize=8, va="top")  # fmt: skip
    axes.set(xlim=(-1, 68), ylim=(-18, 68))


def _weight_blocks(axes: Axes) -> None:
    for row in range(4):
        for column in range(4):
            chosen = row < 2 and column == 0
            axes.add_patch(
                Rectangle(
                    (column * 14, 42 - row * 14), 13, 13, fc="#76b7b2" if chosen else "#e3f1ef"
                )
            )
    axes.text(6.5, 56.5, "input\nblock 0", ha="center", va="bottom", fontsize=7.5)
    axes.text(57, 41.5, "output\nblocks\n0 and 1", va="center", fontsize=7.5)
    axes.text(0, -7, "each square is a block of 16×16 weights\nfor each of 3×3 taps; the GEMM "
              "core\nmultiplies one pixel by one block a cycle", fontsize=8, va="top")  # fmt: skip
    axes.set(xlim=(-1, 68), ylim=(-18, 68))


def _report(target: VtaTarget, knobs: Mapping[str, int]) -> CycleReport:
    lowering: Lowering = target.lowering(LAYER)
    code, insns, _, _ = lowering.program(np.array([knobs[k.name] for k in lowering.space.knobs]))
    assert code == 0
    return simulate_program(insns, target.spec)


def _timelines(target: VtaTarget) -> Figure:
    """Draw what the three modules do at the start of two programs with equal tiles."""
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    reports = {
        "one tile at a time": _report(target, ALONE),
        "two tiles in turns (oc_nthread=2), so that loads run during products": _report(
            target, OVERLAPPED
        ),
    }
    window = 60_000
    for axes, (title, report) in zip(
        figure.subplots(2, 1, sharex=True), reports.items(), strict=True
    ):
        kind = instruction_kinds(report)
        for name, colour in KIND_COLOURS.items():
            for module, _ in enumerate(MODULE_NAMES):
                mine = (kind == name) & (report.modules == module) & (report.starts < window)
                begins, ends = report.starts[mine], report.ends[mine]
                if len(begins):
                    axes.broken_barh(
                        np.column_stack([begins, ends - begins]).tolist(), (module - 0.38, 0.76),
                        color=colour, linewidth=0, label=name,
                    )  # fmt: skip
        axes.set_yticks(range(len(MODULE_NAMES)), MODULE_NAMES)
        axes.set(xlim=(0, window), ylim=(len(MODULE_NAMES) - 0.4, -0.6))
        axes.set_title(f"{title}: {report.total:,} cycles for the layer", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("cycle")
    handles: dict[str, object] = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


def _space(target: VtaTarget) -> Figure:
    """Draw the status of every schedule of a layer's space, and the latencies of the valid ones."""
    space = target.space(LAYER)
    lowered = target.lower(LAYER, space.unravel(np.arange(space.size)))
    measured = target.measure(lowered)
    figure = Figure(figsize=(9.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    classes, counts = np.unique(
        [reason.partition(" (")[0] or "valid" for reason in measured.reason], return_counts=True
    )
    order = np.argsort(counts)
    names = [classes[k].removeprefix("build: ").removeprefix("run: ") for k in order]
    colours = [ACCENT if classes[k] == "valid" else "#c9a9a6" for k in order]
    bars = left.barh(range(len(order)), counts[order], color=colours)
    left.bar_label(bars, padding=3, fontsize=8)
    left.set_yticks(range(len(order)), [_wrapped(name) for name in names], fontsize=7.5)
    left.set_title(f"{space.size:,} schedules", fontsize=10, loc="left")
    cycles = np.sort(measured.cycles[measured.cycles >= 0])
    right.plot(np.arange(1, len(cycles) + 1), cycles, color=ACCENT, lw=2)
    right.set(yscale="log", xlabel="valid schedules, fastest first", ylabel="cycles")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.set_title(
        f"{len(cycles)} valid ones: {cycles[0]:,} to {cycles[-1]:,} cycles", fontsize=10, loc="left"
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _wrapped(text: str, width: int = 34) -> str:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


if __name__ == "__main__":
    main()
