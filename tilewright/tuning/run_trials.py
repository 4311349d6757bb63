"""Reads the trials of a run: from its result files if it has ended, else from its trial store."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import pyarrow.parquet as parquet
from pydantic import BaseModel, Field

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, read_plain
from tilewright.core.formats import TRIALS as TRIALS_FORMAT
from tilewright.core.options import OptionValue
from tilewright.search import read_store
from tilewright.search.trial_store import COLUMNS
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload
from tilewright.tuning.gains import FourFigures, four_figures, network_figures
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY, TRIALS
from tilewright.tuning.read_run import read_written
from tilewright.tuning.run_metadata import RunFile

_Count = Annotated[int, Field(ge=1, le=1 << 53)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
_Cycles = Annotated[int, Field(ge=0, le=1 << 53)] | None
_TYPES = {"trial": "int64", "round": "int64", "cycles": "int64", "seconds": "float64"}


class RunUnreadable(TilewrightError):
    """The trials of a run do not exist or cannot be read."""


@dataclass(frozen=True)
class RunLayer:
    """A workload of a run, as it is described in pages and exports.

    Attributes:
        id: ID of the workload.
        name: display name for tables.
        text: text of the workload, with its shapes.
        names: names of the layers with this workload.
        count: number of calls per inference.
        figures: latencies of one call; None while the run is not finished.
    """

    id: str
    name: str
    text: str
    names: Sequence[str]
    count: int
    figures: FourFigures | None = None


@dataclass(frozen=True)
class RunTrials:
    """The workloads and trials of a run.

    Attributes:
        layers: the workloads.
        table: trials with the columns `search.trial_store.COLUMNS`.
        about: properties of the run as text, under the keys `network`, `target`, `tuner` and
            `seed`.
    """

    layers: Sequence[RunLayer]
    table: pd.DataFrame
    about: Mapping[str, str]

    def trials_of_workload(self, workload: str) -> pd.DataFrame:
        """Return the trials of one workload, in order.

        Args:
            workload: ID of the workload.
        """
        return self.table[self.table["workload"] == workload].sort_values("trial", kind="stable")


class _Schedule(BaseModel):
    id: str
    workload: str
    epilogue: str
    names: list[str]


class _Schedules(BaseModel):
    schedules: list[_Schedule]


class _Workload(BaseModel):
    id: str
    count: _Count
    fallback_cycles: _Cycles = None
    fallback_seconds: _Seconds
    rule_cycles: _Cycles = None
    rule_seconds: _Seconds
    rule_source: str | None
    tuned_cycles: _Cycles = None
    tuned_seconds: _Seconds
    bound_cycles: _Cycles = None
    bound_seconds: _Seconds

    @property
    def figures(self) -> FourFigures:
        """The four latencies of one call."""
        return four_figures(vars(self))


class RunSummary(BaseModel):
    """Fields of `summary.json` that this module reads."""

    network: str
    target: str
    tuner: str
    seed: int
    space: str
    batch: int
    tuner_options: dict[str, OptionValue] = {}
    warm_start: str = ""
    wall_seconds: float
    workloads: list[_Workload]
    mlflow_run_id: str | None = None

    @property
    def figures(self) -> FourFigures:
        """The four latencies of one inference."""
        counts = [workload.count for workload in self.workloads]
        return network_figures(counts, [workload.figures for workload in self.workloads])


def read_summary(folder: Path) -> RunSummary:
    """Read the summary of a finished run.

    Args:
        folder: the output directory.

    Raises:
        RunUnreadable: the summary is missing, damaged or of an unsupported version.
        UnsafeFile: the path is not a plain file.
    """
    return read_written(RunSummary, folder, SUMMARY, RunUnreadable)


def finished_trials(folder: Path) -> RunTrials:
    """Read the trials of a finished run from its result files.

    Args:
        folder: the output directory.

    Raises:
        RunUnreadable: a file is missing or damaged.
        UnsafeFile: a path is not a plain file.
    """
    summary = read_summary(folder)
    written = read_written(_Schedules, folder, SCHEDULES, RunUnreadable).schedules
    known = {row.id: row for row in written}
    if any(row.id not in known for row in summary.workloads):
        raise RunUnreadable(f"{SUMMARY} and {SCHEDULES} contain different layers; tune again")
    layers = [
        RunLayer(
            row.id, _name(known[row.id]), known[row.id].workload, known[row.id].names, row.count,
            row.figures,
        )
        for row in summary.workloads
    ]  # fmt: skip
    about = {name: str(getattr(summary, name)) for name in ("network", "target", "tuner", "seed")}
    return RunTrials(layers, _read_table(folder / TRIALS), about)


def ongoing_trials(run: RunFile, folder: Path) -> RunTrials:
    """Read the trials so far of a run that is not finished.

    Args:
        run: contents of `run.json`.
        folder: the output directory.

    Raises:
        RunUnreadable: an older version wrote `run.json`, without the keys of the run's trials.
        TrialStoreError: the database cannot be read.
        UnsafeFile: the database is not a plain file.
    """
    if "ledger" not in run:
        raise RunUnreadable("the run was started by an older version; repeat its command")
    layers = [
        RunLayer(
            row["id"], _name(_Schedule.model_validate(row)), row["workload"], row["names"],
            row.get("count", max(len(row["names"]), 1)),
        )
        for row in run["workloads"]
    ]  # fmt: skip
    ours, known = {tuple(item) for item in run["ledger"]}, {layer.id for layer in layers}
    try:
        with read_store(folder) as store:
            mine = [key for key in store.runs().values() if key[1:] in ours and key[0] in known]
            table = store.frame(mine)
    except FileNotFoundError:
        table = pd.DataFrame(columns=list(COLUMNS)).astype(_TYPES)
    network, target = run["network"]["name"], run["target"]["name"]
    about = {"network": network, "target": target, "tuner": run["tuner"], "seed": str(run["seed"])}
    return RunTrials(layers, table, about)


def _name(row: _Schedule) -> str:
    """Return the display name of a workload.

    Args:
        row: entry of the workload in a result file.

    Raises:
        RunUnreadable: the workload's text is invalid.
    """
    try:
        return layer(row.names, parse_workload(row.workload, row.epilogue))
    except (ValueError, TilewrightError) as error:
        raise RunUnreadable(f"workload {row.id} cannot be read: {error}") from None


def _read_table(path: Path) -> pd.DataFrame:
    try:
        file = parquet.ParquetFile(io.BytesIO(read_plain(path)))
        if refusal := TRIALS_FORMAT.refusal(path.name, _version(file)):
            raise RunUnreadable(refusal)
        # Ignore pandas' metadata in the file, which could specify any index and types.
        table: pd.DataFrame = file.read(columns=list(COLUMNS)).to_pandas(ignore_metadata=True)
        return table[list(COLUMNS)].astype(_TYPES)
    except RunUnreadable:
        raise
    except Exception as error:  # Arrow and pandas raise many types of exceptions
        raise RunUnreadable(f"cannot read {path.name}: {error}; tune again") from None


def _version(table: parquet.ParquetFile) -> Json:
    """Return the version of the format from the metadata of a Parquet file.

    Raises:
        ValueError: the version is not a number.
    """
    said = (table.schema_arrow.metadata or {}).get(TRIALS_FORMAT.key.encode())
    return TRIALS_FORMAT.unmarked if said is None else int(said[:40])
