"""Solves hardware and schedules as a Prefect flow, some machines after the others.

The order of its steps is `benchmarks.exact_codesign.store.build_truth`'s. Annotations are not
postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from pathlib import Path

from prefect import Flow, flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from benchmarks.exact_codesign.solver import TruthOptions
from benchmarks.exact_codesign.store import Listener, Truth, build_truth, ignore
from benchmarks.exact_codesign.tasks import TrackedTruth


def truth_flow(listen: Listener = ignore) -> Flow[[TruthOptions, str], Truth]:
    """The flow, with somebody who hears how far it is."""

    @flow(name="build_truth", flow_run_name="truth to {out}", persist_result=False)
    def solve_all(options: TruthOptions, out: str) -> Truth:
        """Solve what the folder `out` lacks of a truth."""
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return build_truth(Path(out), options, TrackedTruth(), listen)

    return solve_all
