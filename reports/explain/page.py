"""`explain.html`: the picture, and the numbers behind it, as a page that stands alone."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape

from evaluation.compare.trace import ROLES
from evaluation.explain.folder import TunedFolder
from evaluation.explain.workloads import (
    Explained,
    brier,
    discrimination,
    pooled,
    rank_correlation,
    ranked,
    rmse,
    vetoed,
)
from reports.explain.plots import FEATURES
from reports.figures import percent
from reports.pages import definitions, figure, page, table
from targets.titles import shape

PAGE, PICTURE = "explain.html", "explain.png"
FAST = 0.1
"""The fastest part of the valid configs that a veto should not touch."""


def explanation_page(folder: TunedFolder, explained: Sequence[Explained], picture: bytes) -> bytes:
    """The page of a run. `picture` is PNG."""
    title = f"Why {folder.tuner_config.tuner} chose as it did on {folder.network}"
    data = base64.b64encode(picture).decode()
    image = f'<img alt="influences and predictions" src="data:image/png;base64,{data}">'
    trials = sum(each.trials for each in explained)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(folder.target.name)}, {escape(folder.target.space_name)} space'
        f" · {len(explained)} workloads · {trials:,} trials · seed {folder.seed}</p>",
        *([f'<p class="verdict">{escape(CHANGED)}</p>'] if folder.changed else []),
        "<h2>What moved the models, and how right they were</h2>",
        '<p class="note">Above: a dot is a config, coloured by the value of the feature among '
        "those of its workload (blue low, red high). Below: random configs of the space that were "
        "never tried, and trials before the models learned from them.</p>",
        figure(image),
        '<div class="three">',
        *(_features(explained, role) for role in ROLES if ranked(explained, role)),
        "</div>",
        "<h2>Workload by workload</h2>",
        _workloads(explained),
        "<h2>How to read this</h2>",
        _terms(explained),
    ]
    return page(title, parts)


CHANGED = (
    "The simulator has changed since this run: its trials are as recorded, random configs are "
    "measured with the present one."
)


def methods(explained: Sequence[Explained]) -> dict[str, str]:
    """How each model's influences were computed."""
    return {
        role: "exact tree SHAP, by the library" if each.exact else "sampled Shapley values"
        for explanation in explained
        for role, each in explanation.influences.items()
    }


def corrects(explained: Sequence[Explained], role: str) -> bool:
    """Whether a model learns only by how much the closed-form estimate is wrong."""
    return any(each.influences[role].corrects for each in explained if role in each.influences)


def effect(direction: float, role: str) -> str:
    """What a large value of a feature makes of the prediction, in a word."""
    if abs(direction) < 0.25:
        return "mixed"
    if role == "V":
        return "likelier" if direction > 0 else "less likely"
    return "slower" if direction > 0 else "faster"


def decimal(number: float) -> str:
    return "–" if math.isnan(number) else f"{number:.2f}"


def share(number: float) -> str:
    return "–" if math.isnan(number) else percent(number)


def _features(explained: Sequence[Explained], role: str) -> str:
    lines = [
        [
            escape(row.name),
            percent(row.share),
            f'<td class="text">{effect(row.direction, role)}</td>',
        ]
        for row in ranked(explained, role)[:FEATURES]
        if row.share > 0
    ]
    note = "; it learns by how much the closed-form estimate is wrong" * corrects(explained, role)
    head = f"<h3>{escape(ROLES[role])}</h3>"
    head += f'<p class="note">{methods(explained)[role]}{note}</p>'
    if not lines:
        return f"<div>{head}<p>It learned a constant: all it saw had one outcome.</p></div>"
    heads = ["feature", "influence", '<th class="text">if large</th>']
    return f"<div>{head}{table(heads, lines)}</div>"


def _workloads(explained: Sequence[Explained]) -> str:
    lines = []
    for each in explained:
        p, a, v = (pooled([each.unseen], role) for role in "PAV")
        lines.append([
            escape(shape(each.workload)), f"{each.trials:,}", percent(each.valid_share),
            decimal(rmse(p)), decimal(rmse(a)), decimal(rmse(a) / rmse(p) if rmse(p) else math.nan),
            decimal(rank_correlation(*p)), decimal(rank_correlation(*a)),
            decimal(discrimination(v)), decimal(brier(v)),
            share(vetoed([each])), share(vetoed([each], FAST)),
        ])  # fmt: skip
    head = ["workload", "trials", "valid", "P rmse", "A rmse", "A / P", "P rank", "A rank",
            "V auc", "V brier", "valid<br>vetoed", "fast<br>vetoed"]  # fmt: skip
    return table(head, lines)


def _terms(explained: Sequence[Explained]) -> str:
    return definitions([
        ("influence", "Mean size of a feature's Shapley values as a share of all features', mean "
         "over the workloads where the model learned more than a constant. Of boosted trees they "
         "are exact (computed by XGBoost or LightGBM); of other models sampled over random orders "
         "of the features."),
        ("rmse", "Of predicted log2 cycles, on random valid configs that were never tried: 0.1 is "
         "7 %. A tuner's models are right where it looked; far from there they may be wrong at "
         "no harm."),
        ("rank", "Spearman's rank correlation of predicted and simulated cycles on the same."),
        ("auc, brier", "How well V tells valid from invalid (1 is perfect, 0.5 chance), and the "
         "mean squared error of its chance."),
        ("valid, fast vetoed", "Share of the valid random configs below V's veto threshold, and "
         "of the fastest tenth of them: those are what a veto must not cost."),
    ])  # fmt: skip
