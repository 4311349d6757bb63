"""The functions behind `import tilewright`: one function per command, without any server.

The functions write plain files. The commands without `--bare` do the same, and also log to Prefect
and MLflow.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tilewright.core.options import shows_options, takes_options
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.hardware_search.options import CodesignOptions
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.options import TuningOptions

if TYPE_CHECKING:
    import pandas as pd

    from tilewright.evaluation.compare.network_comparison import NetworkComparison
    from tilewright.evaluation.compare.workload_comparison import Comparison
    from tilewright.hardware_search.results import CodesignOutcome
    from tilewright.search import LocalRunner
    from tilewright.tuning.build_artifact import BuiltArtifact
    from tilewright.tuning.outputs import Summary


def _local_runner() -> LocalRunner:
    """Return a runner that executes steps in this process."""
    from tilewright.search import LocalRunner

    return LocalRunner()


@takes_options(TuningOptions)
def tune(**options: Any) -> Summary:
    """Find a fast schedule for every workload of a network, and write the schedules to a folder.

    If a run was stopped, repeating the call resumes it.

    Args:
        **options: the fields of `tilewright.tuning.options.TuningOptions`. `help(tilewright.tune)`
            lists them with their defaults. `out` is the folder.

    Returns:
        The content of `summary.json`.

    Raises:
        OptionsError: an option is unknown or has an invalid value.
        TilewrightError: the model cannot be read, or the target cannot be created.

    >>> summary = tilewright.tune(model="digits_cnn", tuner="random", trials=4, out="tuned/digits")
    >>> summary["total"]["tuned_cycles"] >= summary["total"]["bound_cycles"]
    True
    """
    from tilewright.flows.tuning import tune_network
    from tilewright.reports.run_pictures import draw_run

    parsed = TuningOptions.parse(**options)
    network = tune_network(_local_runner(), parsed)
    draw_run(parsed.folder, network)
    return network.summary


@shows_options(BuildOptions, "model", "out")
def build(model: str | Path, out: str | Path, **options: Any) -> BuiltArtifact:
    """Build a network for a target, and write the artifact: programs, weights and a manifest.

    Args:
        model: name of a built-in network, or path of a model file.
        out: folder for the artifact.
        **options: the other fields of `tilewright.tuning.build_options.BuildOptions`, such as
            `target`, `schedules` (the output directory of a tuning run), `trials`, `calibration`
            and `tolerance`.

    Returns:
        The manifest of the artifact, and warnings.

    Raises:
        OptionsError: an option is unknown or has an invalid value.
        ArtifactError: the artifact cannot be built.
        PickError: the schedules in `schedules` cannot be used.
        TilewrightError: the model cannot be read or quantised.

    >>> built = tilewright.build("digits_cnn", "built/digits", trials=0)
    >>> built.manifest["target"]
    'vta-pynq'
    """
    from tilewright.flows.build import build_artifact

    asked = BuildOptions.parse(model=str(model), out=Path(out), **options)
    return build_artifact(_local_runner(), asked)


@shows_options(CompareOptions)
def compare(**options: Any) -> Comparison | NetworkComparison:
    """Compare tuners on workloads with a known optimum, or by tuning whole networks.

    Whole networks are tuned if `networks` is given. Every tuner gets the same workloads, trials and
    seeds. The folder `out` gets a report. Repeating a call does not repeat finished runs.

    Args:
        **options: the fields of `tilewright.evaluation.compare.options.CompareOptions`.
            `help(tilewright.compare)` lists them with their defaults.

    Returns:
        The comparison with its leaderboard. With `networks`, the tuning runs and one leaderboard
        per network and target.

    Raises:
        OptionsError: an option is unknown or has an invalid value.
        TilewrightError: a network cannot be read, a target cannot be created, or a cluster cannot
            be used.

    >>> compared = tilewright.compare(
    ...     tuners="default,random", workloads=["dense:n=1,c=64,o=64"], trials=8, seeds="0-1",
    ...     out="compared",
    ... )
    >>> sorted(row.tuner for row in compared.leaderboard)
    ['default', 'random']
    >>> swept = tilewright.compare(
    ...     networks=["digits_cnn"], tuners="random,grid", seeds="0-1", trials=4, layers=["fc"],
    ...     out="swept/digits",
    ... )
    >>> len(swept.runs), swept.leaderboards[0].baseline
    (4, 'fallback')
    """
    from tilewright.evaluation.compare.plan import plan_workloads
    from tilewright.evaluation.compare.workload_selection import test_bed_of
    from tilewright.flows.comparison import compare_networks, compare_tuners
    from tilewright.targets.cluster.connection import check_address, local_cluster
    from tilewright.tuning.output_dir import check_folder

    if "processes" in options:  # its name in earlier versions
        options["jobs"] = options.pop("processes")
    options["out"] = str(options.get("out", "swept" if options.get("networks") else "compared"))
    asked = CompareOptions.parse(**options)
    if asked.networks:
        return compare_networks(_local_runner(), asked)
    check_folder(asked.folder)
    test_bed, _ = test_bed_of(asked, asked.folder / "spaces")
    plan = plan_workloads(asked, test_bed)
    cluster = asked.cluster or local_cluster(asked.jobs or 1)
    if cluster:
        check_address(cluster)
    return compare_tuners(_local_runner(), plan, asked.folder, cluster, asked.fresh)


def sweep(**options: Any) -> NetworkComparison:
    """Compare tuners by tuning whole networks. Deprecated: call `compare` with `networks`."""
    warnings.warn(
        "tilewright.sweep is deprecated and will be removed in version 0.4; use "
        "tilewright.compare with the same arguments",
        DeprecationWarning,
        stacklevel=2,
    )
    return cast("NetworkComparison", compare(**options))


@takes_options(CodesignOptions)
def codesign(**options: Any) -> CodesignOutcome:
    """Search for accelerator designs and their schedules together, for given networks.

    No design exceeds the chip area `budget`.

    Args:
        **options: the fields of `tilewright.hardware_search.options.CodesignOptions`, such as
            `networks`, `budget`, `trials`, `method`, `bounds` and `out`.

    Returns:
        The outcome with the Pareto front of area against latency.

    Raises:
        OptionsError: an option is unknown or has an invalid value.
        NothingToOffload: no layer of a network runs on the accelerator.
        TilewrightError: a network cannot be read.

    >>> found = tilewright.codesign(
    ...     networks=("digits_cnn",), budget=1.0, trials=20, bounds={"log_block_in": (4, 4)},
    ...     out="codesigned/digits",
    ... )
    >>> all(row["area"] <= 1.0 for row in found.front)
    True
    """
    from tilewright.flows.codesign import codesign as search
    from tilewright.reports.codesign import draw_front

    parsed = CodesignOptions.parse(**options)
    outcome = search(_local_runner(), parsed)
    draw_front(parsed.folder, outcome)
    return outcome


def runs() -> pd.DataFrame:
    """Return the tracked runs of the workspace as a table, one row per run, latest first.

    The workspace is the folder `.tilewright/`, or the folder in `TILEWRIGHT_HOME`. A run with
    `--bare` is not tracked.

    Returns:
        A table with these columns: when and how the run ended, `network`, `target`, `tuner`,
            `seed`, `trials`, the cycles and milliseconds of the baseline, the fallback, the tuned
            network and the bound, `gain`, and the IDs in MLflow and Prefect.

    Raises:
        WorkspaceError: the path of the workspace cannot be determined.
        MlflowException: the MLflow server does not answer.

    >>> found = tilewright.runs()
    >>> list(found.columns[:5])
    ['began', 'status', 'seconds', 'network', 'target']
    """
    from tilewright.services.workspace import current_workspace
    from tilewright.tasks.runs_table import runs_table

    return runs_table(current_workspace())


def trials(source: str | Path) -> pd.DataFrame:
    """Return the trials in an output directory, or the trials that a tuner of TVM recorded.

    Args:
        source: output directory of a run, which need not be finished; or a log file of AutoTVM, or
            a folder with MetaSchedule's database.

    Returns:
        A table with one row per trial. Its columns are `workload`, `trial`, `round`, `config` (knob
        indices; missing for TVM's tuners), `knobs` (knob values by name, as JSON), `status`,
        `reason`, `cycles` (-1 if no cycles are counted) and `seconds`.

    Raises:
        ForeignTrialsError: the source contains no trials.
        TrialStoreError: the database of the trials cannot be read.

    >>> found = tilewright.trials("tuned/digits")
    >>> int((found["status"] == "valid").sum()) > 0
    True
    """
    from tilewright.tuning.read_trials import read_trials

    return read_trials(Path(source)).table
