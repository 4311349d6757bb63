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
    """Return the Prefect flow that trains a transferable cost model.

    The parameters of the flow are the fields of `TrainingOptions`.

    Args:
        listen: function that receives the progress.

    Returns:
        The flow. It returns the metrics of the evaluation, and the registered model, if any.
    """

    @flow(
        name="train_model",
        flow_run_name="{kind} {split} on {dataset}",
        persist_result=False,
    )
    @flat(TrainingOptions)
    def train_model(options: TrainingOptions) -> tuple[dict[str, Json], Registered | None]:
        """Train a cost model on one part of a dataset, and evaluate it on the other part.

        The model is saved to the output folder and registered in MLflow.

        Returns:
            The metrics of the evaluation, and the registered model, if any.
        """
        use_workspace()
        options = options.model_copy(update={"out": str(confine_path(options.out))})
        run = TrainingRunner(log_events(listen))
        return run_training(run, options), run.registered

    return train_model  # type: ignore[return-value]  # of a state callers get the data


train_model = training_flow()
"""The flow that a deployment serves."""
