"""Draws the pictures of a tuning run: latency over trials, and rule schedules against tuned ones.

If the run decided which operators are fused, there is also a page about fusion.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tilewright.core.files import write_atomically
from tilewright.reports.fusion import fusion_page
from tilewright.reports.plot_style import (
    ACCENT,
    INK,
    SizeScale,
    house_style,
    scale_factors,
    scale_latency,
    trial_ticks,
)
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import shape
from tilewright.tuning.gains import four_figures
from tilewright.tuning.output_dir import CONVERGENCE, FUSION_PAGE
from tilewright.tuning.outputs import TunedNetwork, trials_of
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_figures import (
    CurveLayer,
    best_so_far,
    network_curve,
    trial_latencies,
    unit_of,
)

MUTED, BOUND = "#9aa5b1", "#b4532a"
_COLOURS = {"fallback": MUTED, "rule": INK}
_LINE, _ROOM = 0.2, 1.9  # height in inches: a layer's line, and title with axes
_LEAST, _MOST = 4.4, 40.0  # limits of a picture's height in inches


def convergence(outcome: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """Draw the trials of one workload and the best latency so far over the number of trials.

    Horizontal lines show the latency of the stock compiler's fallback, the latency of the rule
    schedule, and the lower bound (the roofline if there is no tighter bound), if they are known. If
    the chosen schedule was measured again for validation, another line shows its latency.

    Args:
        outcome: result of tuning the workload.
        trials: table with one row per trial of the workload.

    Returns:
        A PNG file.
    """
    with house_style():
        figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
        axes = figure.subplots()
        steps = np.arange(1, len(trials) + 1)
        latencies = trial_latencies(trials, unit_of(trials))
        axes.scatter(steps, latencies, s=9, color=MUTED, label="valid trial")
        best = best_so_far(latencies)
        axes.step(steps, best, where="post", color=ACCENT, lw=2, label="best so far")
        for name, before in (("fallback", _fallback(outcome)), ("rule", _rule(outcome))):
            if before is not None:
                axes.axhline(before, color=_COLOURS[name], ls="--", lw=1, label=name)
        name, limit = _limit(outcome)
        if limit is not None:
            axes.axhline(limit, color=BOUND, ls=":", lw=1.5, label=name)
        if outcome.validation is not None and (tuned := _tuned_latency(outcome)) is not None:
            axes.axhline(tuned, color=ACCENT, ls="-.", lw=1, label="chosen, validated")
        axes.set_title(f"{shape(outcome.workload)} on {outcome.task.target.name}", fontsize=10)
        axes.set(xlabel="trials", ylabel=unit_of(trials))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        scale_latency(axes, counted=unit_of(trials) == "cycles")
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=4)
        return _png(figure)


def network_convergence(
    network: str, outcomes: Sequence[TunedWorkload], trials: pd.DataFrame
) -> bytes:
    """Draw the tuning of a network in two diagrams: progress over trials, and gain of each layer.

    The left diagram shows the best latency of each layer over its trials. The right diagram shows
    the latency of each layer with the fallback, the rule schedule and the tuned schedule. All
    latencies are relative to a limit. The limit is the lower bound, or the roofline if a bound is
    unknown, or the tuned latency if both are unknown. Layers with more multiply-accumulates are
    darker.

    Args:
        network: name of the network.
        outcomes: result of tuning each layer's workload.
        trials: table with one row per trial of all workloads.

    Returns:
        A PNG file.
    """
    height = min(max(_LEAST, _LINE * len(outcomes) + _ROOM), _MOST)
    with house_style():
        figure = Figure(figsize=(11, height), dpi=110, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        of_what = _common_limit(outcomes)
        _draw_curves(left, outcomes, trials, of_what)
        _draw_gains(right, outcomes, of_what)
        ratio = f"{unit_of(trials)} / {of_what}"
        left.set_ylabel(f"best {ratio}")
        right.set_xlabel(ratio)
        figure.suptitle(f"{network} on {outcomes[0].task.target.name}", fontsize=11)
        return _png(figure)


def _draw_curves(
    axes: Axes, outcomes: Sequence[TunedWorkload], trials: pd.DataFrame, of_what: str
) -> None:
    """Draw the best latency so far over the trials, one line per layer and one for the network.

    Latencies are relative to a limit, such as the lower bound, which is drawn as a line at 1.

    Args:
        axes: axes on which to draw.
        outcomes: result of tuning each layer's workload.
        trials: table with one row per trial of all workloads.
        of_what: name of the limit; see `_common_limit`.
    """
    sizes, most, unit = (
        SizeScale([outcome.workload.macs for outcome in outcomes]),
        1,
        unit_of(trials),
    )
    for outcome in sorted(outcomes, key=lambda outcome: outcome.workload.macs):
        mine = trials[trials["workload"] == outcome.workload.id]
        best = best_so_far(trial_latencies(mine, unit)) / _reference(outcome, of_what)
        steps, most = np.arange(1, len(mine) + 1), max(most, len(mine))
        axes.step(steps, best, where="post", lw=1.4, color=sizes.colour(outcome.workload.macs))
    axes.axhline(1, color=BOUND, ls=":", lw=1.5)
    layers = [CurveLayer(o.workload.id, o.count, four_figures(o.summary())) for o in outcomes]
    whole = sum(outcome.count * _reference(outcome, of_what) for outcome in outcomes)
    curve = network_curve(trials, layers, unit) / whole
    # The axis counts trials per layer, so spread the network's trials evenly over the layers.
    per_layer = np.arange(1, len(curve) + 1) / max(len(outcomes), 1)
    axes.step(per_layer, curve, where="post", lw=2.4, color=ACCENT, label="the network")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.set(xlabel="trials per layer", xscale="log")
    axes.set_title("one line per layer; the darker, the more it computes", fontsize=9)
    trial_ticks(axes.xaxis, most)
    scale_factors(axes)
    sizes.draw_scale(axes)


def _draw_gains(axes: Axes, outcomes: Sequence[TunedWorkload], of_what: str) -> None:
    """Draw one line per layer, from its tuned latency to its latency before tuning.

    The dots on a line are the latencies with the tuned schedule, the rule schedule and the
    fallback. Latencies are relative to a limit, such as the lower bound.

    Args:
        axes: axes on which to draw.
        outcomes: result of tuning each layer's workload.
        of_what: name of the limit; see `_common_limit`.
    """
    rows = np.arange(len(outcomes))[::-1]
    fallback = np.array([_ratio(_fallback(o), _reference(o, of_what)) for o in outcomes])
    rule = np.array([_ratio(_rule(o), _reference(o, of_what)) for o in outcomes])
    tuned = np.array([_ratio(_tuned_latency(o), _reference(o, of_what)) for o in outcomes])
    axes.hlines(rows, tuned, np.fmax(rule, fallback), color=MUTED, lw=1.5)
    for name, before in (("fallback", fallback), ("rule", rule)):
        if np.isfinite(before).any():
            axes.scatter(
                before, rows, facecolor="white", edgecolor=_COLOURS[name], s=24, label=name,
                zorder=3,
            )  # fmt: skip
    axes.scatter(tuned, rows, color=ACCENT, s=24, label="tuned", zorder=4)
    axes.axvline(1, color=BOUND, ls=":", lw=1.5, label=of_what)
    axes.set_yticks(rows, [f"{shape(o.workload)} ×{o.count}" for o in outcomes], fontsize=7.5)
    axes.set_ylim(-0.7, len(outcomes) - 0.3)
    axes.set_title("one row per layer, × its calls per inference", fontsize=9)
    axes.set_xscale("log")  # the fallback takes tens of times as long as the bound
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4)


# -- latencies -----------------------------------------------------------------------------------


def _cost(latency: Latency | None) -> float | None:
    return None if latency is None else latency.cost


def _fallback(outcome: TunedWorkload) -> float | None:
    return _cost(outcome.fallback)


def _rule(outcome: TunedWorkload) -> float | None:
    return _cost(None if outcome.baseline is None else outcome.baseline.latency)


def _tuned_latency(outcome: TunedWorkload) -> float | None:
    return _cost(None if outcome.chosen is None else outcome.chosen.latency)


def _limit(outcome: TunedWorkload) -> tuple[str, float | None]:
    """Return the tightest known lower bound of a workload's latency.

    Returns:
        Its name, "bound" or "roofline", and the latency, which is None if neither is known.
    """
    if outcome.bound is not None:
        return "bound", _cost(outcome.bound)
    return "roofline", _cost(outcome.roofline)


def _common_limit(outcomes: Sequence[TunedWorkload]) -> str:
    """Return the name of the tightest limit that is known for all layers: "bound" or "roofline".

    If neither is known for all layers, the limit is the latency of the chosen schedules. Its name
    then is "tuned, validated" if they were measured again, else "best found".

    Args:
        outcomes: result of tuning each layer's workload.
    """
    if all(outcome.bound is not None for outcome in outcomes):
        return "bound"
    if all(outcome.roofline is not None for outcome in outcomes):
        return "roofline"
    if all(outcome.validation is not None for outcome in outcomes):
        return "tuned, validated"
    return "best found"


def _reference(outcome: TunedWorkload, of_what: str) -> float:
    """Return the latency to which a workload's latencies are relative; NaN if it is unknown.

    Args:
        outcome: result of tuning the workload.
        of_what: name of the limit; see `_common_limit`.
    """
    known = {"bound": _cost(outcome.bound), "roofline": _cost(outcome.roofline)}
    result = known.get(of_what, _tuned_latency(outcome))
    return float("nan") if result is None else result


def _ratio(latency: float | None, reference: float) -> float:
    return float("nan") if latency is None else latency / reference


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def draw_run(folder: Path, network: TunedNetwork) -> list[Path]:
    """Draw the pictures of a tuning run.

    Args:
        folder: output directory of the run.
        network: results of the run.

    Returns:
        The paths of the written files.

    Raises:
        OSError: a file cannot be written.
    """
    trials = trials_of(folder, network.workloads)
    picture = network_convergence(network.summary["network"], network.workloads, trials)
    write_atomically(folder / CONVERGENCE, picture)
    return [folder / CONVERGENCE, *write_fusion_page(folder, network)]


def write_fusion_page(folder: Path, network: TunedNetwork) -> list[Path]:
    """Write `fusion.html` if the run decided which operators are fused.

    Args:
        folder: output directory of the run.
        network: results of the run.

    Returns:
        A list with the path of the page; empty if the run did not decide about fusion.

    Raises:
        OSError: the file cannot be written.
    """
    if network.decided is None:
        return []
    page = fusion_page(
        network.summary["network"], network.summary["target"], network.decided.summary,
        network.decided.file,
    )  # fmt: skip
    write_atomically(folder / FUSION_PAGE, page)
    return [folder / FUSION_PAGE]
