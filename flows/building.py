"""The flow that makes one folder of a network that a target can run.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import flow

from flows.forms import BuildForm
from services.home import use_home
from tasks.building import build_one


@flow(
    name="build_artefact",
    flow_run_name="{options.model} for {options.target} to {options.out}",
    persist_result=False,
)
def build_artefact(options: BuildForm) -> str:
    """Build a network for a target; returns the folder."""
    use_home()
    given = options.options
    build_one(options.model, options.target, lambda: given)
    return str(given.out)
