"""Compares a finished run with the last comparable run, and reports regressions.

The earlier results are read from MLflow, because an output directory holds only the results of its
last run. A run is comparable if it finished successfully with the same network, target, space,
epilogue and layers, and ended before this flow run started for the first time. If comparable runs
with the same settings exist, the last of them is chosen, and otherwise the last comparable run with
any settings. The result is reported in Prefect and MLflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run

from tilewright.evaluation.diff import NO_WORSE, WORSE, DiffError, DiffVerdict, diff_runs, read_side
from tilewright.reports.diff import diff_page, headline
from tilewright.reports.markdown import escape_text, list_links, paragraphs
from tilewright.reports.run_results import network_title
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.cached_task import step
from tilewright.tasks.load_past_run import side_of_run
from tilewright.tasks.runs_table import (
    QUESTION_TAG,
    REGRESSION_TAG,
    SETTINGS_TAG,
    WATCH_TAG,
)
from tilewright.tuning.outputs import Summary
from tilewright.tuning.regression_options import FAIL, WatchOptions

FIRST, NO_COMPARISON = "first", "cannot compare"
AGAINST_TAG = "tilewright.compared_with"
MORE = "change_since_last_run"
"""Metric: the relative increase of the latency over the previous run."""
REGRESSION = "tilewright.regression"
EVENTS = {
    WORSE: REGRESSION,
    NO_WORSE: "tilewright.no-regression",
    FIRST: "tilewright.first-run",
    NO_COMPARISON: "tilewright.no-comparison",
}
"""Names of the events that are sent to Prefect's automations, by verdict."""


@dataclass(frozen=True)
class WatchedRun:
    """Result of comparing a run with an earlier one.

    Attributes:
        word: the verdict in one or two words, a key of `EVENTS`.
        sentence: the verdict as a sentence.
        reasons: reasons why the run is worse; empty if it is not.
    """

    word: str
    sentence: str
    reasons: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        """True if the run is worse than the earlier run by more than is allowed."""
        return self.word == WORSE


@step("regression watch")
def watch_run(folder: Path, summary: Summary, options: WatchOptions) -> WatchedRun:
    """Compare a finished run with the last comparable run, and report to Prefect and MLflow.

    Args:
        folder: output directory of the run.
        summary: contents of its `summary.json`.
        options: the tolerated increase of the latency, and what to do if the run is worse.

    Returns:
        The verdict. If there is no comparable run, or the runs cannot be compared, the verdict says
        so; no error is raised.
    """
    run_id = summary["mlflow_run_id"]
    title = network_title(summary["network"], summary["target"], summary["tuner"])
    tags = tracking.tags_of(run_id)
    baseline = tracking.last_like(
        _first_start(), {QUESTION_TAG: tags[QUESTION_TAG]}, {SETTINGS_TAG: tags[SETTINGS_TAG]}
    )
    links = {"this run in MLflow (B)": tracking.run_url(run_id)}
    if baseline is None:
        text = "There is no earlier run of this network on this target, so nothing was compared."
        return _report_verdict(
            summary, WatchedRun(FIRST, text), _short_page(title, FIRST, text, links)
        )
    links["the previous run in MLflow (A)"] = tracking.run_url(baseline)
    try:
        before, now = side_of_run(baseline), read_side(folder)
        verdict = diff_runs(before, now, options.tolerance_percent)
    except DiffError as error:
        text = str(error)
        page = _short_page(title, NO_COMPARISON, escape_text(text), links)
        return _report_verdict(summary, WatchedRun(NO_COMPARISON, text), page, baseline)
    watched = WatchedRun(verdict.word, headline(verdict), verdict.reasons)
    if watched.is_regression and options.when_worse == FAIL:
        tracking.tag_run(run_id, {REGRESSION_TAG: "yes"})
    return _report_verdict(summary, watched, diff_page(title, verdict, links), baseline, verdict)


def _short_page(title: str, word: str, text: str, links: Mapping[str, str]) -> str:
    return paragraphs(f"# {escape_text(title)}: {word}", text, list_links(links))


def _report_verdict(
    summary: Summary,
    watched: WatchedRun,
    page: str,
    baseline: str | None = None,
    verdict: DiffVerdict | None = None,
) -> WatchedRun:
    """Report the result of a comparison to Prefect and MLflow, and return it unchanged.

    In Prefect, the result is reported as an artifact, a tag, log lines and an event. In MLflow, it
    is reported as tags and a metric.

    Args:
        summary: contents of `summary.json` of the new run.
        watched: the result.
        page: text of the Prefect artifact, in Markdown.
        baseline: ID of the earlier run in MLflow, if there is one.
        verdict: the detailed comparison; None if there was nothing to compare.
    """
    create_markdown_artifact(key="regression-watch", markdown=page, description=watched.word)
    logger = get_run_logger()
    (logger.warning if watched.is_regression else logger.info)(
        f"regression watch: {watched.sentence}"
    )
    for reason in watched.reasons:
        logger.warning(f"worse: {reason}")
    _tag_flow_run(f"watch: {watched.word}")
    tags = {WATCH_TAG: watched.word} | ({} if baseline is None else {AGAINST_TAG: baseline})
    tracking.tag_run(summary["mlflow_run_id"], tags)
    if verdict is not None and verdict.total.more is not None:
        tracking.log_results(summary["mlflow_run_id"], {MORE: verdict.total.more})
    _emit(summary, watched, verdict)
    return watched


def _first_start() -> datetime:
    """Return the time when the flow run started for the first time.

    If a flow run is retried, each attempt has a run of its own in MLflow, but the flow run keeps
    the time of its first start. Because of this time limit, a retried run is compared with a run
    before its first attempt, and not with its own earlier attempts.
    """
    with get_client(sync_client=True) as client:
        started = client.read_flow_run(UUID(str(flow_run.id))).start_time
    assert started is not None, "a flow that runs was started"
    return started


def _tag_flow_run(tag: str) -> None:
    run_id = UUID(str(flow_run.id))
    with get_client(sync_client=True) as client:
        tags = {*client.read_flow_run(run_id).tags, tag}
        client.update_flow_run(run_id, tags=sorted(tags))


def _emit(summary: Summary, watched: WatchedRun, verdict: DiffVerdict | None) -> None:
    """Emit a Prefect event with the verdict, so that automations can react to it.

    The resource of the event is the network on its target. Related resources are the flow run and
    its deployment.

    Args:
        summary: contents of `summary.json` of the new run.
        watched: the verdict.
        verdict: the detailed comparison; None if there was nothing to compare.
    """
    flow_run_id = str(flow_run.id)
    about = {name: str(summary[name]) for name in ("network", "target", "tuner")}
    emit_event(
        event=EVENTS[watched.word],
        resource={
            "prefect.resource.id": f"tilewright.tuning.{about['network']}.{about['target']}",
            "prefect.resource.name": network_title(*about.values()),
        } | about,
        related=[
            {"prefect.resource.id": f"prefect.{kind}.{id}", "prefect.resource.role": kind}
            for kind, id in (("flow-run", flow_run_id), ("deployment", deployment.id))
            if id
        ],
        payload={
            "verdict": watched.word,
            "sentence": watched.sentence,
            "reasons": list(watched.reasons),
            "changed": [item.what for item in verdict.changed] if verdict else [],
            "flow_run": flow_run_url(flow_run_id),
            "mlflow_run": tracking.run_url(summary["mlflow_run_id"]),
        },
    )  # fmt: skip
