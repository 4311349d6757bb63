"""Makes a Prefect flow of `flows.codesign.codesign`. One that was killed resumes by the trials of
its folder.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.flows.codesign import codesign as run_codesign
from tilewright.flows.flat_parameters import flat, named
from tilewright.flows.parameters import confined
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.outputs import CodesignOutcome
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_workspace
from tilewright.tasks.codesign import CodesignRunner, logged
from tilewright.tuning.options import TrackingOptions

RUN_NAME = "{options.subject} within {options.budget}, {options.method}"


def codesign_flow(
    listen: Listener = ignore, problem: CodesignProblem | None = None
) -> Flow[..., CodesignOutcome]:
    """The flow, with somebody who hears what happens, and what is asked if it was read already. Its
    parameters are the fields of `CodesignOptions` and `TrackingOptions`."""

    @flow(
        name="codesign",
        flow_run_name=named(CodesignOptions, RUN_NAME),
        persist_result=False,
    )
    @flat(CodesignOptions, TrackingOptions)
    def codesign(options: CodesignOptions, tracking: TrackingOptions) -> CodesignOutcome:
        """Search machines and schedules, prove the front, write the folder, tell MLflow."""
        use_workspace()
        if (out := confined(str(options.folder))) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        runner = CodesignRunner(logged(listen), system_metrics=tracking.system_metrics)
        with quiet, runner as run:
            return run_codesign(run, options, problem)

    return codesign  # type: ignore[return-value]  # of a state callers get the data


codesign = codesign_flow()
"""What a deployment serves."""
