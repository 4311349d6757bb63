"""Prefect flow of `flows.dataset.build_dataset`.

Annotations are not postponed here, because Prefect must resolve them when it loads a served flow by
name.
"""

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.evaluation.datasets.options import DatasetFolder, DatasetOptions
from tilewright.evaluation.datasets.plan import check_options
from tilewright.flows.dataset import build_dataset as build_folder
from tilewright.flows.forms import confine_path, flat
from tilewright.search.events import Listener, ignore
from tilewright.services.workspace import use_workspace
from tilewright.tasks.dataset import DatasetRunner, say_built
from tilewright.tuning.options import ClusterOptions
from tilewright.tuning.output_dir import check_folder


def dataset_flow(listen: Listener = ignore) -> Flow[..., DatasetMetadata]:
    """Return the Prefect flow that builds a dataset.

    The parameters of the flow are the fields of `DatasetFolder`, `DatasetOptions` and
    `ClusterOptions`.

    Args:
        listen: function that receives the progress.
    """

    @flow(name="build_dataset", flow_run_name="{rows} rows to {out}", persist_result=False)
    @flat(DatasetFolder, DatasetOptions, ClusterOptions)
    def build_dataset(
        folder: DatasetFolder, options: DatasetOptions, workers: ClusterOptions
    ) -> DatasetMetadata:
        """Build the missing files of a dataset, and return the content of `dataset.json`."""
        use_workspace()
        out = confine_path(folder.out)
        check_options(options)
        check_folder(out.parent)
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            about = build_folder(DatasetRunner(listen), out, options, workers.cluster)
        say_built(about, out)
        return about

    return build_dataset  # type: ignore[return-value]  # of a state callers get the data


build_dataset = dataset_flow()
"""The flow that a deployment serves."""
