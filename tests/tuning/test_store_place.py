"""Tests which database stores the trials of a new output directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import in_process
from tests.cli.conftest import Place
from tests.reliability.postgres import postgres
from tilewright.core.formats import WORKSPACE
from tilewright.evaluation.compare.network_plan import plan_networks
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.hardware_search.options import CodesignOptions
from tilewright.search import read_store
from tilewright.tuning.open_trials import VARIABLE, store_url
from tilewright.tuning.options import TuningOptions

OPTION, ENVIRONMENT, FILE = (f"postgresql+psycopg://ada@{host}/trials" for host in "abc")
TUNE = ("--tuner", "random", "--trials", "4", "--batch", "4", "--bare")
COMMANDS = {
    "tuned": ("tune", "--workload", "dense:n=1,c=64,o=64", *TUNE),
    "swept": ("sweep", "digits_cnn", "--layers", "fc", "--tuners", "random", "--seeds", "0",
              "--trials", "4", "--batch", "4", "--bare"),
    "codesigned": ("codesign", "--networks", "digits_cnn", "--budget", "1", "--trials", "8",
                   "--bound", "log_block_in=4:4", "--bound", "log_block_out=4:4", "--bare"),
}  # fmt: skip


def test_the_option_goes_before_the_variable_and_the_variable_before_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert store_url() == ""
    (tmp_path / WORKSPACE.file).write_text(json.dumps({"store": FILE}))
    assert store_url() == FILE
    monkeypatch.setenv(VARIABLE, ENVIRONMENT)
    assert store_url() == ENVIRONMENT
    assert store_url(OPTION) == OPTION


def test_options_keep_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPASSWORD", "")  # restored after the test
    url = OPTION.replace("ada@", "ada:hush@")
    sweep = CompareOptions.parse(networks=("digits_cnn",), store=url, out=str(tmp_path))
    assert sweep.store == OPTION
    assert {job.options.store for job in plan_networks(sweep).jobs} == {OPTION}
    assert TuningOptions.parse(store=url).store == OPTION
    assert CodesignOptions.parse(networks=("digits_cnn",), budget=1, store=url).store == OPTION


def test_a_sweep_repeats_no_run_because_its_trials_are_elsewhere() -> None:
    plans = [
        plan_networks(CompareOptions.parse(networks=("digits_cnn",), store=url))
        for url in ("", OPTION)
    ]
    keys = [[job.key for job in plan.jobs] for plan in plans]
    assert keys[0] == keys[1]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.mark.nightly(seconds=30)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("given_by", ["option", "variable", "workspace"])
def test_every_command_that_makes_trials_keeps_them_in_postgresql(
    command: str, given_by: str, database: str, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    words, environment = [*COMMANDS[command], "--out", "out"], place.environment
    if given_by == "option":
        words += ["--store", database]
    elif given_by == "variable":
        environment[VARIABLE] = database
    else:
        (tmp_path / "home").mkdir(mode=0o700)
        about = {WORKSPACE.key: WORKSPACE.written, "store": database}
        (tmp_path / "home" / WORKSPACE.file).write_text(json.dumps(about))
    done = in_process.run(words, tmp_path, environment)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("trials.sqlite")
    with read_store(file.parent) as store:
        assert str(store) == database
        kept = store.frame()
    with sa.create_engine(database).connect() as connection:
        in_folder = sa.text(
            "SELECT count(*) FROM trials t JOIN trial_runs r ON t.run_id = r.id WHERE folder = :id"
        )
        assert connection.scalar(in_folder, {"id": store.folder}) == len(kept) > 0
    shown = place.call("trials", str(file.parent), "--json")
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)) == len(kept)
