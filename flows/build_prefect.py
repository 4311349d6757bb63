"""Prefect flow of `flows.build.build_artifact`.

Annotations are not postponed here, because Prefect must resolve them when it loads a served flow by
name.
"""

from prefect import flow

from tilewright.flows.build import build_artifact as run_build
from tilewright.flows.forms import confine_path, flat
from tilewright.services.workspace import use_workspace
from tilewright.tasks.build_task import BuildRunner, say_built
from tilewright.tuning.build_options import BuildOptions


@flow(
    name="build_artifact",
    flow_run_name="{model} for {target} to {out}",
    persist_result=False,
)
# A web form must not permit the code of an untrusted model.
@flat(BuildOptions, without=("allow_code",))
def build_artifact(options: BuildOptions) -> str:
    """Build a network for a target, and return the folder of the artifact.

    The flow's parameters are the fields of `BuildOptions` except `allow_code`. The folder must lie
    inside the deployment's root folder, if there is one.
    """
    use_workspace()
    given = options.model_copy(update={"out": confine_path(options.out)})
    say_built(given, run_build(BuildRunner(), given))
    return str(given.out)
