"""The folder of a co-design run: its files, and whose it is.

run.json          what decides which search this is (`identity`), written when it begins
front.json        the front, a machine each, by ascending area
specs/NAME.json   each machine of it, as `--target` takes it
trials.parquet    one row a measurement
summary.json      what was asked, what it took, what came of it; written last
front.html        the front to look at, where somebody draws it
trials.ledger     the record the run resumes from (`search.ledger`)
.tune             what the folder is known by (`tuning.folders`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from codesign.options import CodesignOptions
from search.lease import LeaseHeld, writer
from targets.capabilities import HasSpecification, capability
from targets.files import (
    Json,
    as_object,
    as_text,
    canonical,
    digest,
    read_json,
    remove,
    write_atomically,
)
from targets.registry import make_target
from targets.safe_files import read_plain
from tuning.folders import check_files, check_folder, held_by_command
from tuning.run_file import FolderTaken, origin_of

RUN = "run.json"
FRONT = "front.json"
SPECS = "specs"
TRIALS = "trials.parquet"
SUMMARY = "summary.json"
PAGE = "front.html"
LEDGER = "trials.ledger"
VERSION, KIND = 1, "codesign"
RESULTS = (SUMMARY, FRONT, TRIALS, PAGE)


def about(options: CodesignOptions) -> dict[str, Json]:
    """All that decides what is searched. The number of trials does not: a longer run goes on with
    what a shorter one has measured."""
    target = make_target(options.target)
    written = capability(target, HasSpecification)
    return {
        "networks": [_network(each) for each in options.networks],
        "target": target.name if written is None else dict(written.specification),
        "budget": options.budget,
        "bounds": {name: list(pair) for name, pair in sorted(options.bounds.items())},
        "clock": options.clock,
        "method": options.method,
        "method_options": dict(sorted(options.method_options.items())),
        "seed": options.seed,
    }


def identity(options: CodesignOptions) -> str:
    """What the ledger files a search's trials under: a digest of `about`."""
    return f"codesign-{digest(canonical(about(options)))[:24]}"


def check_vacant(options: CodesignOptions) -> None:
    """Raises `OutputError` for a folder that cannot be written, `UnsafeFile` for links among its
    files, `LeaseHeld` while another command is at work there, and `FolderTaken` if it holds another
    run and nothing says to start over."""
    folder = options.folder
    check_folder(folder)
    check_files(folder, (RUN, *RESULTS), LEDGER)
    if command := writer(held_by_command(folder)) or writer(folder / LEDGER):
        raise LeaseHeld(
            f"{folder} is being written by {command}; wait for it to end, or choose another folder "
            "with --out"
        )
    check_own_run(options)


def check_own_run(options: CodesignOptions) -> None:
    """Raises `FolderTaken` if a folder holds another run and nothing says to start over."""
    held = None if options.fresh else _held(options.folder)
    if held is not None:
        _refuse_another(options, held)


def begin(options: CodesignOptions) -> None:
    """Say whose folder it is from now on; what an earlier command left there is not complete any
    more. Raises `UnsafeFile` and `OSError`."""
    folder = options.folder
    for name in RESULTS if options.fresh else (SUMMARY,):
        remove(folder / name)
    held = None if options.fresh else _held(folder)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    if held is not None:
        begun = str(held.get("begun", begun))
    run: dict[str, Json] = {
        "version": VERSION,
        "kind": KIND,
        "identity": identity(options),
        "trials": options.trials,
        "begun": begun,
        **about(options),
    }
    write_atomically(folder / RUN, pretty(run))


def keep_specs(folder: Path, files: dict[str, bytes]) -> None:
    """Write the specifications by name, and remove those of an earlier front. Raises `UnsafeFile`
    and `OSError`."""
    place = folder / SPECS
    for stale in _stale(place, files):
        remove(stale)
    for name, data in files.items():
        write_atomically(place / name, data, within=folder)


def pretty(document: Json) -> bytes:
    """JSON to read."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _stale(place: Path, files: Iterable[str]) -> list[Path]:
    known = set(files)
    if not place.is_dir():
        return []
    return [each for each in sorted(place.glob("*.json")) if each.name not in known]


def _network(text: str) -> dict[str, Json]:
    """A built-in network is its name; a file its name and content, wherever it is."""
    found = origin_of(text)
    return {"name": found["name"], "digest": found["digest"]}


def _held(folder: Path) -> dict[str, Json] | None:
    """What `run.json` says; None where there is none that can be read."""
    try:
        return as_object(read_json(read_plain(folder / RUN)))
    except (OSError, ValueError, RecursionError):
        return None


def _refuse_another(options: CodesignOptions, held: dict[str, Json]) -> None:
    step = "choose another folder with --out, or replace all it holds with --fresh"
    if held.get("kind") != KIND or held.get("version") != VERSION:
        raise FolderTaken(f"{options.folder} holds another kind of results (run.json); {step}")
    ours = about(options)
    differing = [name for name in ours if canonical(held.get(name)) != canonical(ours[name])]
    if differing:
        said = "; ".join(f"{_said(held, each)}, here {_said(ours, each)}" for each in differing)
        raise FolderTaken(f"{options.folder} holds another co-design run: {said}; {step}")


def _said(run: dict[str, Json], name: str) -> str:
    """A part of `about` in a line: `budget 0.5`."""
    value = run.get(name)
    if name == "networks" and isinstance(value, list):
        try:
            value = ", ".join(
                as_text(as_object(each)["name"])
                + f" ({as_text(as_object(each)['digest'])[:8]})" * bool(as_object(each)["digest"])
                for each in value
            )
        except (ValueError, KeyError):
            value = "of a kind that cannot be read"
    elif name == "target" and isinstance(value, dict):
        value = f"{value.get('name')} ({digest(canonical(value))[:8]})"
    text = value if isinstance(value, str) else canonical(value).decode()
    return f"{name.replace('_', ' ')} {text or 'none'}"
