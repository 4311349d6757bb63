"""Prefect flow of the comparisons in `flows.comparison`.

A comparison on networks can be extended: if it is repeated with more seeds, tuners or networks,
only the missing runs are made. Annotations are not postponed in this module, because Prefect must
resolve them when it loads a served flow by name.
"""

from prefect import Flow, flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.compare.network_comparison import NetworkComparison
from tilewright.evaluation.compare.network_plan import NetworksPlan
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import plan_workloads
from tilewright.evaluation.compare.workload_selection import test_bed_of
from tilewright.flows.comparison import compare_networks
from tilewright.flows.comparison import compare_tuners as compare_on_workloads
from tilewright.flows.forms import confine_path, fields_of, flat, make_run_namer
from tilewright.flows.tuning_prefect import network_flow
from tilewright.search.events import Listener, ignore
from tilewright.services.page_addresses import flow_run_url
from tilewright.services.workspace import use_workspace
from tilewright.targets.cluster.connection import local_cluster
from tilewright.tasks.comparison import NetworksRunner, WorkloadsRunner
from tilewright.tasks.tracking import run_url
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.output_dir import check_folder
from tilewright.tuning.outputs import Summary

GROUND_TRUTH = "oracle"
"""Name of the workspace folder that stores enumerated schedule spaces."""
RUN_NAME = "{options.subject}: {options.rivals}, seeds {options.seeds}"
Compared = tuple[NetworkComparison | None, dict[str, str]]
"""Result of the flow. If networks are compared, the result is the comparison and the addresses of
its pages by name. Otherwise it is None and the name of the best tuner."""


def comparison_flow(
    listen: Listener = ignore, plan: NetworksPlan | None = None
) -> Flow[..., Compared]:
    """Return the Prefect flow that compares tuners.

    The parameters of the flow are the fields of `CompareOptions` and `TrackingOptions`, except
    `replay` and `live`.

    Args:
        listen: function that receives the events of a comparison on networks.
        plan: plan of a comparison on networks, if the caller already has it.
    """

    @flow(
        name="compare_tuners",
        flow_run_name=make_run_namer(CompareOptions, RUN_NAME),
        persist_result=False,
    )
    # `replay` and `live` refer to files and spaces of the machine on which a command runs.
    @flat(CompareOptions, TrackingOptions, without=("replay", "live"))
    def compare_tuners(options: CompareOptions, tracking: TrackingOptions) -> Compared:
        """Compare tuners by tuning whole networks, or on workloads whose optimum is known."""
        use_workspace()
        if (out := confine_path(options.out)) != options.folder:
            options = options.model_copy(update={"out": str(out)})
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            if options.networks:
                return _on_networks(options, tracking, listen, plan)
            return None, {"best": _on_workloads(options)}

    return compare_tuners  # type: ignore[return-value]  # of a state callers get the data


def _on_networks(
    options: CompareOptions, tracking: TrackingOptions, listen: Listener, plan: NetworksPlan | None
) -> Compared:
    def tune(run: TuningOptions, listen: Listener, parent: str) -> Summary:
        summary: Summary = network_flow(listen, parent)(**fields_of(run, tracking))
        return summary

    with NetworksRunner(options, listen, tune) as run:
        compared = compare_networks(run, options, plan)
        return compared, {"MLflow": run_url(run.run_id), "Prefect": flow_run_url(str(flow_run.id))}


def _on_workloads(options: CompareOptions) -> str:
    """Compare tuners on workloads with a known optimum, and return the name of the best tuner.

    Workloads that have no schedule in the space are left out and mentioned in the log.

    Args:
        options: options of the comparison.
    """
    check_folder(options.folder)
    test_bed, left_out = test_bed_of(options, use_workspace().root / GROUND_TRUTH)
    for text, reason in left_out.items():
        get_run_logger().info(f"left out: {text}: {reason}")
    with WorkloadsRunner(options) as run:
        compared = compare_on_workloads(
            run, plan_workloads(options, test_bed), options.folder,
            options.cluster or local_cluster(options.jobs or 1), options.fresh,
        )  # fmt: skip
    return compared.leaderboard[0].tuner


compare_tuners = comparison_flow()
"""The flow that a deployment serves."""
