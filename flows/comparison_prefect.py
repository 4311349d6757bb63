"""Makes a Prefect flow of `flows.comparison.compare_tuners`.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

from prefect import flow
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tilewright.evaluation.compare.plan import check_budget, parse_seeds, parse_tuner_configs, plan
from tilewright.evaluation.compare.workload_selection import enumerated
from tilewright.flows.comparison import compare_tuners as run_compare
from tilewright.flows.flat_parameters import flat, named
from tilewright.flows.parameters import CompareForm, confined
from tilewright.services.workspace import use_workspace
from tilewright.targets.cluster.connection import check_address, local_cluster
from tilewright.tasks.comparison import ComparisonRunner
from tilewright.tuning.output_dir import check_folder

GROUND_TRUTH = "oracle"
"""Folder of enumerated spaces, below the workspace."""


@flow(
    name="compare_tuners",
    flow_run_name=named(CompareForm, "{options.subject} on {options.target}, {options.rivals}"),
    persist_result=False,
)
@flat(CompareForm)
def compare_tuners(options: CompareForm) -> str:
    """Run several tuners with many seeds and compare them with the enumerated optimum; returns the
    name of the best."""
    workspace, out = use_workspace(), confined(options.out)
    check_budget(options.trials, options.batch)
    if options.cluster:
        check_address(options.cluster)
    seeds = parse_seeds(options.seeds)
    configs = parse_tuner_configs(options.rivals)
    check_folder(out)
    test_bed, left_out = enumerated(
        options.network or None, options.workloads, options.target, options.space, False,
        options.max_waste, workspace.root / GROUND_TRUTH,
    )  # fmt: skip
    for text, reason in left_out.items():
        get_run_logger().info(f"left out: {text}: {reason}")
    what = plan(test_bed, configs, seeds, options.trials, options.batch)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        run = ComparisonRunner(options.rivals)
        cluster = options.cluster or local_cluster(options.jobs)
        compared = run_compare(run, what, out, cluster, options.fresh)
    return compared.leaderboard[0].tuner
