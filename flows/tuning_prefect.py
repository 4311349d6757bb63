"""Makes a Prefect flow of `flows.tuning.tune_network`.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
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

from tilewright.flows.forms import flat, named
from tilewright.flows.tuning import tune_network as run_network
from tilewright.services.workspace import use_workspace
from tilewright.tasks.run_progress import RunProgress, logged
from tilewright.tasks.runner_prefect import NetworkRunner
from tilewright.tuning.events import Listener, ignore
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.output_dir import OUTPUT_ROOT, below_root
from tilewright.tuning.outputs import Summary

FLOW = "tune_network"
RUN_NAME = "{options.subject} on {options.target}, {options.settings}"


def network_flow(listen: Listener = ignore, parent: str | None = None) -> Flow[..., Summary]:
    """The flow of a network; its parameters are the fields of `TuningOptions` and
    `TrackingOptions`. `listen` gets its events, `parent` is the MLflow run of the comparison that
    it is part of, if any."""

    @flow(name=FLOW, flow_run_name=named(TuningOptions, RUN_NAME), persist_result=False)
    @flat(TuningOptions, TrackingOptions)
    def tune_network(options: TuningOptions, tracking: TrackingOptions) -> Summary | State[Summary]:
        """Tune every workload of a network; returns what `summary.json` holds."""
        return ended(*tuned(options, tracking, listen, parent))

    return tune_network  # type: ignore[return-value]  # of a state callers get the data


def tuned(
    options: TuningOptions,
    tracking: TrackingOptions,
    listen: Listener = ignore,
    parent: str | None = None,
) -> tuple[Summary, str]:
    """What the flow of a network does, within one: its results, and what is to be said of a run
    that had nothing to do, empty of others."""
    use_workspace()
    progress = RunProgress()
    emit = logged(progress.hearing(listen))
    options = confined(options)

    refresh = {PREFECT_TASKS_REFRESH_CACHE: True} if options.fresh else {}
    # A subflow's heartbeat thread would be joined at its end, for a second each.
    settings = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} | refresh)
    runner = NetworkRunner(emit, progress, parent, system_metrics=tracking.system_metrics)
    with settings, runner as run:
        summary = run_network(run, options).summary
    return summary, progress.remark(summary)


def ended(summary: Summary, remark: str) -> Summary | State[Summary]:
    """The results, in the state that the flow run ends in where that has something to say. Its name
    is Prefect's own: automations that wait for the end of a run go by it."""
    return Completed(message=remark, data=summary) if remark else summary


def confined(options: TuningOptions) -> TuningOptions:
    """With the output directory below that of a deployment, if this is a run of one that has
    any."""
    folder = below_root(options.folder, os.environ.get(OUTPUT_ROOT, ""))
    return options.model_copy(update={"out": str(folder)}) if folder != options.folder else options
