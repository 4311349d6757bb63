"""Makes a Prefect flow of `flows.sweep.sweep`, with a flow of its own for each run.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.sweep.options import SweepOptions
from tilewright.evaluation.sweep.plan import SweepPlan
from tilewright.evaluation.sweep.steps import Sweep
from tilewright.flows.parameters import confined
from tilewright.flows.sweep import sweep as run_sweep
from tilewright.flows.tuning_flow import network_flow
from tilewright.search.events import Listener, ignore
from tilewright.services.urls import flow_run_url
from tilewright.services.workspace import use_home
from tilewright.tasks.refusal import refusing
from tilewright.tasks.sweep import SweepRunner
from tilewright.tasks.tracking import run_url
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary

Swept = tuple[Sweep, dict[str, str]]
"""A sweep, and its pages by whose they are."""


def sweep_flow(
    listen: Listener = ignore, plan: SweepPlan | None = None, *, served: bool = False
) -> Flow[[SweepOptions], Swept]:
    """The flow, with somebody who hears what happens, and what is planned if that is known; or as
    it is `served`."""

    def sweep(options: SweepOptions) -> Swept:
        """Tune networks on targets with several tuners and seeds."""
        use_home()
        if (out := confined(options.out)) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        with quiet, SweepRunner(listen, _tune) as run:
            swept = run_sweep(run, options, plan)
            pages = {"MLflow": run_url(run.run_id), "Prefect": flow_run_url(str(flow_run.id))}
            return swept, pages

    return flow(
        name="sweep",
        flow_run_name="{options.subject}: {options.rivals}, seeds {options.seeds}",
        persist_result=False,
    )(refusing(sweep) if served else sweep)


def _tune(options: TuningOptions, listen: Listener, parent: str) -> Summary:
    return network_flow(listen, parent)(options)


sweep = sweep_flow(served=True)
"""What a deployment serves."""
