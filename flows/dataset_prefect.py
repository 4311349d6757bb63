"""Makes a Prefect flow of `flows.dataset.build_dataset`, which builds file by file.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from pathlib import Path

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.datasets.metadata import DatasetMetadata
from tilewright.evaluation.datasets.plan import DatasetOptions
from tilewright.flows.dataset import build_dataset as build_folder
from tilewright.flows.flat_parameters import flat
from tilewright.flows.parameters import DatasetForm, confined
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_workspace
from tilewright.targets.cluster.connection import check_address
from tilewright.tasks.dataset import DatasetRunner, say_built
from tilewright.tuning.output_dir import check_folder


def dataset_flow(
    listen: Listener = ignore, cluster: str = ""
) -> Flow[[DatasetOptions, str], DatasetMetadata]:
    """Return the flow, with a listener for its progress and the cluster that measures the rows."""

    @flow(name="build_dataset", flow_run_name="{options.rows} rows to {out}", persist_result=False)
    def build_dataset(options: DatasetOptions, out: str) -> DatasetMetadata:
        """Build what the folder `out` lacks of a dataset; returns what `dataset.json` holds."""
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return build_folder(DatasetRunner(listen), Path(out), options, cluster)

    return build_dataset


@flow(name="build_dataset", flow_run_name="{rows} rows to {out}", persist_result=False)
@flat(DatasetForm)
def build_dataset(options: DatasetForm) -> DatasetMetadata:
    """What a deployment serves: build what the folder lacks of a dataset."""
    use_workspace()
    asked, out = options.options, confined(options.out)
    asked.check()
    if options.cluster:
        check_address(options.cluster)
    check_folder(out.parent)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        about = build_folder(DatasetRunner(ignore), out, asked, options.cluster)
    say_built(about, out)
    return about
