"""Prefect flow of `flows.tuning.tune_network`.

Annotations are not postponed here, because Prefect must resolve them when it loads a served flow by
name.
"""

import os

from prefect import Flow, flow
from prefect.client.schemas.objects import State
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_TASKS_REFRESH_CACHE,
    temporary_settings,
)
from prefect.states import Completed

from tilewright.flows.forms import flat, make_run_namer
from tilewright.flows.tuning import tune_network as run_network
from tilewright.services.workspace import use_workspace
from tilewright.tasks.run_progress import RunProgress, log_events
from tilewright.tasks.runner_prefect import NetworkRunner
from tilewright.tuning.events import Listener, ignore
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.output_dir import OUTPUT_ROOT, below_root
from tilewright.tuning.outputs import Summary

FLOW = "tune_network"
RUN_NAME = "{options.subject} on {options.target}, {options.settings}"


def network_flow(listen: Listener = ignore, parent: str | None = None) -> Flow[..., Summary]:
    """Return the Prefect flow that tunes a network.

    The parameters of the flow are the fields of `TuningOptions` and `TrackingOptions`.

    Args:
        listen: function that receives the events.
        parent: ID of the MLflow run of the comparison to which this run belongs, if any.
    """

    @flow(name=FLOW, flow_run_name=make_run_namer(TuningOptions, RUN_NAME), persist_result=False)
    @flat(TuningOptions, TrackingOptions)
    def tune_network(options: TuningOptions, tracking: TrackingOptions) -> Summary | State[Summary]:
        """Tune every workload of a network, and return the content of `summary.json`."""
        return flow_result(*tune_and_log(options, tracking, listen, parent))

    return tune_network  # type: ignore[return-value]  # of a state callers get the data


def tune_and_log(
    options: TuningOptions,
    tracking: TrackingOptions,
    listen: Listener = ignore,
    parent: str | None = None,
) -> tuple[Summary, str]:
    """Tune a network within a Prefect flow that is already running, and log to Prefect and MLflow.

    Args:
        options: options of the run.
        tracking: tracking options.
        listen: function that receives the events.
        parent: ID of the MLflow run of the comparison to which this run belongs, if any.

    Returns:
        The content of `summary.json`, and a remark. The remark is "" unless all results were
        already recorded by an earlier run.
    """
    use_workspace()
    progress = RunProgress()
    emit = log_events(progress.record_events(listen))
    options = confine_options(options)

    refresh = {PREFECT_TASKS_REFRESH_CACHE: True} if options.fresh else {}
    # At the end of each subflow, Prefect would wait about a second for its heartbeat thread.
    settings = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} | refresh)
    runner = NetworkRunner(emit, progress, parent, system_metrics=tracking.system_metrics)
    with settings, runner as run:
        summary = run_network(run, options).summary
    return summary, progress.remark(summary)


def flow_result(summary: Summary, remark: str) -> Summary | State[Summary]:
    """Return the result of a flow: the summary, or a completed state with the summary and a remark.

    The state keeps Prefect's standard name, because automations that wait for the end of a run use
    that name.

    Args:
        summary: content of `summary.json`.
        remark: message of the state, or "".
    """
    return Completed(message=remark, data=summary) if remark else summary


def confine_options(options: TuningOptions) -> TuningOptions:
    """Return the options with an output directory below the deployment's root folder.

    If no root folder is set, the options are returned unchanged.

    Args:
        options: options of the run.

    Raises:
        OutputError: the output directory lies outside of the root folder.
    """
    folder = below_root(options.folder, os.environ.get(OUTPUT_ROOT, ""))
    return options.model_copy(update={"out": str(folder)}) if folder != options.folder else options
