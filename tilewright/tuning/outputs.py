"""Writes the result files of a run. Each file is written atomically at the end of the run.

The names of the files are in `tuning.output_dir`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tilewright.core import formats
from tilewright.core.files import Json, remove, write_atomically
from tilewright.core.options import OptionValue
from tilewright.search import read_store
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Verifies, capability, specification_of
from tilewright.targets.registry import kind_of
from tilewright.tuning.fusion_interface import Decided, FusionSummary
from tilewright.tuning.gains import Macs, Total, totals
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import FUSION, FUSION_PAGE, SCHEDULES, SUMMARY, TRIALS
from tilewright.tuning.results import ScheduleRow, TunedWorkload, WorkloadRow
from tilewright.tuning.run_metadata import run_key
from tilewright.tuning.task_scheduler import StopGain
from tilewright.tuning.tuning_task import space_of

if TYPE_CHECKING:
    from tilewright.tuning.network import NetworkPart, TuningNetwork

PACKAGES = ("tilewright", "apache-tvm", "xgboost-cpu", "lightgbm", "numpy")
"""Packages whose versions are stored in the summary of a run."""


class Summary(TypedDict):
    """Contents of `summary.json`.

    Fields whose meaning is not clear from their names:

    - `part` is present if only a part of a network was tuned.
    - `stop_gain` is present if the workloads shared their trials. `trials` is then the maximum
      average per workload.
    - `fusion` is present if fusion was decided.
    - `macs` shows how much of the network `total` covers.
    - `run_key` identifies the run (`tuning.run_metadata`).
    - `verified` is False if the target cannot run programs on data, so that nobody has checked the
      numerical results of the schedules.
    - `versions` contains the versions of Tilewright and of the packages for compiling and learning.
    - `mlflow_run_id` and `prefect_flow_run_id` are present if the run was tracked.
    """

    version: int
    network: str
    target: str
    tuner: str
    seed: int
    space: str
    trials: int
    batch: int
    tuner_options: dict[str, OptionValue]
    warm_start: str
    workloads: list[WorkloadRow]
    macs: Macs
    total: Total
    wall_seconds: float
    part: NotRequired[NetworkPart]
    stop_gain: NotRequired[StopGain]
    fusion: NotRequired[FusionSummary]
    run_key: NotRequired[str]
    verified: NotRequired[bool]
    versions: NotRequired[dict[str, str]]
    mlflow_run_id: NotRequired[str]
    prefect_flow_run_id: NotRequired[str]


class TargetRow(TypedDict):
    """Target entry of `schedules.json`.

    Attributes:
        name: name of the target.
        kind: kind of the target.
        fingerprint: digest of the properties that affect programs and latencies.
        spec: specification from which `targets.registry.rebuild` can rebuild the target.
    """

    name: str
    kind: str
    fingerprint: str
    spec: NotRequired[dict[str, Json]]


class SchedulesFile(TypedDict):
    """Contents of `schedules.json`.

    Attributes:
        version: version of the format.
        network: name of the network.
        target: the target for which the schedules were tuned.
        schedules: one entry per workload.
    """

    version: int
    network: str
    target: TargetRow
    schedules: list[ScheduleRow]


def summary_of(
    options: TuningOptions,
    network: TuningNetwork,
    tuned: Sequence[TunedWorkload],
    sharing: StopGain | None = None,
    decided: Decided | None = None,
) -> Summary:
    """Build the summary of a run. Its duration is set to 0 and must be filled in by the caller.

    Args:
        options: options of the run.
        network: the network and the target.
        tuned: the tuned workloads.
        sharing: summary entry about shared trials, if workloads shared their trials.
        decided: decision about fusion, if there was one.
    """
    rows = [workload_result.summary() for workload_result in tuned]
    summary: Summary = {
        "version": formats.SUMMARY.written,
        "network": network.model.name,
        "target": network.target.name,
        "tuner": options.tuner,
        "seed": options.seed,
        "space": space_of(options),
        "trials": options.trials,
        "batch": options.batch,
        "tuner_options": options.tuner_options,
        "warm_start": options.warm_start,
        "workloads": rows,
        "macs": network.found.macs,
        "total": totals(rows),
        "wall_seconds": 0.0,
        "run_key": run_key(options, [workload_result.task for workload_result in tuned]),
        "versions": {name: version(name) for name in PACKAGES},
    }
    if sharing is not None:
        summary["stop_gain"] = sharing
    if decided is not None:
        summary["fusion"] = decided.summary
    if capability(network.target, Verifies) is None:
        summary["verified"] = False
    if network.part is not None:
        summary["part"] = network.part
    return summary


def target_row(options: TuningOptions, target: Target) -> TargetRow:
    """Build the target entry of `schedules.json`.

    Args:
        options: options of the run.
        target: the target.
    """
    row: TargetRow = {
        "name": target.name,
        "kind": kind_of(options.target)[0].name,
        "fingerprint": target.fingerprint,
    }
    if (written := specification_of(target)) is not None:
        row["spec"] = written
    return row


@dataclass(frozen=True)
class TunedNetwork:
    """Result of tuning a network.

    Attributes:
        summary: contents of `summary.json`.
        workloads: the tuned workloads in order of first use.
        decided: decision about fusion, if there was one.
    """

    summary: Summary
    workloads: tuple[TunedWorkload, ...]
    decided: Decided | None = None


def write_outputs(folder: Path, target: TargetRow, network: TunedNetwork) -> list[Path]:
    """Write all result files of the output directory, and return their paths.

    The summary is written last, because it marks the directory as complete.

    Args:
        folder: the output directory.
        target: target entry of `schedules.json`.
        network: the tuned network.

    Raises:
        OSError: a file cannot be written.
    """
    schedules: SchedulesFile = {
        "version": formats.SCHEDULES.written,
        "network": network.summary["network"],
        "target": target,
        "schedules": [workload.schedule() for workload in network.workloads],
    }
    trials = trials_of(folder, network.workloads)
    files = {SCHEDULES: _pretty(schedules), TRIALS: parquet(trials)}
    if network.decided is not None:
        about: dict[str, Json] = {"version": formats.FUSION.written, "target": cast(Json, target)}
        files[FUSION] = _pretty(about | network.decided.file)
    else:
        remove(folder / FUSION)
        remove(folder / FUSION_PAGE)
    files[SUMMARY] = _pretty(network.summary)
    for name, data in files.items():
        write_atomically(folder / name, data)
    return [folder / name for name in files]


def trials_of(folder: Path, tuned: Sequence[TunedWorkload]) -> pd.DataFrame:
    """Read the trials of the given workloads from an output directory's trial store.

    Args:
        folder: the output directory.
        tuned: the workloads, in the order of the network.

    Returns:
        Table with one row per trial, in the order of the workloads.
    """
    with read_store(folder) as store:
        tables = [store.frame([one.task.store_key]).iloc[: one.trials] for one in tuned]
    return pd.concat(tables, ignore_index=True)


def parquet(frame: pd.DataFrame) -> bytes:
    """Serialise a table of trials as a Parquet file.

    The metadata of the file contains the version of the format.

    Args:
        frame: table of trials.
    """
    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    version = {formats.TRIALS.key: str(formats.TRIALS.written)}
    notes = {**(table.schema.metadata or {}), **version}
    pq.write_table(table.replace_schema_metadata(notes), buffer)
    return buffer.getvalue()


def _pretty(document: SchedulesFile | Summary | dict[str, Json]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + os.linesep).encode()
