"""Page `explain.html` about the choices of a run, with its pictures, and `explain.png`.

The page explains the tuner's cost models P (latency), V (validity) and A (latency from features of
the compiled program).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from PIL import Image

from tilewright.core.files import write_atomically
from tilewright.evaluation.explain.figures import (
    ModelAccuracy,
    ModelSummary,
    Ranked,
    Vetoed,
    accuracy,
    average_ranks,
    calibration,
    pool_predictions,
    vetoed_shares,
)
from tilewright.evaluation.explain.finished_run import TunedFolder
from tilewright.evaluation.explain.recommendations import Advice
from tilewright.evaluation.explain.refitted_models import Explained, Floats, JudgedWorkload
from tilewright.reports.number_format import percent
from tilewright.reports.plot_style import (
    ACCENT,
    GRID,
    INK,
    MUTED,
    fix_ticks,
    house_style,
    round_ticks,
)
from tilewright.reports.templates import render
from tilewright.search.explorer import ROLES
from tilewright.tuning.output_dir import EXPLANATION, EXPLANATION_PICTURE

CHANGED = (
    "The simulator has changed since this run. Trials are shown as they were recorded; "
    "random configs are measured with the current simulator."
)

NO_ADVICE = (
    "Nothing to recommend: the schedules are near their bounds, and the search had converged."
)


@dataclass(frozen=True)
class WorkloadLine:
    """Line of the table on the explanation page, for one workload.

    Attributes:
        name: name of the workload.
        trials: number of trials.
        valid_share: fraction of valid configs in the workload's search space.
        accuracy: accuracy of the models on configs that were never tried.
        vetoed: fractions of the valid configs that Model V, which predicts validity, would wrongly
            reject.
    """

    name: str
    trials: int
    valid_share: float
    accuracy: ModelAccuracy
    vetoed: Vetoed

    @property
    def ratio(self) -> float:
        """Error of Model A divided by the error of Model P.

        It is below 1 if A, which also uses features of the compiled program, is more accurate. It
        is NaN if the error of P is 0.
        """
        of = self.accuracy
        return of.a_rmse / of.p_rmse if of.p_rmse else float("nan")


def write_explanation(
    folder: TunedFolder,
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    out: Path,
) -> None:
    """Write the explanation of a run as `explain.png` and `explain.html`.

    Args:
        folder: the run.
        explained: explanation of each workload.
        models: influence of features on each model, averaged over the workloads.
        advice: recommendations to show on the page.
        out: folder in which the files are written.

    Raises:
        OSError: a file cannot be written.
    """
    drawn = pictures(explained, models)
    write_atomically(out / EXPLANATION_PICTURE, drawn.whole)
    write_atomically(out / EXPLANATION, explanation_page(folder, explained, models, advice, drawn))


def explanation_page(
    folder: TunedFolder,
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    drawn: Pictures,
) -> bytes:
    """Render the explanation of a run as a self-contained HTML page.

    Args:
        folder: the run.
        explained: explanation of each workload.
        models: influence of features on each model, averaged over the workloads.
        advice: recommendations to show on the page.
        drawn: pictures to embed.

    Returns:
        The page in UTF-8.
    """
    return render(
        "explanation.html.jinja",
        title=f"Why {folder.tuner_config.tuner} chose these schedules for {folder.network}",
        target=folder.target.name,
        space=folder.space,
        seed=folder.seed,
        changed=CHANGED if folder.target_changed else "",
        trials=sum(explanation.trials for explanation in explained),
        influences=_encoded(drawn.influences),
        accuracy=_encoded(drawn.accuracy),
        judged=JUDGED.items(),
        models=models,
        roles=ROLES,
        method=method,
        most=FEATURES,
        lines=[_line(explanation) for explanation in explained],
        advice=advice,
        no_advice=NO_ADVICE,
    )


def _encoded(parts: dict[str, bytes]) -> dict[str, str]:
    return {role: base64.b64encode(part).decode() for role, part in parts.items()}


def method(model: ModelSummary) -> str:
    """Return how the influences of features on a model were computed: exactly or by sampling.

    Args:
        model: influence of features on the model.
    """
    return "exact tree SHAP, computed by the library" if model.exact else "sampled Shapley values"


def _line(explanation: Explained) -> WorkloadLine:
    return WorkloadLine(
        name=explanation.title,
        trials=explanation.trials,
        valid_share=explanation.valid_share,
        accuracy=accuracy([explanation.unseen]),
        vetoed=vetoed_shares([explanation]),
    )


FEATURES = 10
_DOTS = 600  # maximum number of dots per feature
_BINS = 10
_SMALLEST = 0.005  # share of the influence from which a feature gets a line
_VALUES = LinearSegmentedColormap.from_list("values", ["#2f5d9b", "#c9ced3", "#c0562f"])
_TICKS = 5  # maximum number of ticks on an axis of cycles
_MARGIN = 6  # pixels around each cropped diagram
JUDGED = {"random configs": "#5b7fa6", "trials, before the models were trained on them": ACCENT}
"""Sets of configs on which models are evaluated, each with the colour of its dots."""


@dataclass(frozen=True)
class Pictures:
    """Diagrams of an explanation as PNG files.

    The models are P (predicts the latency), V (predicts the validity) and A (predicts the latency
    from features of the compiled program).

    Attributes:
        whole: all diagrams in one picture.
        influences: diagram of the influence of features, by model ("P", "V" or "A").
        accuracy: diagram of the accuracy, by model.
    """

    whole: bytes
    influences: dict[str, bytes]
    accuracy: dict[str, bytes]


def pictures(explained: Sequence[Explained], models: Sequence[ModelSummary]) -> Pictures:
    """Draw the diagrams of an explanation.

    The upper row shows the influence of features on the models P, V and A. The lower row shows the
    predictions of P and A over the measured values, and the calibration of V.

    Args:
        explained: explanation of each workload.
        models: influence of features on each model, averaged over the workloads.

    Returns:
        The diagrams.
    """
    features = {model.role: model.top_features(FEATURES) for model in models}
    with house_style():
        figure = Figure(figsize=(13.5, 8.9), dpi=110, layout="constrained")
        above, below = figure.subplots(2, 3, height_ratios=(1.15, 1))
        for axes, role in zip(above, "PVA", strict=True):
            _influences(axes, explained, role, features.get(role, []))
        for axes, role in zip(below, "PVA", strict=True):
            draw = _calibration if role == "V" else _predictions
            draw(axes, explained, role)
        handles = [
            Line2D([], [], color=colour, marker="o", lw=0, label=name)
            for name, colour in JUDGED.items()
        ]
        figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=2)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels = canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        drawn = Image.fromarray(np.asarray(pixels)).convert("RGB")
        columns = dict(zip("PVA", zip(above, below, strict=True), strict=True))
        parts = {role: _parts(drawn, column) for role, column in columns.items()}
        return Pictures(
            _png(drawn),
            {role: upper for role, (upper, _) in parts.items()},
            {role: lower for role, (_, lower) in parts.items()},
        )


def _parts(drawn: Image.Image, column: Sequence[Axes]) -> list[bytes]:
    """Crop the diagrams of one column out of the whole picture, including their labels.

    Args:
        drawn: the whole picture.
        column: axes of the column's diagrams, from top to bottom.

    Returns:
        One PNG file per diagram; all have the same width.
    """
    boxes = [box for axes in column if (box := axes.get_tightbbox()) is not None]
    left = int(max(min(box.x0 for box in boxes) - _MARGIN, 0))
    right = int(min(max(box.x1 for box in boxes) + _MARGIN, drawn.width))
    heights = [
        (
            int(max(drawn.height - box.y1 - _MARGIN, 0)),
            int(min(drawn.height - box.y0 + _MARGIN, drawn.height)),
        )
        for box in boxes
    ]
    return [_png(drawn.crop((left, top, right, bottom))) for top, bottom in heights]


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def _influences(
    axes: Axes, explained: Sequence[Explained], role: str, most: Sequence[Ranked]
) -> None:
    """Draw how much features change the predictions of a model, as a SHAP summary plot.

    There is one line per feature and one dot per config, with at most `_DOTS` randomly chosen dots
    per feature. The horizontal position of a dot is the Shapley value. Its colour is the rank of
    the feature's value within its workload, from blue (low) to red (high).

    Args:
        axes: axes on which to draw.
        explained: explanation of each workload.
        role: the model: "P", "V" or "A".
        most: the features to draw, most influential first. Features with a share below `_SMALLEST`
            are left out. If none remains, a text is drawn instead.
    """
    rows = [row for row in most if row.share >= _SMALLEST]
    axes.set_title(ROLES[role].partition(":")[0], fontsize=10, loc="left", fontweight="bold")
    if not rows:
        _draw_empty(
            axes, "learned a constant" if _has(explained, role) else "this tuner has no such model"
        )
        return
    rng = np.random.default_rng(0)
    ends = [0.0]
    for place, row in enumerate(rows):
        moved, value = _points(explained, role, row.name)
        ends += np.quantile(moved, (0.002, 0.998)).tolist()
        chosen = rng.permutation(len(moved))[:_DOTS]
        moved, value = moved[chosen], value[chosen]
        axes.scatter(
            moved, place + _spread(moved, rng), c=value, cmap=_VALUES, vmin=0, vmax=1, s=5, lw=0,
            alpha=0.75, rasterized=True,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{row.name}  {percent(row.share)}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    margin = 0.05 * (max(ends) - min(ends)) or 1.0
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.grid(axis="y", color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(f"change of the predicted {_unit(explained, role)}")


def _points(explained: Sequence[Explained], role: str, name: str) -> tuple[Floats, Floats]:
    """Return the dots that `_influences` draws for a feature, over all workloads.

    Args:
        explained: explanation of each workload.
        role: the model: "P", "V" or "A".
        name: name of the feature.

    Returns:
        The Shapley values of the feature, and the ranks of its values within each workload, scaled
        to the range from 0 to 1. Both are float arrays of shape (dots,).
    """
    moved, ranks = [np.empty(0)], [np.empty(0)]
    for explanation in explained:
        influence = explanation.influences.get(role)
        if influence is None or name not in influence.names:
            continue
        k = influence.names.index(name)
        moved.append(influence.values[:, k])
        ranks.append(average_ranks(influence.x[:, k]) / max(len(influence.x), 1))
    return np.concatenate(moved), np.concatenate(ranks)


def _spread(moved: Floats, rng: np.random.Generator) -> Floats:
    """Return random vertical offsets of dots. The denser the dots lie, the larger the offsets.

    Args:
        moved: horizontal positions of the dots, float array of shape (dots,).
        rng: random generator.

    Returns:
        Offsets in units of the distance between two features, float array of shape (dots,).
    """
    counts, edges = np.histogram(moved, bins=40)
    density = counts[np.clip(np.digitize(moved, edges) - 1, 0, len(counts) - 1)]
    return np.asarray(rng.uniform(-0.36, 0.36, len(moved)) * density / max(density.max(), 1))


def _calibration(axes: Axes, explained: Sequence[Explained], role: str) -> None:
    """Draw the calibration curve of Model V: valid fraction over predicted probability.

    Args:
        axes: axes on which to draw.
        explained: explanation of each workload.
        role: the model, which is "V".
    """
    axes.set_title("V's calibration", fontsize=10, loc="left", fontweight="bold")
    shown = False
    for judged, colour in _datasets_of(explained):
        chance, valid = pool_predictions(judged, role)
        if len(valid) < 2 * _BINS or np.ptp(valid) == 0:
            continue
        mean, share = calibration(valid, chance, _BINS)
        axes.plot(mean, share, "o-", color=colour, lw=1.8, ms=5)
        shown = True
    if not shown:
        every = pool_predictions([explanation.unseen for explanation in explained], role)
        _draw_empty(
            axes, "all configs were valid" if every.shape[1] and every[1].all() else "no data"
        )
        return
    axes.plot([0, 1], [0, 1], color=INK, lw=0.8)
    axes.set(xlabel="probability of being valid, predicted by V", ylabel="fraction that was valid")
    _finish(axes)


def _predictions(axes: Axes, explained: Sequence[Explained], role: str) -> None:
    """Draw the cycles that Model P or A predicts over the simulated cycles, one dot per config.

    Args:
        axes: axes on which to draw.
        explained: explanation of each workload.
        role: the model: "P" or "A".
    """
    axes.set_title(f"{role}: predicted and simulated", fontsize=10, loc="left", fontweight="bold")
    drawn = [np.empty((2, 0))]
    for judged, colour in _datasets_of(explained):
        pair = pool_predictions(judged, role)
        if pair.shape[1]:
            predicted, simulated = 2.0**pair
            axes.scatter(simulated, predicted, s=7, color=colour, alpha=0.4, lw=0, rasterized=True)
            drawn.append(pair)
    both = np.concatenate(drawn, axis=1)
    if not both.shape[1]:
        _draw_empty(axes, "no predictions")
        return
    ends = 2.0 ** np.quantile(both[1], (0, 1)) * (0.8, 1.25)
    axes.plot(ends, ends, color=INK, lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="simulated cycles", ylabel="predicted cycles")
    axes.set_ylim(*(ends * (0.5, 2.0)))
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        fix_ticks(axis, round_ticks(*limits, most=_TICKS))
        axis.set_major_formatter(EngFormatter(sep=""))
    _finish(axes)


def _datasets_of(explained: Sequence[Explained]) -> list[tuple[list[JudgedWorkload], str]]:
    """Return the two sets of predictions on which models are evaluated, each with its colour.

    One set is for random configs that the run never tried, the other for the run's own trials.

    Args:
        explained: explanation of each workload.

    Returns:
        Pairs of the predictions, one entry per workload, and the colour of their dots.
    """
    unseen, before = JUDGED.values()
    return [
        ([explanation.unseen for explanation in explained], unseen),
        ([explanation.before for explanation in explained], before),
    ]


def _unit(explained: Sequence[Explained], role: str) -> str:
    """Return the name of the quantity that a model predicts, for the axis of its Shapley values.

    Args:
        explained: explanation of each workload.
        role: the model: "P", "V" or "A".
    """
    if role != "V":
        return "predicted log2 cycles"
    exact = all(
        explanation.influences[role].exact
        for explanation in explained
        if role in explanation.influences
    )
    return "the log-odds of being valid" if exact else "the probability of being valid"


def _has(explained: Sequence[Explained], role: str) -> bool:
    return any(role in explanation.influences for explanation in explained)


def _finish(axes: Axes) -> None:
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)


def _draw_empty(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", color=MUTED, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
