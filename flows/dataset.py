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
from tasks.dataset import TrackedSteps


def dataset_flow(listen: Listener = ignore) -> Flow[[BuildOptions, str], About]:
    """The flow, with somebody who hears how far it is."""

    @flow(name="build_dataset", flow_run_name="{options.rows} rows to {out}", persist_result=False)
    def build_dataset(options: BuildOptions, out: str) -> About:
        """Build what the folder `out` lacks of a dataset; returns what `dataset.json` holds."""
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return build(Path(out), options, TrackedSteps(), listen)

    return build_dataset
