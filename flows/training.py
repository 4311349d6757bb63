"""The flow that trains a model which carries over to other hardware, and judges it.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from tilewright.core.files import Json
from tilewright.flows.parameters import confined
from tilewright.services.workspace import use_home
from tilewright.tasks import training
from tilewright.tasks.training import Registered, Say, TrainingOptions


def training_flow(
    say: Say = lambda text: None,
) -> Flow[[TrainingOptions], tuple[dict[str, Json], Registered]]:
    """The flow, with somebody who hears how it goes."""

    def heard(text: str) -> None:
        if FlowRunContext.get() is not None:
            get_run_logger().info(text)
        say(text)

    @flow(
        name="train_model",
        flow_run_name="{options.kind} {options.split} on {options.dataset}",
        persist_result=False,
    )
    def train_model(options: TrainingOptions) -> tuple[dict[str, Json], Registered]:
        """Train a model on part of a dataset, judge it on the rest, keep and register it. Returns
        its figures and where it is registered."""
        use_home()
        options = options.model_copy(update={"out": str(confined(options.out))})
        table, digest = training.read_dataset(options)
        fitted = training.fit_model(options, table, heard)
        metrics = training.judge_model(options, fitted, digest)
        folder = training.keep_model(options, fitted, metrics)
        registered = training.register_model(options, folder, metrics)
        training.say_trained(options, metrics, registered)
        return metrics, registered

    return train_model


train_model = training_flow()
"""What a deployment serves."""
