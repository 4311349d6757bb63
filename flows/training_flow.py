"""Makes a Prefect flow of `flows.training.train_model`.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow

from tilewright.core.files import Json
from tilewright.evaluation.datasets.training import TrainingOptions
from tilewright.flows.parameters import confined
from tilewright.flows.training import train_model as run_training
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_home
from tilewright.tasks.flow_log import logged
from tilewright.tasks.refusal import refusing
from tilewright.tasks.training import Registered, TrainingRunner


def training_flow(
    listen: Listener = ignore, *, served: bool = False
) -> Flow[[TrainingOptions], tuple[dict[str, Json], Registered | None]]:
    """The flow, with somebody who hears how it goes, or as it is `served`."""

    def train_model(options: TrainingOptions) -> tuple[dict[str, Json], Registered | None]:
        """Train a model on part of a dataset, judge it on the rest, keep and register it. Returns
        its figures and where it is registered."""
        use_home()
        options = options.model_copy(update={"out": str(confined(options.out))})
        run = TrainingRunner(logged(listen))
        return run_training(run, options), run.registered

    return flow(
        name="train_model",
        flow_run_name="{options.kind} {options.split} on {options.dataset}",
        persist_result=False,
    )(refusing(train_model) if served else train_model)


train_model = training_flow(served=True)
"""What a deployment serves."""
