"""Prefect flow that tunes a network and compares the result with the previous run.

The previous run is the last run of the same network on the same target. Annotations are not
postponed in this module, because Prefect must resolve them when it loads a served flow by name.
"""

import os
from datetime import datetime
from typing import Any

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Failed

from tilewright.flows.forms import flat, make_run_namer
from tilewright.flows.serve import SERVING
from tilewright.flows.tuning_prefect import (
    FLOW,
    RUN_NAME,
    confine_options,
    flow_result,
    tune_and_log,
)
from tilewright.reports.run_results import outcome_line
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks.regression_check import watch_run
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.outputs import Summary
from tilewright.tuning.regression_options import FAIL, OFF, WatchOptions

USUAL = (
    "model", "target", "tuner", "trials", "seed", "out", "when_worse", "tolerance_percent",
    "batch", "space",
)  # fmt: skip
"""Common fields of a nightly run. `tilewright serve` has options for these fields only."""


def say_end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Print one line about the result of a run of `tilewright serve`. Prefect calls this hook.

    Other runs print nothing.

    Args:
        flow: the Prefect flow.
        flow_run: the run that ended.
        state: final state of the run.
    """
    if not os.environ.get(SERVING):
        return
    told = (state.message or "").partition("\n")[0]
    if state.is_completed():
        summary: Summary = state.result()
        outcome = outcome_line(summary["total"])
        told = f"{outcome}; {told}" if told else outcome
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    page = flow_run_url(str(flow_run.id))
    print(f"{now}  {flow_run.name}: {state.name}: {told}  {page}", flush=True)


@flow(
    name=FLOW,
    flow_run_name=make_run_namer(TuningOptions, RUN_NAME),
    persist_result=False,
    on_completion=[say_end],
    on_failure=[say_end],
    on_crashed=[say_end],
    on_cancellation=[say_end],
)
@flat(TuningOptions, WatchOptions, TrackingOptions, first=USUAL)
def tune_network(
    options: TuningOptions, watch: WatchOptions, tracking: TrackingOptions
) -> Summary | State[Summary]:
    """Tune every workload of a network, and compare the results with the previous run.

    The previous run is the last run of the same network on the same target.
    """
    summary, remark = tune_and_log(options, tracking)
    if watch.when_worse == OFF:
        return flow_result(summary, remark)
    watched = watch_run(confine_options(options).folder, summary, watch)
    if not watched.is_regression:
        return flow_result(summary, remark)
    why = "; ".join((watched.sentence, *watched.reasons))
    if watch.when_worse == FAIL:
        return Failed(message=why)
    return flow_result(summary, why)
