"""Defines what `import tilewright` offers: one function per command, without servers.

Runs write plain files. The commands without `--bare` do the same and log it to Prefect and MLflow.
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
    """Find a fast schedule of every workload of a network, and write them to the folder `out`.

    Repeating a call resumes a run that was stopped. `options` are the fields of
    `tilewright.tuning.options.TuningOptions`; `help(tilewright.tune)` lists them with their
    defaults.

    Returns:
        The content of `summary.json`.

    Raises:
        OptionsError: an option makes no sense.
        TilewrightError: the model cannot be read, or the target cannot be made.

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
    """Build a network for a target into the folder `out`: programs, weights and a manifest.

    `options` are the fields of `tilewright.tuning.build_options.BuildOptions`: `target`,
    `schedules` (a tuned folder), `trials`, `calibration`, `tolerance` and others. Returns the
    manifest, and warnings. Raises `ArtifactError`, `PickError`, and what reading and quantising the
    model raise.

    >>> built = tilewright.build("digits_cnn", "built/digits", trials=0)
    >>> built.manifest["target"]
    'vta-pynq'
    """
    from tilewright.flows.build import build_artifact

    asked = BuildOptions.parse(model=str(model), out=Path(out), **options)
    return build_artifact(_local_runner(), asked)


@shows_options(CompareOptions)
def compare(**options: Any) -> Comparison | NetworkComparison:
    """Compare tuners on workloads with a known optimum, or by whole runs of `networks`.

    `options` are the fields of `tilewright.evaluation.compare.options.CompareOptions`;
    `help(tilewright.compare)` lists them with their defaults. Every tuner gets the same workloads,
    trials and seeds. The folder `out` gets a report. Repeating a call repeats no finished run.

    Returns:
        The comparison with its leaderboard; of `networks`, the runs with a leaderboard per network
        and target.

    Raises:
        OptionsError: an option makes no sense.
        TilewrightError: a network cannot be read, a target cannot be made, or a cluster cannot be
            used.

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
    """Compare tuners by whole runs of networks. Deprecated: call `compare` with `networks`."""
    warnings.warn(
        "tilewright.sweep is deprecated and will be removed in version 0.4; use "
        "tilewright.compare with the same arguments",
        DeprecationWarning,
        stacklevel=2,
    )
    return cast("NetworkComparison", compare(**options))


@takes_options(CodesignOptions)
def codesign(**options: Any) -> CodesignOutcome:
    """Search accelerators and their schedules for some networks, within an area.

    `options` are the fields of `tilewright.hardware_search.options.CodesignOptions`: `networks`,
    `budget`, `trials`, `method`, `bounds`, `out` and others. Returns the front of area against
    latency. Raises `OptionsError`, `NothingToOffload`, and what reading a network raises.

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
    """Return the tracked runs of the workspace, one row per run, the latest first.

    Columns are when and how it ended, `network`, `target`, `tuner`, `seed`, `trials`, cycles and
    milliseconds of the baseline, the fallback, the tuned network and the bound, `gain`, and the ids
    in MLflow and Prefect. The workspace is `.tilewright/` or `TILEWRIGHT_HOME`; a run with `--bare`
    is in none. Raises `WorkspaceError` for a workspace that cannot be read.

    >>> found = tilewright.runs()
    >>> list(found.columns[:5])
    ['began', 'status', 'seconds', 'network', 'target']
    """
    from tilewright.services.workspace import current_workspace
    from tilewright.tasks.runs_table import runs_table

    return runs_table(current_workspace())


def trials(source: str | Path) -> pd.DataFrame:
    """Return the trials of an output directory, or those that a tuner of TVM made.

    The directory may belong to a run that is not finished. Trials of TVM are read from a log of
    AutoTVM or a folder with MetaSchedule's database.

    Columns are `workload`, `trial`, `round`, `config` (indices of knobs, none of other tuners),
    `knobs` (values by name, in JSON), `status`, `reason`, `cycles` (-1 where none are counted) and
    `seconds`. Raises `ForeignTrialsError` where there are none, and `TrialStoreError`.

    >>> found = tilewright.trials("tuned/digits")
    >>> int((found["status"] == "valid").sum()) > 0
    True
    """
    from tilewright.tuning.read_trials import read_trials

    return read_trials(Path(source)).table
