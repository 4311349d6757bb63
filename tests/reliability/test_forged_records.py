"""Checks that impossible records with valid checks are set aside in one message, the rest used."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.cli.app import app
from tilewright.evaluation.explain.folder import read_folder
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import Ledger, read
from tilewright.search.ledger_schema import MAX_LINE_BYTES, decode, encode
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.workload import parse_workload
from tilewright.tuning.events import Event, Note

pytestmark = pytest.mark.attack

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
TRIALS, BATCH = 20, 4
RUN: dict[str, Any] = {"model": "digits_cnn", "tuner": "random", "trials": 4, "batch": 2, "seed": 3}


def forged(record: dict[str, Any] | str) -> bytes:
    """A line with a valid check, whatever it says."""
    body = (
        record if isinstance(record, str) else json.dumps(record, separators=(",", ":"))
    ).encode("utf-8", "surrogatepass")
    check = hashlib.blake2b(body, digest_size=8).hexdigest().encode()
    return b'{"check":"' + check + b'","record":' + body + b"}\n"


def made(path: Path) -> bytes:
    with Ledger(path) as ledger:
        explorer = make_explorer("random", {})
        for _ in tune(FaultyTarget({}), WORK, explorer, trials=TRIALS, batch=BATCH, ledger=ledger):
            pass
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(tmp_path_factory.mktemp("whole") / "ledger.jsonl")


HUGE = "9" * 400
ABSURD: dict[str, dict[str, Any]] = {
    "cycles 0": {"cycles": 0},
    "negative cycles": {"cycles": -5},
    "cycles beyond any clock": {"cycles": 10**30},
    "cycles that are true": {"cycles": True},
    "no time at all": {"seconds": None},
    "a round beyond counting": {"round": 10**30},
    "a negative round": {"round": -1},
    "a slot beyond counting": {"slot": 10**9},
    "a config below its range": {"config": [-1, 0]},
    "an empty config": {"config": []},
    "a status nobody knows": {"status": "fine"},
    "a failure with a latency": {"status": "run_error"},
    "half a character": {"reason": "\udc80"},
    "half a character in a name": {"knobs": {"\ud800": 1}},
    "an endless reason": {"reason": "x" * 30_000},
    "repeats that never end": {"repeats": [float("inf")]},
    "a field nobody knows": {"\x1b[2J": 1},
}


@pytest.mark.parametrize("what", ABSURD)
@pytest.mark.slow(seconds=0.5)
def test_a_trial_with_absurd_fields_is_set_aside_told_once_and_measured_again(
    what: str, tmp_path: Path, whole: bytes
) -> None:
    path, lines = tmp_path / "ledger.jsonl", whole.split(b"\n")
    record = json.loads(lines[7])["record"] | ABSURD[what]
    lines[7] = forged(record)[:-1]
    path.write_bytes(b"\n".join(lines))
    problems = read(path).problems
    assert len(problems) == 1
    assert problems[0].startswith("ledger.jsonl, line 8: ")
    assert problems[0].isprintable()
    assert len(read(path).frame()) == TRIALS - 1
    assert sorted(made(path).split(b"\n")) == sorted(whole.split(b"\n"))
    assert (tmp_path / "ledger.jsonl.quarantine").read_bytes() == lines[7] + b"\n"
    assert read(path).problems == []


@pytest.mark.parametrize(
    "body",
    [
        '{"kind":"trial","seconds":1e400}',
        '{"kind":"trial","cycles":' + HUGE * 20 + "}",  # more digits than Python converts
        '{"kind":"round","round":' + HUGE + "}",
        "[" * 100_000,
        '{"kind":' * 50_000,
        '{"kind":"trial","seconds":NaN}',
        '{"kind":{"kind":[]}}',
        '{"kind":"verdict"}',
        '{"kind":"claim","run":"r","workload":"w","target":"t","claim":"c","configs":[],"x":1e999}',
        '{"kind":"claim","run":"r","workload":"w","target":"t","claim":"c","configs":[],"x":[[]]}',
        "null",
        '"\\ud800"',
    ],
)
def test_a_body_that_is_no_record_is_set_aside(body: str, tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole + forged(body))
    assert len(read(path).problems) == 1
    assert made(path) == whole


@pytest.mark.slow(seconds=3)
def test_a_round_that_claims_a_thousand_million_trials_costs_no_memory(
    tmp_path: Path, whole: bytes
) -> None:
    """Under a limit that a list of them would break."""
    lines = whole.split(b"\n")
    closing = json.loads(lines[BATCH])["record"]
    paths = []
    for count in (10**9, 10**6, 0, -1):  # the second is within bounds, and more than there are
        lines[BATCH] = forged(closing | {"trials": count})[:-1]
        paths.append(tmp_path / f"{count}.jsonl")
        paths[-1].write_bytes(b"\n".join(lines))
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from tests.reliability.test_forged_records import made\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))\n"
        "for path in sys.argv[1:]:\n    made(Path(path))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths)], capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for path in paths:
        assert len(read(path).frame()) == TRIALS


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    "change", [{"configs": [["x"]] * 500_000}, {"knobs": {str(k): "x" for k in range(500_000)}}]
)
def test_a_record_that_is_wrong_everywhere_costs_no_memory(change: dict[str, Any]) -> None:
    """An error a value would be gigabytes."""
    filed = {"kind": "claim" if "configs" in change else "trial", "run": "r", "workload": "w"}
    line = forged(filed | {"target": "t", "claim": "c"} | change)[:-1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decode(line).problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_gigantic_line_is_set_aside(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole + forged('"' + "x" * MAX_LINE_BYTES + '"'))
    assert read(path).problems == ["ledger.jsonl, line 26: longer than 16 MiB, set aside"]


@pytest.mark.parametrize(
    "change",
    [
        {"config": [10**6, 0]},
        {"config": [0]},
        {"config": [0] * 40},
        {"knobs": {"tile": 77}},
        {"cycles": -1},  # while all others are counted
    ],
)
def test_a_trial_that_its_space_does_not_know_is_set_aside_on_resume(
    change: dict[str, Any], tmp_path: Path, whole: bytes
) -> None:
    path, lines = tmp_path / "ledger.jsonl", whole.split(b"\n")
    trials = [place for place, line in enumerate(lines) if b'"status":"valid"' in line]
    lines[trials[3]] = forged(json.loads(lines[trials[3]])["record"] | change)[:-1]
    path.write_bytes(b"\n".join(lines))
    assert read(path).problems == []
    assert sorted(made(path).split(b"\n")) == sorted(whole.split(b"\n"))
    assert (tmp_path / "ledger.jsonl.quarantine").read_bytes() == lines[trials[3]] + b"\n"


def test_many_lines_are_told_in_few(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole + forged({"kind": "trial"}) * 500)
    problems = read(path).problems
    assert len(problems) == 6
    assert problems[-1] == "ledger.jsonl: 495 more lines like these, set aside"


def test_readers_tell_of_it_and_go_on(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    path = out / "ledger.jsonl"
    lines = path.read_bytes().split(b"\n")
    records = [json.loads(line)["record"] for line in lines[:-1]]
    later = [place for place, record in enumerate(records) if record["round"] == 1]
    lines[later[0]] = forged(records[later[0]] | {"cycles": 0})[:-1]
    lines[later[-2]] = forged(records[later[-2]] | {"config": [10**6] * 9})[:-1]
    path.write_bytes(b"\n".join(lines))
    before = path.read_bytes()
    shown = CliRunner().invoke(app, ["trials", str(out)])
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.count("note: ledger.jsonl, line ") == 1
    folder = read_folder(out)
    number = len(folder.workloads)
    assert f"{number * RUN['trials'] - 1} trials of {number} workloads" in shown.stdout
    held = [sum(len(done.configs) for done in folder.rounds(work)) for work in folder.workloads]
    assert sorted(held) == [2, 2] + [4] * (number - 2)
    assert len(folder.problems) == 2
    assert path.read_bytes() == before


# -- forged winners ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    tune_bare(**RUN, out=str(out))
    return out


def _forge(folder: Path, change: dict[str, Any], which: str) -> dict[str, Any]:
    """Change the fastest or the slowest valid trial of the first workload; returns what it was."""
    path = folder / "ledger.jsonl"
    records = read(path).records
    trials = [
        (record["cycles"], place)
        for place, record in enumerate(records)
        if record["kind"] == "trial" and record["status"] == "valid"
        and record["workload"] == records[0]["workload"]
    ]  # fmt: skip
    _, place = max(trials) if which == "slowest" else min(trials)
    was = dict(records[place])
    records[place].update(change)  # type: ignore[typeddict-item]
    path.write_bytes(b"".join(map(encode, records)))
    return was


@pytest.mark.parametrize("which", ["slowest", "fastest"])
@pytest.mark.parametrize("change", [{"cycles": 1}, {"cycles": 1, "seconds": 1e-12}])
def test_a_forged_winner_is_timed_again_and_set_aside(
    which: str, change: dict[str, Any], finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    was = _forge(out, change, which)
    heard: list[Event] = []
    summary = tune_options(tuning.parse_options(**RUN, out=str(out)), heard.append)
    said = [event.text for event in heard if isinstance(event, Note)]
    assert len(said) == 1
    assert "a trial was recorded with another latency" in said[0]
    for name in ("schedules.json", "ledger.jsonl", "trials.parquet"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()
    assert encode(was | change) == (out / "ledger.jsonl.quarantine").read_bytes()  # type: ignore[arg-type]
    rows = summary["workloads"]
    assert sum(row["trials"] for row in rows) == len(rows) * RUN["trials"]
    assert all(row["timed_again"] >= 1 for row in rows)


def test_a_run_that_holds_is_timed_once_more_and_says_nothing(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    heard: list[Event] = []
    options = tuning.parse_options(**RUN, out=str(tmp_path / "out"))
    summary = tune_options(options, heard.append)
    assert [event for event in heard if isinstance(event, Note)] == []
    assert {row["timed_again"] for row in summary["workloads"]} <= {0, 1}
