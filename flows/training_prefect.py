"""Prefect flow of `flows.training.train_model`.

Annotations are not postponed here, because Prefect must resolve them when it loads a served flow by
name.
"""

from prefect import Flow, flow

from tilewright.core.files import Json
from tilewright.evaluation.datasets.options import TrainingOptions
from tilewright.flows.forms import confine_path, flat
from tilewright.flows.training import train_model as run_training
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_workspace
from tilewright.tasks.run_progress import log_events
from tilewright.tasks.training import Registered, TrainingRunner


def training_flow(
    listen: Listener = ignore,
) -> Flow[..., tuple[dict[str, Json], Registered | None]]:
    """Return the flow. Its parameters are the fields of `TrainingOptions`.

    Args:
        listen: receives the progress.
    """

    @flow(
        name="train_model",
        flow_run_name="{kind} {split} on {dataset}",
        persist_result=False,
    )
    @flat(TrainingOptions)
    def train_model(options: TrainingOptions) -> tuple[dict[str, Json], Registered | None]:
        """Train a model on part of a dataset, judge it on the rest, keep and register it.

        Returns its figures and where it is registered.
        """
        use_workspace()
        options = options.model_copy(update={"out": str(confine_path(options.out))})
        run = TrainingRunner(log_events(listen))
        return run_training(run, options), run.registered

    return train_model  # type: ignore[return-value]  # of a state callers get the data


train_model = training_flow()
"""The flow that a deployment serves."""
