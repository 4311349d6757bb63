"""Sets how MLflow shows the list of runs: the columns, and the chart of best cycles with its
levels.

MLflow stores a saved view as a tag of the experiment, `mlflow.sharedViewState` and a key, in JSON
as its page writes it (3.17). It is in the page's list of views, and a link with the key opens it.
Which columns the page shows without either is fixed in MLflow, so the experiment's description has
that link. A page that cannot read the tag shows its usual columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilewright.core.files import Json
from tilewright.services.mlflow_server import VIEW_KEY

VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
NAME = "tuner, gain and bound"
"""What the view is called in MLflow's list."""
_PARAMS = ("tuner", "seed", "trials")
_METRICS = (
    "fallback_ms",
    "rule_ms",
    "tuned_ms",
    "bound_ms",
    "gain",
    "gain_over_fallback",
    "tuned_cycles",
)
_CURVES = ("cycles/best", "cycles/rule", "cycles/bound")


def runs_view() -> str:
    """The view, as MLflow reads it."""
    columns = [f"params.`{name}`" for name in _PARAMS]
    columns += [f"metrics.`{name}`" for name in _METRICS]
    view: dict[str, Json] = {
        "selectedColumns": list[Json](columns),
        "compareRunSections": [_section("cycles"), _section("Model metrics")],
        "compareRunCharts": [_CHART],
    }
    saved: dict[str, Json] = {"name": NAME, "createdAt": 0, "updatedAt": 0, "state": _compact(view)}
    return _compact(saved)


def description(address: str) -> str:
    """What the experiment says of itself, in Markdown; `address` is that of the view."""
    return f"[Runs with tuner, seed, trials, fallback, rule, tuned, bound and gain]({address})"


def _compact(value: Mapping[str, Json]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _section(name: str) -> Json:
    return {
        "uuid": f"{VIEW_KEY}-{name}", "name": name, "display": True, "isReordered": True,
        "deleted": False, "isGenerated": True,
    }  # fmt: skip


_CHART: Json = {
    "type": "LINE",
    "uuid": f"{VIEW_KEY}-best",
    "metricSectionId": f"{VIEW_KEY}-cycles",
    "isGenerated": False,
    "deleted": False,
    "displayName": "best cycles over measurements, rule and bound",
    "metricKey": _CURVES[0],
    "selectedMetricKeys": list(_CURVES),
    "lineSmoothness": 0,
    "xAxisKey": "step",
    "xAxisScaleType": "linear",
    "scaleType": "linear",
    "selectedXAxisMetricKey": "",
    "yAxisKey": "METRIC",
    "yAxisExpressions": [],
    "range": {},
    "ignoreOutliers": False,
    "useGlobalXaxisKey": True,
    "useGlobalLineSmoothing": True,
}
