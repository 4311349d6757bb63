"""Files in the output directory of a co-design run, and a check of which run they belong to.

The output directory contains these files:

    run.json          everything that determines the search (`identity`), written at the start
    front.json        the Pareto front, one machine per entry, by ascending area
    specs/NAME.json   specification of each machine on the front, in the format of `--target`
    trials.parquet    one row per measurement
    summary.json      the options, the effort and the result; written last
    front.html        a chart of the front, if it was requested
    trials.sqlite     the trials, from which the run resumes (`search.trial_store`)
    .tune             marks the folder as an output directory (`tuning.output_dir`)

Everything except for `run.json` and the trials is written at the end of the run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from tilewright.core.files import (
    Json,
    as_list,
    as_object,
    as_text,
    canonical,
    digest,
    read_json_file,
    remove,
    write_atomically,
)
from tilewright.core.formats import CODESIGN
from tilewright.hardware_search.options import CodesignOptions
from tilewright.targets.capabilities import specification_of
from tilewright.targets.registry import make_target
from tilewright.tuning.output_dir import check_folder, check_idle
from tilewright.tuning.run_metadata import FolderTaken, origin_of

RUN = "run.json"
FRONT = "front.json"
SPECS = "specs"
TRIALS = "trials.parquet"
SUMMARY = "summary.json"
PAGE = "front.html"
KIND = "codesign"
RESULTS = (SUMMARY, FRONT, TRIALS, PAGE)
_STEP = "choose another folder with --out, or delete its contents with --fresh"
_THESE = "choose another folder with --out, or delete these files with --fresh"
_MACHINE = re.compile(r"\w[\w.-]*")


def describe_search(options: CodesignOptions) -> dict[str, Json]:
    """Return everything that determines a co-design search, as JSON.

    The number of trials is not included, because a longer run can resume from the measurements of a
    shorter run.

    Args:
        options: options of the run.

    Returns:
        Networks, target, limits, method and seed, by name; also the objective if it is not
        "latency".
    """
    target = make_target(options.target)
    written = specification_of(target)
    result: dict[str, Json] = {
        "networks": [_network(network) for network in options.networks],
        "target": target.name if written is None else dict(written),
        "budget": options.budget,
        "bounds": {name: list(pair) for name, pair in sorted(options.bounds.items())},
        "clock": options.clock,
        "method": options.method,
        "method_options": dict(sorted(options.method_options.items())),
        "seed": options.seed,
    }
    if options.objective != "latency":
        result["objective"] = options.objective
    return result


def identity(options: CodesignOptions) -> str:
    """Return the name under which a search is stored: a digest of `describe_search`."""
    return f"codesign-{digest(canonical(describe_search(options)))[:24]}"


def check_vacant(options: CodesignOptions) -> None:
    """Check that the output directory can be used for a run.

    Args:
        options: options of the run.

    Raises:
        OutputError: the folder cannot be written.
        RunInUse: another command is working in the folder.
        FolderTaken: the folder contains another run, or files of unknown origin.
    """
    check_folder(options.folder)
    check_idle(options.folder)
    check_own_run(options)


def check_own_run(options: CodesignOptions) -> None:
    """Check that the output directory contains no results of another run.

    The option `fresh` skips the check. Files with other names are ignored.

    Args:
        options: options of the run.

    Raises:
        FolderTaken: the folder contains another run, or result files without a readable `run.json`,
            so that their origin is unknown.
    """
    folder = options.folder
    if options.fresh:
        return
    held = _read_run_file(folder)
    if held is not None:
        _refuse_another(options, held)
        return
    names = [name for name in (RUN, *RESULTS, SPECS) if os.path.lexists(folder / name)]
    if RUN in names:
        raise FolderTaken(
            f"{folder} contains a {RUN} that cannot be read, so it is unknown to which run "
            f"the results belong; {_THESE}"
        )
    if names:
        raise FolderTaken(
            f"{folder} contains {', '.join(names)} but no {RUN}, so it is unknown to which "
            f"run the results belong; {_THESE}"
        )


def begin_folder(options: CodesignOptions) -> None:
    """Write `run.json`, which marks the output directory as this run's, and remove the summary.

    If the run is resumed, `run.json` keeps the time at which it began. With the option `fresh`, all
    earlier results are removed, and the run begins now. The specifications of machines are then
    removed only if `run.json` belongs to a co-design run.

    Args:
        options: options of the run.

    Raises:
        OSError: a file cannot be written or removed.
    """
    folder = options.folder
    held = _read_run_file(folder)
    remove(folder / SUMMARY)
    if options.fresh:
        if held is not None and held.get("kind") == KIND:
            forget_specs(folder)
        held = None
        for name in RESULTS:
            remove(folder / name)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    if held is not None:
        begun = str(held.get("begun", begun))
    run: dict[str, Json] = {
        "version": CODESIGN.written,
        "kind": KIND,
        "identity": identity(options),
        "trials": options.trials,
        "begun": begun,
        **describe_search(options),
    }
    write_atomically(folder / RUN, pretty_json(run))


def forget_specs(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove the specification files of the machines that `front.json` lists.

    Other files are not touched.

    Args:
        folder: output directory of the run.
        kept: names of machines whose files are not removed.

    Raises:
        OSError: a file cannot be removed.
    """
    for name in _machines(folder):
        if name not in kept:
            remove(specification(folder, name))


def specification(folder: Path, name: str) -> Path:
    """Return the path of the specification file of a machine on the Pareto front.

    Args:
        folder: output directory of the run.
        name: name of the machine.

    Returns:
        The path; the file need not exist.
    """
    return folder / SPECS / f"{name}.json"


def pretty_json(document: Json) -> bytes:
    """Serialise a document as indented JSON."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _machines(folder: Path) -> list[str]:
    """Return the machine names in `front.json` that are valid file names.

    The result is empty if the file cannot be read.
    """
    try:
        rows = as_list(read_json_file(folder / FRONT))
        names = [as_text(as_object(row)["name"]) for row in rows]
    except (OSError, ValueError, KeyError):
        return []
    return [name for name in names if _MACHINE.fullmatch(name)]


def _network(text: str) -> dict[str, Json]:
    """Return the name of a network, and the digest of its content if it is a file.

    Args:
        text: the network, as the user wrote it.
    """
    result = origin_of(text)
    return {"name": result["name"], "digest": result["digest"]}


def _read_run_file(folder: Path) -> dict[str, Json] | None:
    """Return the content of `run.json` in an output directory, or None if it cannot be read."""
    try:
        return as_object(read_json_file(folder / RUN))
    except (OSError, ValueError):
        return None


def _refuse_another(options: CodesignOptions, held: dict[str, Json]) -> None:
    """Check that the run in an output directory is the run of the options.

    Args:
        options: options of the run.
        held: content of `run.json` in the output directory.

    Raises:
        FolderTaken: the directory contains other results. The message names the differences.
    """
    if held.get("kind") != KIND:
        raise FolderTaken(f"{options.folder} contains another kind of results (run.json); {_STEP}")
    if refusal := CODESIGN.refusal(options.folder / RUN, CODESIGN.version_in(held)):
        raise FolderTaken(refusal)
    ours = describe_search(options)
    differing = [name for name in ours if canonical(held.get(name)) != canonical(ours[name])]
    if differing:
        message = "; ".join(
            f"{_property_text(held, item)}, here {_property_text(ours, item)}" for item in differing
        )
        raise FolderTaken(f"{options.folder} contains another co-design run: {message}; {_STEP}")


def _property_text(run: dict[str, Json], name: str) -> str:
    """Return one property of a search as text for a message, such as "budget 0.5".

    Args:
        run: the search, as described by `describe_search`.
        name: name of the property.
    """
    value = run.get(name)
    if name == "networks" and isinstance(value, list):
        try:
            value = ", ".join(
                as_text(as_object(item)["name"])
                + f" ({as_text(as_object(item)['digest'])[:8]})" * bool(as_object(item)["digest"])
                for item in value
            )
        except (ValueError, KeyError):
            value = "of an unreadable kind"
    elif name == "target" and isinstance(value, dict):
        value = f"{value.get('name')} ({digest(canonical(value))[:8]})"
    text = value if isinstance(value, str) else canonical(value).decode()
    return f"{name.replace('_', ' ')} {text or 'none'}"
