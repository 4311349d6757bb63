"""Prefect flow of `flows.codesign.codesign`. A run that was killed resumes from its trials.

Annotations are not postponed in this module, because Prefect must resolve them when it loads a
served flow by name.
"""

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.flows.codesign import codesign as run_codesign
from tilewright.flows.forms import confine_path, flat, make_run_namer
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_workspace
from tilewright.tasks.codesign import CodesignRunner, log_events
from tilewright.tuning.options import TrackingOptions

RUN_NAME = "{options.subject} within {options.budget}, {options.method}"


def codesign_flow(
    listen: Listener = ignore, problem: CodesignProblem | None = None
) -> Flow[..., CodesignOutcome]:
    """Return the Prefect flow of a co-design run.

    The parameters of the flow are the fields of `CodesignOptions` and `TrackingOptions`.

    Args:
        listen: function that receives the events.
        problem: result of `pose_problem`, if the caller already has it.
    """

    @flow(
        name="codesign",
        flow_run_name=make_run_namer(CodesignOptions, RUN_NAME),
        persist_result=False,
    )
    @flat(CodesignOptions, TrackingOptions)
    def codesign(options: CodesignOptions, tracking: TrackingOptions) -> CodesignOutcome:
        """Search accelerator designs and schedules together, and verify the Pareto front.

        The front is saved to the output directory and logged to MLflow.
        """
        use_workspace()
        if (out := confine_path(str(options.folder))) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        runner = CodesignRunner(log_events(listen), system_metrics=tracking.system_metrics)
        with quiet, runner as run:
            return run_codesign(run, options, problem)

    return codesign  # type: ignore[return-value]  # of a state callers get the data


codesign = codesign_flow()
"""The flow that a deployment serves."""
