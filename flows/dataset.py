"""The flow that builds a dataset, file by file. The order of its steps is
`evaluation.datasets.build`'s.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from pathlib import Path

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from evaluation.datasets.about import About
from evaluation.datasets.build import Listener, build, ignore
from evaluation.datasets.plan import BuildOptions
from flows.forms import DatasetForm, confined
from services.home import use_home
from tasks.dataset import TrackedSteps, say_built
from tuning.folders import check_folder


def dataset_flow(listen: Listener = ignore) -> Flow[[BuildOptions, str], About]:
    """The flow, with somebody who hears how far it is."""

    @flow(name="build_dataset", flow_run_name="{options.rows} rows to {out}", persist_result=False)
    def build_dataset(options: BuildOptions, out: str) -> About:
        """Build what the folder `out` lacks of a dataset; returns what `dataset.json` holds."""
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return build(Path(out), options, TrackedSteps(), listen)

    return build_dataset


@flow(
    name="build_dataset",
    flow_run_name="{options.rows} rows to {options.out}",
    persist_result=False,
)
def build_dataset(options: DatasetForm) -> About:
    """What a deployment serves: build what the folder lacks of a dataset."""
    use_home()
    asked, out = options.options, confined(options.out)
    asked.check()
    check_folder(out.parent)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        about = build(out, asked, TrackedSteps(), ignore)
    say_built(about, out)
    return about
