"""Executes the runs of a comparison in this process, or on the workers of a Dask cluster.

A worker receives a run as JSON, together with the files of the table that provides the
measurements. It writes these files to its scratch folder and keeps them until it ends. A worker
therefore needs no files in advance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.core.lazy_module import lazy_module
from tilewright.evaluation.compare.benchmark_suite import (
    EnumeratedTestBed,
    Named,
    RecordedTestBed,
    TestBed,
)
from tilewright.evaluation.compare.plan import ComparisonJob, ComparisonPlan, TunerConfig
from tilewright.evaluation.compare.workload_runs import TunerRun, run_job
from tilewright.targets.base import Target
from tilewright.targets.cluster.connection import check_answer, cluster_for, connect
from tilewright.targets.cluster.remote_worker import check_version, rebuild_target
from tilewright.targets.cluster.target import recipe_of
from tilewright.targets.ground_truth import (
    ground_truth_path,
    ground_truth_table,
    make_replay_target,
)
from tilewright.targets.registry import make_target
from tilewright.targets.replay import MeasurementTable
from tilewright.targets.workload import Workload

if TYPE_CHECKING:
    import distributed
else:
    distributed = lazy_module("distributed")

REFERENCE = "reference.json"
"""Name of the file next to recorded tables that describes their workloads."""


def run_jobs(
    plan: ComparisonPlan, jobs: Sequence[ComparisonJob], cluster: str = ""
) -> Iterator[TunerRun]:
    """Execute runs of a comparison on workloads.

    Args:
        plan: the comparison.
        jobs: the runs to execute.
        cluster: address of a Dask cluster, as for `--cluster`; "" for this process. Apart from
            durations, results do not depend on it.

    Yields:
        The result of each run, as soon as the run has finished.

    Raises:
        ClusterError: the cluster cannot be used.
        TilewrightError: a target or a tuner fails.
    """
    cluster = cluster_for(cluster, len(jobs))
    if not cluster:
        yield from (run_job(plan, job) for job in jobs)
        return
    calls = (_call(plan, job) for job in jobs)
    for _, result in connect(cluster).call_each(run_job_remotely, calls):
        yield TunerRun(**check_answer(cluster, result))


# -- the command's side ------------------------------------------------------------------------


def _call(plan: ComparisonPlan, job: ComparisonJob) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """Return the arguments of `run_job_remotely`, with which a worker executes a run.

    If the table of the workload is not stored yet, all configs of the workload are measured here
    first.

    Args:
        plan: the comparison.
        job: the run.

    Returns:
        The version of Tilewright, the run as JSON, and the content of each file that the worker
        needs, by file name.

    Raises:
        TilewrightError: the test bed is of a type that cannot be sent to a cluster.
        OSError: a file cannot be read.
    """
    bed, workload = plan.test_bed, dict(plan.test_bed.workloads)[job.workload]
    about: dict[str, Any] = {
        "target": bed.target, "space": bed.space, "recipe": None, "live": False,
        "workload": [job.workload, workload.to_json()],
        "tuner": asdict(job.tuner_config),
        "seed": job.seed, "trials": plan.trials, "batch": plan.batch, "enough": plan.enough,
    }  # fmt: skip
    if isinstance(bed, RecordedTestBed):
        names = [name for name, _ in bed.workloads]
        file = bed.files[names.index(job.workload)]
    elif isinstance(bed, EnumeratedTestBed):
        about |= {"recipe": _recipe(bed.target, bed.space), "live": bed.live}
        bed.table(job.workload)  # creates the file if it is missing
        file = ground_truth_path(_cached_target(bed.target, bed.space), workload, bed.folder)
    else:
        raise TilewrightError(
            f"{type(bed).__name__} cannot be sent to a cluster; leave out --cluster"
        )
    files = [file, file.with_name(REFERENCE)] if isinstance(bed, RecordedTestBed) else [file]
    about["table"] = file.name
    return version("tilewright"), about, {file.name: file.read_bytes() for file in files}


@lru_cache(maxsize=4)
def _cached_target(target: str, space: str) -> Target:
    return make_target(target, space)


def _recipe(target: str, space: str) -> dict[str, Any]:
    return recipe_of(_cached_target(target, space), target, space)


# -- the worker's side -------------------------------------------------------------------------


def run_job_remotely(
    command: str, about: dict[str, Any], files: dict[str, bytes]
) -> dict[str, Any] | str:
    """Execute a run of a comparison on a worker of a cluster.

    Args:
        command: version of Tilewright on the machine that sent the run.
        about: the run as JSON: test bed, workload, tuner, seed and budget.
        files: content of the workload's table and, for a recorded table, of its `reference.json`,
            by file name.

    Returns:
        The fields of a `TunerRun` as a dictionary, or a message why this worker cannot execute the
        run.
    """
    try:
        check_version(command)
        name, written = about["workload"]
        workload = Workload.from_json(written)
        folder = _scratch(files)
        named: Named = ((name, workload),)
        bed: TestBed = RecordedTestBed((folder / about["table"],), named)
        if about["recipe"] is not None:
            recipe = json.dumps(about["recipe"], sort_keys=True)
            bed = _SentTestBed(
                about["target"], about["space"], named, recipe, folder, about["live"]
            )
        tuner = about["tuner"]
        settings = tuple((key, value) for key, value in tuner["settings"])
        config = TunerConfig(tuner["label"], tuner["tuner"], settings)
        seed = int(about["seed"])
        plan = ComparisonPlan(
            bed, (config,), (seed,), about["trials"], about["batch"], about["enough"]
        )
        return asdict(run_job(plan, ComparisonJob(config, name, seed)))
    except TilewrightError as error:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class _SentTestBed:
    """Test bed with a single workload, on a worker that received the workload's table.

    Attributes:
        target: name of the target.
        space: name of the schedule space.
        workloads: the workload with its name.
        recipe: description from which the worker rebuilds the target, as JSON.
        folder: folder of the received table.
        live: run tuners on the target itself instead of reading the table.
    """

    target: str
    space: str
    workloads: Named
    recipe: str
    folder: Path
    live: bool

    def open(self, name: str) -> Target:
        hardware = _rebuilt_target(self.recipe)
        return hardware if self.live else make_replay_target(hardware, [self.table(name)])

    def table(self, name: str) -> MeasurementTable:
        return _table(self.recipe, dict(self.workloads)[name], self.folder)


@lru_cache(maxsize=4)
def _rebuilt_target(recipe: str) -> Target:
    return rebuild_target(**json.loads(recipe))


@lru_cache(maxsize=2)
def _table(recipe: str, workload: Workload, folder: Path) -> MeasurementTable:
    return ground_truth_table(_rebuilt_target(recipe), workload, folder)


def _scratch(files: dict[str, bytes]) -> Path:
    """Write received files to a scratch folder of this worker, and return the folder.

    Dask removes the folder when the worker ends.

    Args:
        files: content of each file, by name.
    """
    content = hashlib.sha256(b"\0".join(files.values())).hexdigest()[:32]
    folder = Path(distributed.get_worker().local_directory) / f"tilewright-{content}"
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        if not (folder / Path(name).name).exists():
            write_atomically(folder / Path(name).name, data, sync=False)
    return folder
