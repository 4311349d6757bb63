"""Makes a Prefect flow of `flows.sweep.sweep`, with a flow of its own for each run.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.sweep.options import SweepOptions
from tilewright.evaluation.sweep.plan import SweepPlan
from tilewright.evaluation.sweep.steps import Sweep
from tilewright.flows.flat_parameters import fields_of, flat, named
from tilewright.flows.parameters import confined
from tilewright.flows.sweep import sweep as run_sweep
from tilewright.flows.tuning_prefect import network_flow
from tilewright.search.events import Listener, ignore
from tilewright.services.urls import flow_run_url
from tilewright.services.workspace import use_workspace
from tilewright.tasks.sweep import SweepRunner
from tilewright.tasks.tracking import run_url
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.outputs import Summary

RUN_NAME = "{options.subject}: {options.rivals}, seeds {options.seeds}"
Swept = tuple[Sweep, dict[str, str]]
"""A sweep, and its pages by whose they are."""


def sweep_flow(listen: Listener = ignore, plan: SweepPlan | None = None) -> Flow[..., Swept]:
    """The flow; its parameters are the fields of `SweepOptions` and `TrackingOptions`. `listen`
    gets its events, `plan` is what `plan_sweep` said, if it was asked already."""

    @flow(name="sweep", flow_run_name=named(SweepOptions, RUN_NAME), persist_result=False)
    @flat(SweepOptions, TrackingOptions)
    def sweep(options: SweepOptions, tracking: TrackingOptions) -> Swept:
        """Tune networks on targets with several tuners and seeds."""

        def tune(run: TuningOptions, listen: Listener, parent: str) -> Summary:
            summary: Summary = network_flow(listen, parent)(**fields_of(run, tracking))
            return summary

        use_workspace()
        if (out := confined(options.out)) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        with quiet, SweepRunner(listen, tune) as run:
            swept = run_sweep(run, options, plan)
            pages = {"MLflow": run_url(run.run_id), "Prefect": flow_run_url(str(flow_run.id))}
            return swept, pages

    return sweep  # type: ignore[return-value]  # of a state callers get the data


sweep = sweep_flow()
"""What a deployment serves."""
