"""Reads and writes `run.json`, which identifies the run in an output directory.

The file is written when a run begins, so that the results of another run are not overwritten. A
trial store can contain the trials of any number of runs, separated by workload, target and tuner,
but the other files contain the results of one run. An output directory therefore belongs to one
network on one target. Runs with a different tuner, seed or number of trials, shared or not, may use
the same directory. A different network or target is rejected. So is a selection of fewer layers
than the directory contains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    digest,
    read_json_file,
    remove,
    write_atomically,
)
from tilewright.core.formats import RUN as RUN_FORMAT
from tilewright.core.formats import SUMMARY as SUMMARY_FORMAT
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import RUN, SUMMARY

if TYPE_CHECKING:
    from tilewright.tuning.network import Subgraph
    from tilewright.tuning.tuning_task import TuningTask


class FolderTaken(TilewrightError):
    """The output directory contains the results of another run or of an unsupported version."""


class Origin(TypedDict):
    """Origin of a network or target, by which an output directory recognises it.

    Attributes:
        name: name of the network or target.
        place: path of its file; equal to `name` if it is not a file.
        digest: digest of the file's contents; "" if it is not a file.
    """

    name: str
    place: str
    digest: str


class WorkloadNames(TypedDict):
    """Entry of a workload in `run.json`.

    Attributes:
        id: ID of the workload.
        workload: text of the workload.
        epilogue: text of its epilogue, the operations on the result.
        names: names of the layers with this workload.
        count: number of calls per inference.
    """

    id: str
    workload: str
    epilogue: str
    names: list[str]
    count: NotRequired[int]


class RunFile(TypedDict):
    """Contents of `run.json`.

    Attributes:
        version: version of the format.
        network: the network.
        target: the target.
        layers: names of the layers that were requested; empty for the whole network.
        tuner: name of the tuner.
        seed: seed of the run.
        trials: number of trials per workload.
        begun: time of the start, in ISO format.
        workloads: workloads of the run.
        key: result of `run_key`.
        ledger: pairs of a target's fingerprint and a run ID, under which the trial store keeps the
            trials.
        epilogue: the option `--epilogue`.
        stop_gain: the option `--stop-gain`, if the workloads share their trials.
    """

    version: int
    network: Origin
    target: Origin
    layers: list[str]
    tuner: str
    seed: int
    trials: int
    begun: str
    workloads: list[WorkloadNames]
    key: NotRequired[str]
    ledger: NotRequired[list[list[str]]]
    epilogue: NotRequired[str]
    stop_gain: NotRequired[float]


def run_key(options: TuningOptions, tasks: Iterable[TuningTask]) -> str:
    """Compute a digest of everything that determines the results of a run.

    The digest covers the number of trials, the keys of the runs in the trial store, and the options
    for shared trials and fusion.

    Args:
        options: options of the run.
        tasks: tasks of the workloads.
    """
    runs = sorted(task.store_key for task in tasks)
    about: list[Json] = [options.trials, [list(run) for run in runs]]
    if options.stop_gain is not None:
        about.append(options.stop_gain)
    if options.fusion:
        about.append(options.fusion)
    return digest(canonical(about))[:24]


def read_run(folder: Path) -> RunFile | None:
    """Read `run.json` of an output directory.

    Args:
        folder: the output directory.

    Returns:
        The contents, or None if the file does not exist or cannot be read.

    Raises:
        FolderTaken: the file has an unsupported version.
        UnsafeFile: the path is not a plain file.
    """
    try:
        document = as_object(read_json_file(folder / RUN))
        version = RUN_FORMAT.version_in(document)
        if version is not None and (refusal := RUN_FORMAT.refusal(folder / RUN, version)):
            raise FolderTaken(refusal)
        return _run_files().validate_python(document, strict=True)
    except (OSError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=1)
def _run_files() -> TypeAdapter[RunFile]:
    return TypeAdapter(RunFile)


def is_complete(folder: Path) -> bool:
    """Return whether a folder contains the results of the run in its `run.json`.

    Args:
        folder: the output directory.

    Raises:
        FolderTaken: a file has an unsupported version.
        UnsafeFile: a path is not a plain file.
    """
    return _own_summary(folder) is not None


def trials_made(folder: Path) -> dict[str, int]:
    """Return the number of trials of each workload in the results of an output directory.

    Workloads whose tuning was cut short by a time limit are left out.

    Args:
        folder: the output directory.

    Returns:
        Number of trials by workload ID. Empty if there are no results, or if the results do not
        belong to the run in `run.json`.

    Raises:
        FolderTaken: a file has an unsupported version.
        UnsafeFile: a path is not a plain file.
    """
    try:
        rows = [as_object(row) for row in as_list((_own_summary(folder) or {})["workloads"])]
        return {
            as_text(row["id"]): as_int(row["trials"])
            for row in rows
            if not row.get("stopped_by_time")
        }
    except (KeyError, ValueError):
        return {}


def _own_summary(folder: Path) -> dict[str, Json] | None:
    held = read_run(folder)
    try:
        summary = as_object(read_json_file(folder / SUMMARY))
    except (OSError, ValueError):
        return None
    if held is None or summary.get("run_key") != held.get("key"):
        return None
    if refusal := SUMMARY_FORMAT.refusal(folder / SUMMARY, SUMMARY_FORMAT.version_in(summary)):
        raise FolderTaken(refusal)
    return summary


def check_vacant(options: TuningOptions) -> None:
    """Check that a run would not overwrite the results of another run.

    Args:
        options: options of the run.

    Raises:
        FolderTaken: the output directory contains the results of another network or target.
    """
    held = None if options.fresh else read_run(options.folder)
    if held is None:
        return
    problem = _foreign(options, held)
    if problem:
        raise FolderTaken(
            f"{options.folder} {problem}; it contains {_described(held, options.folder)}; "
            "choose another folder with --out, or delete its contents with --fresh"
        )


def replacement_note(options: TuningOptions) -> str | None:
    """Return a note for the user if this run replaces the results of a run with other settings.

    Args:
        options: options of the run.

    Returns:
        The note, or None if no results are replaced or the tuner and seed are the same.
    """
    held = None if options.fresh else read_run(options.folder)
    if held is None or not (options.folder / SUMMARY).is_file():
        return None
    if (held["tuner"], held["seed"]) == (options.tuner, options.seed):
        return None
    return (
        f"{options.folder} contains the results of tuner {held['tuner']} with seed "
        f"{held['seed']}. Its trials stay in the database, and its schedules are kept where "
        "they remain the best. The other files are replaced."
    )


def write_run(
    options: TuningOptions, subgraphs: Sequence[Subgraph], tasks: Sequence[TuningTask]
) -> None:
    """Write `run.json`, which identifies the run in the output directory.

    A resumed run keeps its start time. If the run differs from the previous run in the directory,
    the previous summary is deleted, because the new run is not complete yet.

    Args:
        options: options of the run.
        subgraphs: the workloads.
        tasks: tasks of the workloads, in the same order.

    Raises:
        OSError: the file cannot be written.
    """
    run: RunFile = {
        "version": RUN_FORMAT.written,
        "network": _network(options),
        "target": origin_of(options.target),
        "layers": list(options.layers),
        "tuner": options.tuner,
        "seed": options.seed,
        "trials": options.trials,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "workloads": [
            {
                "id": subgraph.workload.id,
                "workload": str(subgraph.workload),
                "epilogue": subgraph.workload.epilogue_text,
                "names": list(subgraph.names),
                "count": subgraph.count,
            }
            for subgraph in subgraphs
        ],
        "key": run_key(options, tasks),
        "ledger": [list(item) for item in sorted({task.store_key[1:] for task in tasks})],
        "epilogue": options.steps if options.workload else options.epilogue,
    }
    if options.stop_gain is not None:
        run["stop_gain"] = options.stop_gain
    held = None if options.fresh else read_run(options.folder)
    if held is not None and {**held, "begun": ""} == {**run, "begun": ""}:
        return
    remove(options.folder / SUMMARY)
    text = json.dumps(run, indent=2, ensure_ascii=False) + "\n"
    write_atomically(options.folder / RUN, text.encode())


def _foreign(options: TuningOptions, held: RunFile) -> str:
    """Check whether a folder belongs to another network or target, or has more layers.

    Args:
        options: options of the new run.
        held: contents of the folder's `run.json`.

    Returns:
        The reason why the new run must not use the folder, or "" if it may.
    """
    if not _same(held["network"], _network(options)):
        return f"belongs to another network than {options.subject}"
    if not _same(held["target"], origin_of(options.target)):
        return f"belongs to another target than {options.target}"
    if options.layers and not set(held["layers"] or ["all"]) <= set(options.layers):
        return "contains more layers than --layers selects"
    return ""


def _same(one: Origin, other: Origin) -> bool:
    """Return whether two origins denote the same network or target.

    This is the case if their paths are equal, or if their names and the contents of their files are
    equal.

    Args:
        one: one origin.
        other: the other origin.
    """
    if one["place"] == other["place"]:
        return True
    moved = one["digest"] == other["digest"] != ""
    return moved and one["name"] == other["name"]


def _network(options: TuningOptions) -> Origin:
    if options.workload:
        text = f"{options.workload}; {options.steps}"
        return {"name": options.workload, "place": text, "digest": ""}
    return origin_of(options.model)


def origin_of(text: str) -> Origin:
    """Return the origin of a network or target.

    Args:
        text: path of a file, or a name.

    Raises:
        OSError: the file cannot be read.
    """
    path = Path(text)
    if not path.is_file():
        return {"name": text, "place": text, "digest": ""}
    with path.open("rb") as file:
        result = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.stem, "place": str(path.resolve()), "digest": result}


def _described(held: RunFile, folder: Path) -> str:
    layers = f" ({', '.join(held['layers'])})" if held["layers"] else ""
    ended = "complete" if is_complete(folder) else "not finished"
    shared = " on average at most" if "stop_gain" in held else ""
    trials = f"{held['trials']} {'trial' if held['trials'] == 1 else 'trials'}"
    return (
        f"{held['network']['name']}{layers} on {held['target']['name']}, {trials} per "
        f"workload{shared} with tuner {held['tuner']}, started {_date(held['begun'])}, {ended}"
    )


def _date(text: str) -> str:
    """Format an ISO time as `2026-11-22 06:49 UTC`."""
    return f"{text[:16].replace('T', ' ')} UTC"
