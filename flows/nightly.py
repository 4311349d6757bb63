"""The flow of a network as deployments run it: tuned, and compared with the last run like it.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed

from tilewright.flows.tuning_flow import FLOW, RUN_NAME, confined, ended, tuned
from tilewright.tasks.refusal import refusing
from tilewright.tasks.regression_check import watch_run
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary
from tilewright.tuning.preflight import check
from tilewright.tuning.regression_options import FAIL, OFF, WatchOptions

WATCHED = WatchOptions()


@flow(name=FLOW, flow_run_name=RUN_NAME, persist_result=False)
@refusing
def tune_network(options: TuningOptions, watch: WatchOptions = WATCHED) -> Summary | State[Summary]:
    """Tune every workload of a network, and hold the results against those of the last run of the
    same network on the same target."""
    check(confined(options))
    summary, remark = tuned(options)
    if watch.when_worse == OFF:
        return ended(summary, remark)
    watched = watch_run(confined(options).folder, summary, watch)
    if not watched.worse:
        return ended(summary, remark)
    why = "; ".join((watched.sentence, *watched.reasons))
    if watch.when_worse == FAIL:
        return Failed(message=why)
    return ended(summary, why)
