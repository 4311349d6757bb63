"""Configures how MLflow shows the list of runs: its columns, and a chart of the best cycles.

MLflow stores a saved view as a tag of the experiment, named `mlflow.sharedViewState.` and a key.
Its value is JSON in the format of MLflow's web page (3.17). The view appears in the page's list of
views, and a link that contains the key opens it. The columns of the default view cannot be changed,
so the experiment's description contains such a link. A page that cannot read the tag shows its
default columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilewright.core.files import Json
from tilewright.services.mlflow_server import VIEW_KEY

VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
NAME = "tuner, gain and bound"
"""Name of the saved view in MLflow's list of views."""
# MLflow sorts the columns by name, metrics before parameters, and shows four columns at a width of
# 1,200 pixels. Columns for the other latencies would push the gain and the tuner out of sight.
_PARAMS = ("tuner",)
_METRICS = ("above_bound", "gain", "tuned_ms")
_CURVES = ("cycles/best", "cycles/rule", "cycles/bound")


def runs_view() -> str:
    """Return the saved view of the list of runs, as JSON text in MLflow's format."""
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
    """Return the description of the experiment in Markdown.

    Args:
        address: address of the page with the saved view, for a link.
    """
    return f"[Runs with distance from the bound, gain, tuned and tuner]({address})"


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
