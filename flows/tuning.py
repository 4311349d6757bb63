"""The two flows: a network, and each of its workloads. The order of their steps is `tuning.run`'s.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

import os

from prefect import Flow, flow
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed

from services.home import use_home
from targets.titles import ascii_only, layer
from tasks.course import Course
from tasks.flow_log import logged
from tasks.steps import Params, TrackedNetwork, tracked_workload
from tasks.store import CacheUse
from tuning import run, workload_run
from tuning.events import Listener, ignore
from tuning.folders import OUTPUT_ROOT, below_root
from tuning.network import Subgraph
from tuning.options import TuningOptions
from tuning.outcome import TunedWorkload
from tuning.outputs import Summary
from tuning.workload_run import Job

FLOW = "tune_network"
RUN_NAME = "{options.subject} on {options.target}, {options.tuner}"


def network_flow(listen: Listener = ignore) -> Flow[[TuningOptions], Summary]:
    """The flow of a network, with somebody who hears what happens."""

    @flow(name=FLOW, flow_run_name=RUN_NAME, persist_result=False)
    def tune_network(options: TuningOptions) -> Summary | State[Summary]:
        """Tune every workload of a network; returns what `summary.json` holds."""
        return ended(*tuned(options, listen))

    return tune_network  # type: ignore[return-value]  # of a state callers get the data


def tuned(options: TuningOptions, listen: Listener = ignore) -> tuple[Summary, str]:
    """What the flow of a network does, within one: its results, and what is to be said of a run
    that had nothing to do, empty of others."""
    home, course = use_home(), Course()
    emit = logged(course.hearing(listen))
    options = confined(options)
    cache = CacheUse(str(home.cache), options.fresh)

    def tune_one(job: Job, params: Params, parent: str) -> TunedWorkload:
        return workload_flow(cache, job)(options, params, job.subgraph, parent)

    # A subflow's heartbeat thread would be joined at its end, for a second each.
    quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with quiet, TrackedNetwork(cache, emit, tune_one, course) as steps:
        summary = run.tune_network(options, steps, emit)
    return summary, course.remark(summary)


def ended(summary: Summary, remark: str) -> Summary | State[Summary]:
    """The results, in the state that the flow run ends in where that has something to say. Its name
    is Prefect's own: automations that wait for the end of a run go by it."""
    return Completed(message=remark, data=summary) if remark else summary


def confined(options: TuningOptions) -> TuningOptions:
    """With the output folder below that of a deployment, if this is a run of one that has any."""
    folder = below_root(options.folder, os.environ.get(OUTPUT_ROOT, ""))
    return options.model_copy(update={"out": str(folder)}) if folder != options.folder else options


def workload_flow(
    cache: CacheUse, job: Job
) -> Flow[[TuningOptions, Params, Subgraph, str], TunedWorkload]:
    """The flow of one workload of a network."""
    title = layer(job.subgraph.names, job.study.workload)
    name = f"{job.options.subject}: {ascii_only(title)}"  # Prefect's graph draws nothing else

    @flow(
        name="tune_workload",
        flow_run_name=lambda: name,
        persist_result=False,
        validate_parameters=False,
    )
    def tune_workload(
        options: TuningOptions, params: Params, subgraph: Subgraph, parent_run_id: str
    ) -> TunedWorkload:
        """Tune one workload: rounds of candidates until the trials are spent, then the proof."""
        with tracked_workload(cache, job, params, parent_run_id) as steps:
            return workload_run.tune_workload(job, steps)

    return tune_workload
