"""Makes a Prefect flow of `flows.codesign.codesign`. One that was killed resumes by the ledger of
its folder.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.flows.codesign import codesign as run_codesign
from tilewright.flows.parameters import confined
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.outputs import CodesignOutcome
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_home
from tilewright.tasks.codesign import CodesignRunner, logged
from tilewright.tasks.refusal import refusing


def codesign_flow(
    listen: Listener = ignore, problem: CodesignProblem | None = None, *, served: bool = False
) -> Flow[[CodesignOptions], CodesignOutcome]:
    """The flow, with somebody who hears what happens, and what is asked if it was read already; or
    as it is `served`."""

    def codesign(options: CodesignOptions) -> CodesignOutcome:
        """Search machines and schedules, prove the front, write the folder, tell MLflow."""
        use_home()
        if (out := confined(str(options.folder))) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        with quiet, CodesignRunner(logged(listen)) as run:
            return run_codesign(run, options, problem)

    return flow(
        name="codesign",
        flow_run_name="{options.subject} within {options.budget}, {options.method}",
        persist_result=False,
    )(refusing(codesign) if served else codesign)


codesign = codesign_flow(served=True)
"""What a deployment serves."""
