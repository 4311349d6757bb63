"""Tunes a network as deployments run it, and compares the run with the last comparable one.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed

from tilewright.flows.flat_parameters import flat, named
from tilewright.flows.tuning_prefect import FLOW, RUN_NAME, confined, ended, tuned
from tilewright.tasks.regression_check import watch_run
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.outputs import Summary
from tilewright.tuning.regression_options import FAIL, OFF, WatchOptions


@flow(name=FLOW, flow_run_name=named(TuningOptions, RUN_NAME), persist_result=False)
@flat(TuningOptions, WatchOptions, TrackingOptions)
def tune_network(
    options: TuningOptions, watch: WatchOptions, tracking: TrackingOptions
) -> Summary | State[Summary]:
    """Tune every workload of a network, and hold the results against those of the last run of the
    same network on the same target."""
    summary, remark = tuned(options, tracking)
    if watch.when_worse == OFF:
        return ended(summary, remark)
    watched = watch_run(confined(options).folder, summary, watch)
    if not watched.worse:
        return ended(summary, remark)
    why = "; ".join((watched.sentence, *watched.reasons))
    if watch.when_worse == FAIL:
        return Failed(message=why)
    return ended(summary, why)
