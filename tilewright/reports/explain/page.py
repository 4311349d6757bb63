"""Writes `explain.html`: the pictures, and the numbers behind them, as a self-contained page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.evaluation.explain.folder import TunedFolder
from tilewright.evaluation.explain.recommendations import Advice
from tilewright.evaluation.explain.summary import (
    ModelAccuracy,
    ModelSummary,
    Vetoed,
    accuracy,
    vetoed_shares,
)
from tilewright.evaluation.explain.workloads import Explained
from tilewright.reports.explain.plots import FEATURES, JUDGED, Pictures, pictures
from tilewright.reports.templates import render
from tilewright.search.explorer import ROLES

PAGE, PICTURE = "explain.html", "explain.png"
CHANGED = (
    "The simulator has changed since this run: its trials are as recorded, random configs are "
    "measured with the present one."
)

NO_ADVICE = "Nothing stands out: the schedules are near their bounds, and the search had ended."


@dataclass(frozen=True)
class WorkloadLine:
    """A line of the page's table: a workload by its short name, and how right the models were on
    its unseen configs. `ratio` is A's error as a share of P's, NaN where P makes none."""

    name: str
    trials: int
    valid_share: float
    accuracy: ModelAccuracy
    vetoed: Vetoed

    @property
    def ratio(self) -> float:
        """Below 1 where A is the better model."""
        of = self.accuracy
        return of.a_rmse / of.p_rmse if of.p_rmse else float("nan")


def write_explanation(
    folder: TunedFolder,
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    out: Path,
) -> None:
    """Write `explain.png` and `explain.html` into `out`; `models` are the summaries of what is
    explained. Raises `OSError`."""
    drawn = pictures(explained, models)
    write_atomically(out / PICTURE, drawn.whole)
    write_atomically(out / PAGE, explanation_page(folder, explained, models, advice, drawn))


def explanation_page(
    folder: TunedFolder,
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    drawn: Pictures,
) -> bytes:
    """The page of a run, in UTF-8; the parts of the picture become part of it."""
    return render(
        "explain/page.html.jinja",
        title=f"Why {folder.tuner_config.tuner} chose as it did on {folder.network}",
        target=folder.target.name,
        space=folder.space,
        seed=folder.seed,
        changed=CHANGED if folder.changed else "",
        trials=sum(each.trials for each in explained),
        influences=_encoded(drawn.influences),
        accuracy=_encoded(drawn.accuracy),
        judged=JUDGED.items(),
        models=models,
        roles=ROLES,
        method=method,
        most=FEATURES,
        lines=[_line(each) for each in explained],
        advice=advice,
        no_advice=NO_ADVICE,
    )


def _encoded(parts: dict[str, bytes]) -> dict[str, str]:
    return {role: base64.b64encode(part).decode() for role, part in parts.items()}


def method(model: ModelSummary) -> str:
    """How a model's influences were computed."""
    return "exact tree SHAP, by the library" if model.exact else "sampled Shapley values"


def _line(each: Explained) -> WorkloadLine:
    return WorkloadLine(
        name=each.title,
        trials=each.trials,
        valid_share=each.valid_share,
        accuracy=accuracy([each.unseen]),
        vetoed=vetoed_shares([each]),
    )
