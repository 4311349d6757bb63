"""Makes a Prefect flow of `flows.build.build_artifact`.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import flow

from tilewright.flows.build import build_artifact as run_build
from tilewright.flows.flat_parameters import flat
from tilewright.flows.parameters import BuildForm
from tilewright.services.workspace import use_workspace
from tilewright.tasks.build_task import BuildRunner, say_built


@flow(
    name="build_artifact",
    flow_run_name="{model} for {target} to {out}",
    persist_result=False,
)
@flat(BuildForm)
def build_artifact(options: BuildForm) -> str:
    """Build a network for a target; returns the folder."""
    use_workspace()
    given = options.options
    say_built(given, run_build(BuildRunner(), given))
    return str(given.out)
