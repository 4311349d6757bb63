"""Lists the runs of a workspace for the start page.

The list contains the runs that MLflow tracks, the runs in output directories that MLflow does not
track, and the runs that failed in Prefect before they reached MLflow.

Reading a thousand runs from MLflow takes seconds. All runs are therefore read only occasionally. In
between, only the runs that began or changed since then are read.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from mlflow.entities import LifecycleStage, Run
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, digest
from tilewright.dashboard.flow_runs import FailedFlowRun, FlowRuns, FlowRunsUnavailable
from tilewright.evaluation.compare.leaderboard import Leaderboard
from tilewright.evaluation.compare.record import FILES, read_leaderboards
from tilewright.services.page_addresses import flow_run_url, mlflow_run_url
from tilewright.services.workspace import Workspace
from tilewright.tasks.runs_table import (
    FOLDER_TAG,
    REGRESSION_TAG,
    WATCH_TAG,
    network_runs,
    row_of,
    tracking_client,
)
from tilewright.tuning.gains import FALLBACK, FIGURES, RULE, FourFigures
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import RUN, SCHEDULES, SUMMARY, TRIALS, at_work
from tilewright.tuning.results import seconds_of
from tilewright.tuning.run_figures import milliseconds_of
from tilewright.tuning.run_metadata import RunFile, is_complete, read_run
from tilewright.tuning.run_trials import (
    RunSummary,
    RunTrials,
    RunUnreadable,
    finished_trials,
    ongoing_trials,
    read_summary,
)

RUNNING, FINISHED, FAILED, STOPPED = "running", "finished", "failed", "stopped"
_STATES = {"FINISHED": FINISHED, "FAILED": FAILED, "RUNNING": RUNNING}
DEPTH, MOST_FOLDERS = 3, 2000
"""Limits of the search for output directories: the depth of subfolders, and the number of
folders."""
SHARE = 50
"""Minimum interval between two readings of the runs, as a multiple of the time that a reading
takes."""
OVERLAP_MS = 10_000
"""Milliseconds by which two readings overlap: runs that began up to this long before the last
reading are read again, because the clocks of machines differ."""
MOST_KEPT = 64
"""Maximum number of runs whose trials are kept in memory."""

_COMMAND = re.compile(r"```sh\n(.*?)\n```", re.DOTALL)
"""Matches the command in the description of a run."""
FIGURE_KEYS = (*(f"{name}_ms" for name in FIGURES), "gain", "gain_over_fallback")
"""Keys of the figures that the page shows for a run and for a layer: latencies in milliseconds, and
the gains over the rule schedule and over the fallback."""

T = TypeVar("T")


@dataclass(frozen=True)
class ListedRun:
    """A tuning run in the list of the start page.

    Attributes:
        row: latencies, settings and links of the run, as the page shows them.
        folder: output directory of the run; None if it is unknown.
    """

    row: Mapping[str, Json]
    folder: Path | None

    @property
    def id(self) -> str:
        """MLflow's ID of the run. An untracked run has an ID made from its folder or flow run."""
        return str(self.row["id"])


@dataclass(frozen=True)
class ListedComparison:
    """A comparison of tuners in the list of the start page.

    Attributes:
        folder: output directory of the comparison.
        leaderboards: one leaderboard per subject and target.
    """

    folder: Path
    leaderboards: tuple[Leaderboard, ...]


class ThrottledValue(Generic[T]):
    """A cached value that is read again at most once per interval.

    The interval is at least a second. It grows with the time that reading the value takes.

    Args:
        read: function that reads the value.
        share: minimum interval between two readings, as a multiple of the time that a reading
            takes; `SHARE` by default.

    Attributes:
        value: the cached value. It does not exist before the first call of `refresh`.
    """

    def __init__(self, read: Callable[[], T], share: float | None = None) -> None:
        self._read, self._share, self._due = read, share, -math.inf
        self.value: T

    def expire(self) -> None:
        """Let the next call of `refresh` read the value, even if the interval has not passed."""
        self._due = -math.inf

    def refresh(self) -> bool:
        """Read the value again if the interval has passed. Return whether it was read."""
        begin = time.monotonic()
        if begin < self._due:
            return False
        self.value = self._read()
        end = time.monotonic()
        share = SHARE if self._share is None else self._share
        self._due = end + max(1.0, share * (end - begin))
        return True


class KnownRuns:
    """The runs that the start page shows. All methods may be called from any thread.

    These are the runs that MLflow tracks in the workspace, the runs in output directories below
    `start`, and the failed runs in Prefect that MLflow does not track.

    Args:
        workspace: the workspace.
        start: folder below which output directories are searched.
        flow_runs: the flow runs on the Prefect server; None if no server is known.
    """

    def __init__(
        self, workspace: Workspace, start: Path, flow_runs: FlowRuns | None = None
    ) -> None:
        self.workspace, self.start, self.flow_runs = workspace, start, flow_runs
        self._turn = threading.RLock()
        self._tracked = TrackedRuns(workspace)
        self._folders = ThrottledValue(lambda: list(output_folders(start)))
        self._compared = ThrottledValue(lambda: list(comparisons(start)))
        # A starting server answers late. Waiting takes no processor time, so it may be frequent.
        self._failed = ThrottledValue(self._read_failed, share=1)
        self._kept: dict[str, RunTrials] = {}

    @property
    def client(self) -> MlflowClient | None:
        """MLflow's client; None before the first call of `runs`, or if MLflow has no database."""
        return self._tracked.client

    def runs(self) -> list[ListedRun]:
        """Return all runs, latest first.

        Raises:
            MlflowException: MLflow does not answer.
        """
        with self._turn:
            tracked = self._tracked.runs()
            self._folders.refresh()
            known = {_settings(item) for item in tracked}
            ids = {item.id for item in tracked}
            beside = [run for item in self._folders.value if (run := folder_run(item, ids))]
            beside = [item for item in beside if _settings(item) not in known]
            self._failed.refresh()
            runs = [*merge_failed(tracked, self._failed.value), *beside]
            return sorted(runs, key=lambda item: str(item.row["began"]), reverse=True)

    def comparisons(self) -> list[ListedComparison]:
        """Return the finished comparisons of tuners in output directories below `start`."""
        with self._turn:
            self._compared.refresh()
            return self._compared.value

    def find(self, run_id: str) -> ListedRun:
        """Return the run with an ID.

        Args:
            run_id: ID of the run.

        Raises:
            RunUnreadable: no run has this ID.
            MlflowException: MLflow does not answer.
        """
        run = next((item for item in self.runs() if item.id == run_id), None)
        if run is None:
            raise RunUnreadable("the run does not exist; it may have been deleted")
        return run

    def forget(self, run: ListedRun) -> None:
        """Remove a deleted run from the list. The next call of `runs` reads the changed data.

        Args:
            run: the run, whose records were already deleted.
        """
        with self._turn:
            self._kept.pop(run.id, None)
            self._tracked.forget(run.id)
            self._folders.expire()
            self._failed.expire()

    def _read_failed(self) -> list[FailedFlowRun]:
        with suppress(FlowRunsUnavailable):
            return [] if self.flow_runs is None else self.flow_runs.failed()
        return []

    def trials(self, run: ListedRun) -> RunTrials:
        """Return the trials of a run. The trials of an ended run are cached.

        Args:
            run: the run.

        Raises:
            RunUnreadable: the trials are missing or damaged.
            UnsafeFile: a path is not a regular file.
            OSError: a file cannot be read.
            MlflowException: MLflow does not answer.
        """
        with self._turn:
            if (kept := self._kept.get(run.id)) is not None:
                return kept
            ended = run.row["state"] == FINISHED or run.row["watch"] is not None
            if not run.row["tracked"] and run.folder is None:
                raise RunUnreadable("the run failed before its first trial")
            result = self._trials_of_ended(run) if ended else self._trials_of_ongoing(run)
            if ended:
                self._kept[run.id] = result
                if len(self._kept) > MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
            return result

    def _trials_of_ended(self, run: ListedRun) -> RunTrials:
        client = self._tracked.client
        if not run.row["tracked"] or client is None:
            assert run.folder is not None, "a run is somewhere"
            return finished_trials(run.folder)
        with tempfile.TemporaryDirectory() as folder:
            for name in (SUMMARY, SCHEDULES, TRIALS):
                client.download_artifacts(run.id, name, folder)
            return finished_trials(Path(folder))

    def _trials_of_ongoing(self, run: ListedRun) -> RunTrials:
        held = None if run.folder is None else read_run(run.folder)
        if run.folder is None or held is None or settings_of(held) != settings_of(run.row):
            raise RunUnreadable("the output directory was removed or now contains another run")
        return ongoing_trials(held, run.folder)


class TrackedRuns:
    """The tuning runs that MLflow tracks in a workspace, which are cached between calls.

    Args:
        workspace: the workspace.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.client: MlflowClient | None = None
        self._workspace = workspace
        self._all = ThrottledValue(self._read)
        self._looked = 0.0

    def runs(self) -> list[ListedRun]:
        """Return the runs that are not deleted. The list is empty if MLflow has no database yet.

        Runs that were not written by this program are left out. A deletion by another program may
        show with a delay.

        Raises:
            MlflowException: MLflow does not answer.
        """
        self.client = self.client or tracking_client(self._workspace)
        if self.client is None:
            return []
        now = time.time() * 1000
        if not self._all.refresh():
            self._renew_some(self.client)
        self._looked = now
        active = [
            run
            for run in self._all.value.values()
            if run.info.lifecycle_stage == LifecycleStage.ACTIVE
        ]
        return list(tracked_runs(active))

    def forget(self, run_id: str) -> None:
        """Remove a deleted run from the cached runs."""
        if self.client is not None:
            self._all.value.pop(run_id, None)

    def _read(self) -> dict[str, Run]:
        assert self.client is not None, "runs() made one"
        return {run.info.run_id: run for run in network_runs(self.client)}

    def _renew_some(self, client: MlflowClient) -> None:
        since = int(self._looked - OVERLAP_MS)
        changed = {
            run.info.run_id: run
            for also in (f"attributes.start_time >= {since}", "attributes.status = 'RUNNING'")
            for run in network_runs(client, also)
        }
        for run_id, run in self._all.value.items():
            if run.info.status == "RUNNING" and run_id not in changed:
                changed[run_id] = client.get_run(run_id)
        self._all.value |= changed


def tracked_runs(runs: Iterable[Run]) -> Iterator[ListedRun]:
    """Convert MLflow runs to runs of the start page. Skip runs that another program has written.

    Args:
        runs: the MLflow runs.

    Yields:
        The runs of the start page, in the same order.
    """
    mlflow, prefect = mlflow_run_url("EXPERIMENT", "RUN"), flow_run_url("RUN")
    for run in runs:
        experiment, run_id = run.info.experiment_id, run.info.run_id
        flow_run = run.data.tags.get("prefect_flow_run_id")
        links = {
            "mlflow": mlflow.replace("EXPERIMENT", experiment).replace("RUN", run_id),
            "prefect": flow_run and prefect.replace("RUN", flow_run),
            "flow_run": flow_run,
        }
        with suppress(ValueError, OverflowError, OSError):
            yield _tracked_run(run, links)


def _tracked_run(run: Run, links: Mapping[str, str | None]) -> ListedRun:
    row = dict(row_of(run))
    params, tags = run.data.params, run.data.tags
    figures = {
        name: None if math.isnan(value := float(str(row[name]))) else value for name in FIGURE_KEYS
    }
    folder = Path(tags[FOLDER_TAG]) if FOLDER_TAG in tags else None
    state = _STATES.get(str(row["status"]), STOPPED)
    if state == RUNNING and folder is not None and folder.is_dir() and _has_no_owner(folder):
        state = STOPPED
    if state == FINISHED and REGRESSION_TAG in tags:
        state = FAILED  # as in Prefect
    command = _COMMAND.search(tags.get(MLFLOW_RUN_NOTE, ""))
    return ListedRun(
        _row(
            run.info.run_id, str(row["network"]), params.get("epilogue", ""),
            params.get("layers", ""), tracked=True, state=state, began=str(row["began"]),
            **figures, **links, watch=tags.get(WATCH_TAG),
            command=None if command is None else command[1], settings=dict(sorted(params.items())),
            **{name: row[name] for name in ("target", "tuner", "seed", "trials", "seconds")},
        ),
        folder,
    )  # fmt: skip


def merge_failed(
    tracked: Iterable[ListedRun], failed: Iterable[FailedFlowRun]
) -> Iterator[ListedRun]:
    """Yield tracked runs and failed flow runs, with the states that Prefect shows.

    A tracked run that failed in Prefect gets Prefect's state and message. A failed flow run without
    a tracked run failed before it reached MLflow. It becomes a run of its own.

    Args:
        tracked: runs that MLflow tracks.
        failed: failed flow runs in Prefect.
    """
    by_id = {each.id: each for each in failed}
    for run in tracked:
        found = by_id.pop(str(run.row["flow_run"]), None)
        if found is None:
            yield run
        else:
            yield replace(run, row={**run.row, "state": found.state, "message": found.message})
    prefect = flow_run_url("RUN")
    for found in by_id.values():
        with suppress(ValueError, OverflowError):
            yield _failed_run(found, prefect.replace("RUN", found.id))


def _failed_run(run: FailedFlowRun, link: str) -> ListedRun:
    """Convert a failed flow run that has no run in MLflow to a run of the start page.

    Args:
        run: the flow run.
        link: address of its page in Prefect.

    Raises:
        ValueError: a number or the date of the flow run cannot be parsed.
    """
    given = {
        name: run.parameters.get(name, None if field.is_required() else field.get_default())
        for name, field in TuningOptions.model_fields.items()
    }
    named = str(given["model"] or given["workload"])
    layers = given["layers"]
    command = None
    with suppress(TilewrightError, ValueError, TypeError):
        command = TuningOptions.parse(**given).command_line("tune")
    began = datetime.fromisoformat(run.began).astimezone(UTC)
    return ListedRun(
        _row(
            f"flow-{run.id}", Path(named).stem or named, str(given["epilogue"]),
            ",".join(map(str, layers)) if isinstance(layers, list | tuple) else "",
            tracked=False, state=run.state, began=str(began), flow_run=run.id, prefect=link,
            message=run.message, command=command, target=str(given["target"]),
            tuner=str(given["tuner"]), seed=int(str(given["seed"])),
            trials=int(str(given["trials"])),
            settings={k: str(v) for k, v in sorted(run.parameters.items()) if v not in (None, "")},
        ),
        None,
    )  # fmt: skip


def figures_row(figures: FourFigures) -> dict[str, Json]:
    """Return the latencies in milliseconds and the gains of a run or a layer, as entries of a row.

    Args:
        figures: latencies of the fallback, the rule schedule, the tuned schedule and the bound.

    Returns:
        Numbers by their names in `FIGURE_KEYS`; None if unknown.
    """
    row = {f"{name}_ms": milliseconds_of(seconds_of(getattr(figures, name))) for name in FIGURES}
    return {
        **row,
        "gain": figures.gain_over(RULE),
        "gain_over_fallback": figures.gain_over(FALLBACK),
    }


# -- runs without MLflow -------------------------------------------------------------------------


def output_folders(start: Path, names: Collection[str] = (RUN,)) -> Iterator[Path]:
    """Yield the output directories below a folder. Links and hidden folders are not followed.

    Args:
        start: folder at which the search begins.
        names: names of files. A folder that contains at least one of them is an output directory.
    """
    level, looked = [start], 0
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            looked += 1
            if looked > MOST_FOLDERS:
                return
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            if any(entry.name in names for entry in entries):
                yield folder
            below += [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
        level = below


def comparisons(start: Path) -> Iterator[ListedComparison]:
    """Yield the finished comparisons of tuners in folders below `start`. Skip unreadable ones."""
    for folder in output_folders(start, FILES):
        stamps = tuple(_stamp(folder / name) for name in FILES)
        with suppress(OSError, TilewrightError):
            yield ListedComparison(folder, _read_comparison(folder, stamps))


@lru_cache(maxsize=256)
def _read_comparison(folder: Path, stamps: object) -> tuple[Leaderboard, ...]:
    """Read the leaderboards of a comparison, with a cache.

    Args:
        folder: output directory of the comparison.
        stamps: inode, size and modification time of the files. They are part of the cache's key, so
            that changed files are read again.
    """
    return read_leaderboards(folder)


def folder_run(folder: Path, tracked: set[str]) -> ListedRun | None:
    """Return the run in an output directory, for the start page's list.

    Args:
        folder: output directory.
        tracked: IDs of the runs that MLflow tracks.

    Returns:
        The run. None if the folder contains no readable run, or a run that MLflow tracks.
    """
    try:
        states = tuple(_stamp(folder / name) for name in (RUN, SUMMARY))
        held, summary, command = _read_folder(folder, states)
    except (OSError, TilewrightError):
        return None
    if held is None or (summary is not None and summary.mlflow_run_id in tracked):
        return None
    figures: dict[str, Json] = {}
    if summary is not None:
        figures = {
            **figures_row(summary.figures), "seconds": summary.wall_seconds,
            "settings": {"space": summary.space, "batch": str(summary.batch)},
        }  # fmt: skip
    state = FINISHED if summary is not None else STOPPED if _has_no_owner(folder) else RUNNING
    return ListedRun(
        _row(
            f"folder-{digest(os.fsencode(folder))[:16]}", held["network"]["name"],
            held.get("epilogue", ""), ",".join(held["layers"]), tracked=False, state=state,
            began=held["begun"].replace("T", " "), target=held["target"]["name"],
            tuner=held["tuner"], seed=held["seed"], trials=held["trials"], command=command,
            **figures,
        ),
        folder,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _read_folder(
    folder: Path, states: object
) -> tuple[RunFile | None, RunSummary | None, str | None]:
    """Read `run.json` and `summary.json` of an output directory, with a cache.

    Args:
        folder: output directory.
        states: inode, size and modification time of the files. They are part of the cache's key, so
            that changed files are read again.

    Returns:
        The content of both files, and the command that repeats the run. Unknown values are None.
    """
    held = read_run(folder)
    if held is None or not is_complete(folder):
        return held, None, None
    summary = read_summary(folder)
    with suppress(TilewrightError, ValueError):
        return held, summary, _command(folder, held, summary)
    return held, summary, None


def _command(folder: Path, held: RunFile, summary: RunSummary) -> str:
    """Return the command that repeats an untracked run.

    Args:
        folder: output directory of the run.
        held: content of `run.json`.
        summary: content of `summary.json`.

    Raises:
        TilewrightError: an option of the run is no longer valid.
    """
    network = held["network"]
    alone = network["place"].startswith(f"{network['name']}; ")  # a workload with its epilogue
    options = TuningOptions.parse(
        **{"workload" if alone else "model": network["name"] if alone else network["place"]},
        target=held["target"]["place"], tuner=held["tuner"], seed=held["seed"],
        trials=held["trials"], stop_gain=held.get("stop_gain"), out=str(folder),
        layers=tuple(held["layers"]), epilogue=held.get("epilogue") or "network",
        space=summary.space, batch=summary.batch, tuner_options=summary.tuner_options,
        warm_start=summary.warm_start,
    )  # fmt: skip
    return f"{options.command_line('tune')} --bare"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        result = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return result.st_ino, result.st_size, result.st_mtime_ns


def _has_no_owner(folder: Path) -> bool:
    """Return whether an output directory is abandoned: no process is working on it."""
    try:
        return at_work(folder) is None
    except (OSError, TilewrightError):
        return True


def _row(
    run_id: str, network: str, epilogue: str, layers: str, **about: object
) -> Mapping[str, Json]:
    """Return a run as a row of the start page's list. Unknown entries are None.

    The entry `question` describes what is tuned. Runs with the same question are comparable.

    Args:
        run_id: ID of the run.
        network: name of the network.
        epilogue: option `--epilogue` of the run.
        layers: option `--layers` of the run, comma-separated names.
        about: other entries of the row.
    """
    part = f" ({layers})" if layers else ""
    behind = f", epilogue {epilogue}" if epilogue not in ("", "network") else ""
    empty = dict.fromkeys((*FIGURE_KEYS, "seconds", "mlflow", "prefect", "watch", "command",
                           "flow_run", "message"))  # fmt: skip
    return empty | {"settings": {}} | {
        "id": run_id, "network": network + part, **about,
        "question": f"{network}{part} on {about['target']}{behind}",
    }  # fmt: skip


def settings_of(run: Mapping[str, object]) -> tuple[object, ...]:
    """Return the tuner, seed and number of trials of a run.

    Args:
        run: row of the start page's list, or content of a `run.json`.
    """
    return run["tuner"], run["seed"], run["trials"]


def _settings(run: ListedRun) -> tuple[object, ...]:
    return (run.folder, *settings_of(run.row))
