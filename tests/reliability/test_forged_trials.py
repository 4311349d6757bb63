"""Checks that impossible trials are set aside with one message, and all other trials are used."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.reliability.stored_runs import TRIALS, WORK, Counting, tune_into, whole_run
from tests.trial_tables import frame, rows, tables
from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.cli.app import app
from tilewright.core.process_info import ProcessStamp
from tilewright.evaluation.explain.finished_run import read_folder
from tilewright.search import TrialStore, TrialStoreError, read_store
from tilewright.search.ledger_import import MAX_LINE_BYTES, read_ledger
from tilewright.search.trial_rows import TrialRow, check_rows
from tilewright.search.trial_store import FILE
from tilewright.tuning.events import Event, Note

pytestmark = pytest.mark.attack

RUN: dict[str, Any] = {"model": "digits_cnn", "tuner": "random", "trials": 4, "batch": 2, "seed": 3}
HUGE = "9" * 300


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with TrialStore(folder / FILE) as store:
        tune_into(store)
    return folder


ABSURD: dict[str, dict[str, object]] = {
    "seconds below nothing": {"seconds": -1.0},
    "is not finite": {"seconds": 9e999},
    "seconds in words": {"seconds": "soon"},
    "no cycles": {"cycles": 0},
    "negative cycles": {"cycles": -5},
    "cycles in words": {"cycles": "many"},
    "no time at all": {"seconds": None},
    "a negative round": {"round": -1},
    "a round beyond counting": {"round": 1 << 60},
    "a slot beyond counting": {"slot": 1 << 60},
    "a config below its range": {"config": "[-1,0]"},
    "an empty config": {"config": "[]"},
    "a config of another space": {"config": "[1000000,0]"},
    "a config that is no JSON": {"config": "[" * 100_000},
    "a config of bytes": {"config": b"\x00\xff"},
    "other knobs": {"knobs": '{"tile":77}'},
    "a number with more digits than Python converts": {"knobs": '{"tile":' + HUGE * 20 + "}"},
    "a status nobody knows": {"status": "fine"},
    "a status with escapes": {"status": "\x1b[2J"},
    "a failure with a latency": {"status": "run_error"},
    "an endless reason": {"reason": "x" * 30_000},
    "repeats that never end": {"repeats": "[1e999]"},
    "cycles of a clock that others do not have": {"cycles": -1},
}


def _forge(folder: Path, change: dict[str, object], where: str = "id = 7") -> None:
    names = ", ".join(f"{name} = ?" for name in change)
    rows(folder, f"update trials set {names} where {where}", *change.values())


@pytest.mark.parametrize("what", ABSURD)
@pytest.mark.slow(seconds=0.5)
def test_a_trial_with_absurd_values_is_set_aside_told_once_and_measured_again(
    what: str, whole: Path, tmp_path: Path
) -> None:
    shutil.copy(whole / FILE, tmp_path)
    assert rows(tmp_path, "select status from trials where id = 7")[0]["status"] == "valid"
    _forge(tmp_path, ABSURD[what])
    target = Counting({})
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store, target)
        (problem,) = store.problems
        assert problem.startswith(f"1 trials of workload {WORK.id} were set aside: ")
        assert problem.isprintable()
        assert tables(store) == whole_run(tmp_path)
    assert target.measured == 1
    (kept,) = rows(tmp_path, "select * from trials where rejected is not null")
    assert kept["id"] == 7  # nothing is lost
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store)
        assert store.problems == []


@pytest.mark.parametrize(
    "change",
    [
        {"trials": 10**9}, {"trials": 0}, {"trials": -1}, {"trials": "all"}, {"lowered": -1},
        {"failed": "[[1]]", "lowered": 1}, {"failed": "[[0,0]]", "lowered": 0}, {"failed": "["},
        {"compiled": "[[1]]", "lowered": 1}, {"compiled": "[[0,0]]", "lowered": 0},
        {"errors": '{"P_rmse":-1}'}, {"round": 77}, {"round": "first"},
    ],
)  # fmt: skip
def test_a_round_that_cannot_be_true_is_made_again_from_its_trials(
    change: dict[str, object], whole: Path, tmp_path: Path
) -> None:
    shutil.copy(whole / FILE, tmp_path)
    names = ", ".join(f"{name} = ?" for name in change)
    rows(tmp_path, f"update trial_rounds set {names} where round = 2", *change.values())
    target = Counting({})
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store, target)
        kept = [row for row in tables(store)["trial_rounds"] if row[3] in range(5)]
        made = tables(store)["trials"]
    assert made == whole_run(tmp_path)["trials"]
    assert len(kept) == 5
    assert target.measured == 0


def test_claims_and_owners_that_cannot_be_true_hold_nobody_up(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / FILE, tmp_path)
    here = ProcessStamp.of_this_process().space
    for pid, started, space in (("me", 1, "x"), (-1, 1, here), (1 << 62, 1, here), (1, "x", "y")):
        rows(
            tmp_path, "insert into trial_owners (folder, token, host, space, pid, started, beats) "
            "values ('', 't', 'h', ?, ?, ?, 0)", space, pid, started,
        )  # fmt: skip
        with TrialStore(tmp_path / FILE) as store:
            assert store.describe_owner() is not None
        with read_store(tmp_path) as store:
            assert store.describe_owner() is None


@pytest.mark.parametrize(
    "statement",
    [
        "create trigger t after insert on trials begin delete from trials; end",
        "create view v as select * from trials",
        "create virtual table v using fts5(a)",
        "alter table trials add column more generated always as (hex(zeroblob(1 << 28)))",
    ],
)
def test_a_database_that_runs_code_of_others_is_refused(
    statement: str, whole: Path, tmp_path: Path
) -> None:
    shutil.copy(whole / FILE, tmp_path)
    rows(tmp_path, statement)
    for opens in (lambda: TrialStore(tmp_path / FILE), lambda: frame(tmp_path)):
        with pytest.raises(TrialStoreError, match="do not use a database that someone"):
            opens()


def test_a_table_without_its_columns_is_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / FILE, tmp_path)
    rows(tmp_path, "alter table trials drop column knobs")
    with pytest.raises(TrialStoreError, match=r"no such column.*--fresh"):
        frame(tmp_path)


def test_values_that_are_wrong_everywhere_cost_no_memory() -> None:
    """One error object per wrong value would take gigabytes."""
    row = {"id": 1, "config": json.dumps(["x"] * 500_000), "repeats": json.dumps([-1] * 500_000)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (bad,) = check_rows(TrialRow, [row])[1]
    assert bad[1]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_gigantic_value_is_not_read(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / FILE, tmp_path)
    _forge(tmp_path, {"reason": "x" * (MAX_LINE_BYTES + 1)})
    with pytest.raises(TrialStoreError, match="too big"):
        frame(tmp_path)


def test_many_rows_are_told_in_few(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / FILE, tmp_path)
    rows(tmp_path, "update trials set status = 'fine ' || id")
    rows(tmp_path, "update trials set config = '[' || id where id > 3")
    with read_store(tmp_path) as store:
        assert len(store.frame()) == 0
        assert len(store.problems) <= 6
        assert f"{TRIALS - 5} more trials" in store.problems[-1]


def test_readers_tell_of_it_and_go_on(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    later = [row["id"] for row in rows(out, "select id from trials where round = 1 order by id")]
    _forge(out, {"cycles": 0}, f"id = {later[0]}")
    _forge(out, {"config": json.dumps([10**6] * 9)}, f"id = {later[-2]}")
    before = (out / FILE).read_bytes()
    shown = CliRunner().invoke(app, ["trials", str(out)])
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.count("ignored a trial") == 1
    folder = read_folder(out)
    number = len(folder.workloads)
    assert f"{number * RUN['trials'] - 1} trials of {number} workloads" in shown.stdout
    held = [sum(len(done.configs) for done in folder.rounds(work)) for work in folder.workloads]
    assert sorted(held) == [2, 2] + [4] * (number - 2)
    assert len(folder.problems) == 2
    assert (out / FILE).read_bytes() == before


# -- forged winners ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    tune_bare(**RUN, out=str(out))
    return out


def _forge_winner(folder: Path, change: dict[str, object], which: str) -> None:
    """Change the fastest or the slowest valid trial of the first workload."""
    order = "desc" if which == "slowest" else "asc"
    (row,) = rows(
        folder, "select id from trials where run_id = 1 and status = 'valid' "
        f"order by cycles {order} limit 1",
    )  # fmt: skip
    _forge(folder, change, f"id = {row['id']}")


@pytest.mark.parametrize("which", ["slowest", "fastest"])
@pytest.mark.parametrize("change", [{"cycles": 1}, {"cycles": 1, "seconds": 1e-12}])
def test_a_forged_winner_is_timed_again_and_set_aside(
    which: str, change: dict[str, object], finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    _forge_winner(out, change, which)
    heard: list[Event] = []
    summary = tune_options(tuning.TuningOptions.parse(**RUN, out=str(out)), heard.append)
    said = [event.text for event in heard if isinstance(event, Note)]
    assert len(said) == 1
    assert "discarded a trial, because the recorded latency" in said[0]
    for name in ("schedules.json", "trials.parquet"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()
    assert tables(out) == tables(finished)
    (kept,) = rows(out, "select cycles from trials where rejected is not null")
    assert kept["cycles"] == 1
    workloads = summary["workloads"]
    assert sum(row["trials"] for row in workloads) == len(workloads) * RUN["trials"]
    assert all(row["timed_again"] >= 1 for row in workloads)


@pytest.mark.slow(seconds=0.5)
def test_a_forged_winner_of_commands_that_share_a_run_is_set_aside(tmp_path: Path) -> None:
    run = RUN | {"model": "", "workload": str(WORK), "shared": True, "out": str(tmp_path / "out")}
    honest = tune_bare(**run)["workloads"][0]
    before = sorted(tables(tmp_path / "out")["trials"])
    _forge_winner(tmp_path / "out", {"cycles": 1}, "slowest")
    heard: list[Event] = []
    again = tune_options(tuning.TuningOptions.parse(**run), heard.append)["workloads"][0]
    assert len([event for event in heard if isinstance(event, Note)]) == 1
    for name in ("tuned_cycles", "trials", "invalid_trials"):
        assert again[name] == honest[name]
    assert sorted(tables(tmp_path / "out")["trials"]) == before


def test_a_run_that_holds_is_timed_once_more_and_says_nothing(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    heard: list[Event] = []
    options = tuning.TuningOptions.parse(**RUN, out=str(tmp_path / "out"))
    summary = tune_options(options, heard.append)
    assert [event for event in heard if isinstance(event, Note)] == []
    assert {row["timed_again"] for row in summary["workloads"]} <= {0, 1}


# -- old ledgers -------------------------------------------------------------------------------


def ledger_line(record: dict[str, Any] | str) -> bytes:
    """Return a line of an old ledger with a correct checksum and the given content."""
    body = (
        record if isinstance(record, str) else json.dumps(record, separators=(",", ":"))
    ).encode()
    check = hashlib.blake2b(body, digest_size=8).hexdigest().encode()
    return b'{"check":"' + check + b'","record":' + body + b"}\n"


def old_ledger(folder: Path) -> list[bytes]:
    """Return the ledger lines that an earlier version would have written for a folder's trials."""
    lines = []
    with closing(sqlite3.connect(folder / FILE)) as database:
        database.row_factory = sqlite3.Row
        for kind, table in (("trial", "trials"), ("round", "trial_rounds")):
            query = f"select * from {table} t join trial_runs r on t.run_id = r.id order by t.id"
            for row in database.execute(query):
                record = dict(row) | {"kind": kind}
                for name in ("config", "knobs", "failed", "errors", "repeats"):
                    if name in record:
                        record[name] = json.loads(record[name])
                for name in ("id", "run_id", "folder", "rejected", "compiled"):
                    record.pop(name, None)
                lines.append(ledger_line(record))
    return lines


def test_an_old_ledger_is_imported_once_with_all_that_can_be_true(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    out = tmp_path / "out"
    lines = old_ledger(out)
    (out / FILE).unlink()
    damaged = lines[0].replace(b'"cycles":', b'"cycles":1', 1)
    false = ledger_line(json.loads(lines[1])["record"] | {"slot": 40, "cycles": 0, "seconds": 1.0})
    data = b"".join([damaged, false, b"[" * 100_000 + b"\n", *lines, *lines]) + b'{"check":"half'
    (out / "ledger.jsonl").write_bytes(data)
    with read_store(out) as store:  # a reader writes nothing
        assert len(store.frame()) == len(frame(finished))
        assert len(store.problems) == 3
    assert not (out / FILE).exists()
    heard: list[Event] = []
    tune_options(tuning.TuningOptions.parse(**RUN, out=str(out)), heard.append)
    assert len([event for event in heard if isinstance(event, Note)]) == 3
    assert tables(out)["trials"] == tables(finished)["trials"]
    assert (out / "trials.parquet").read_bytes() == (finished / "trials.parquet").read_bytes()
    assert (out / "ledger.jsonl").read_bytes() == data
    rows(out, "delete from trials where run_id = 1 and round = 1")
    with TrialStore(out / FILE) as store:
        store.import_ledger(out / "ledger.jsonl")
        assert len(store.frame()) == len(frame(finished)) - 2  # not imported twice


@pytest.mark.parametrize(
    "body",
    [
        '{"kind":"trial","seconds":1e400}', '{"kind":"trial","cycles":' + HUGE * 20 + "}",
        '{"kind":"round","round":' + HUGE + "}", "[" * 100_000, '{"kind":' * 50_000,
        '{"kind":"trial","seconds":NaN}', '{"kind":{"kind":[]}}', "null", '"x"',
        '{"kind":"trial","workload":[]}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_told_or_skipped(body: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(ledger_line(body))
    contents = read_ledger(path)
    assert contents.trials == contents.rounds == []
    assert len(contents.rejected) == (body != '{"kind":{"kind":[]}}')
