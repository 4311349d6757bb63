"""Tests links and special files where a run writes: nothing behind them changes, nothing waits."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.trial_tables import frame
from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.core.files import append, write_atomically
from tilewright.core.safe_files import UnsafeFile, read_plain
from tilewright.evaluation.explain.folder import read_folder
from tilewright.search import TrialStore, TrialStoreError
from tilewright.services.check_workspace import check_workspace
from tilewright.tasks.artifact_store import Manifest, Store
from tilewright.tuning.events import Event, RoundDone
from tilewright.tuning.output_dir import at_work, identity
from tilewright.tuning.preflight import check
from tilewright.tuning.run_metadata import read_run

pytestmark = pytest.mark.attack

SECRET = b"what belongs to somebody else\n"
RUN = {"workload": "dense:n=1,c=64,o=64", "tuner": "random", "trials": 2, "batch": 2}
REPLACED = ("run.json", "summary.json", "schedules.json", "trials.parquet", "convergence.png",
            ".tune")  # fmt: skip
IN_PLACE = ("trials.sqlite", "trials.sqlite-wal", "trials.sqlite-shm", "trials.sqlite-journal")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def _to_nowhere(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("to be made"))


def _socket(path: Path, victim: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's whole path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _of_another(path: Path, victim: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    path.write_bytes(SECRET)
    os.chown(path, 12345, 12345)


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, victim: path.symlink_to(victim),
    "a symbolic link to nowhere": _to_nowhere,
    "a symbolic link to /dev/zero": lambda path, victim: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a socket": _socket,
    "a folder": lambda path, victim: path.mkdir(),
    "belongs to another user": _of_another,
}


def _hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def _assert_untouched(victim: Path) -> None:
    assert victim.read_bytes() == SECRET
    assert not victim.with_name("to be made").exists()


# -- one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", PLANTS)
def test_no_writer_follows_or_waits(plant: str, out: Path, victim: Path) -> None:
    path = out / "file"
    PLANTS[plant](path, victim)
    said = plant.removesuffix(" to nowhere").removesuffix(" to /dev/zero")
    for write in (write_atomically, append):
        with pytest.raises(UnsafeFile, match=f"file.*{said}.*another folder"):
            write(path, b"ours")
    _assert_untouched(victim)
    if plant != "belongs to another user":
        with pytest.raises(UnsafeFile, match=f"file.*{said}"):
            read_plain(path)
    assert [each.name for each in out.iterdir()] == ["file"]


def test_a_hard_link_is_replaced_but_not_written_through(out: Path, victim: Path) -> None:
    _hard_link(out / "file", victim)
    with pytest.raises(UnsafeFile, match="a hard link"):
        append(out / "file", b"ours")
    write_atomically(out / "file", b"ours")
    _assert_untouched(victim)
    assert (out / "file").read_bytes() == b"ours"


def test_a_file_without_end_is_not_read_to_it(out: Path) -> None:
    (out / "file").write_bytes(bytes(100))
    assert read_plain(out / "file", limit=100) == bytes(100)
    with pytest.raises(UnsafeFile, match="larger than 99 bytes"):
        read_plain(out / "file", limit=99)


def test_names_of_temporary_files_cannot_be_predicted(out: Path, victim: Path) -> None:
    for name in (os.getpid(), f"{os.getpid()}-{threading.get_native_id()}"):
        (out / f".summary.json.{name}.tmp").symlink_to(victim)
    write_atomically(out / "summary.json", b"ours")
    _assert_untouched(victim)
    assert (out / "summary.json").read_bytes() == b"ours"


def test_a_file_exchanged_for_a_link_at_any_moment_leads_nowhere(out: Path, victim: Path) -> None:
    path, planted, ended = out / "file", out / "planted", threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            path.unlink(missing_ok=True)
            planted.symlink_to(victim)
            planted.rename(path)
            path.unlink(missing_ok=True)
            planted.write_bytes(b"")
            planted.rename(path)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    outcomes = set()
    try:
        for turn in range(600):
            try:
                (append if turn % 2 else write_atomically)(path, b"ours")
                outcomes.add("written")
            except UnsafeFile:
                outcomes.add("refused")
    finally:
        ended.set()
        attacker.join()
    assert outcomes == {"written", "refused"}
    _assert_untouched(victim)


# -- an output directory --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*REPLACED, *IN_PLACE])
def test_a_command_refuses_the_folder_before_any_work(name: str, out: Path, victim: Path) -> None:
    options = tuning.parse_options(**RUN, out=str(out))
    plants = dict(PLANTS, **({"a hard link": _hard_link} if name in IN_PLACE else {}))
    for plant in plants:
        if plant == "belongs to another user" and os.geteuid():
            continue
        plants[plant](out / name, victim)
        with pytest.raises(UnsafeFile, match=name):
            check(options)
        assert [each.name for each in out.iterdir()] == [name]
        (out / name).rmdir() if plant == "a folder" else (out / name).unlink()
    _assert_untouched(victim)


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize(
    "name",
    ["summary.json", "schedules.json", "trials.parquet", "trials.sqlite"],
)
def test_a_link_that_appears_while_a_run_goes_is_not_followed(
    name: str, out: Path, victim: Path
) -> None:
    def plant(event: Event) -> None:
        if isinstance(event, RoundDone) and not (out / name).is_symlink():
            (out / name).unlink(missing_ok=True)
            (out / name).symlink_to(victim)

    options = tuning.parse_options(**RUN | {"trials": 4}, out=str(out))
    with pytest.raises((UnsafeFile, TrialStoreError), match=name):
        tune_options(options, plant)
    _assert_untouched(victim)


@pytest.mark.parametrize("name", ["run.json", "trials.sqlite-wal"])
def test_a_library_call_refuses_the_folder_too(name: str, out: Path, victim: Path) -> None:
    (out / name).symlink_to(victim)
    with pytest.raises(UnsafeFile, match=name):
        tune_bare(**RUN, out=str(out))
    _assert_untouched(victim)


def test_the_identity_of_a_folder_is_written_to_no_link(out: Path, victim: Path) -> None:
    (out / ".tune").symlink_to(victim)
    with pytest.raises(UnsafeFile, match=r"\.tune"):
        identity(out)
    _assert_untouched(victim)


def test_a_folder_that_the_user_reaches_by_a_link_is_fine(out: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(out)
    tune_bare(**RUN, out=str(link))
    assert len(frame(out)) == 2
    assert tune_bare(**RUN, out=str(out))["workloads"][0]["reused_trials"] == 2


def test_a_file_with_the_rights_of_others_is_not_made(out: Path) -> None:
    with TrialStore(out / "trials.sqlite"):
        modes = {path.name: path.stat().st_mode & 0o022 for path in out.iterdir()}
    assert set(modes.values()) == {0}


# -- readers -----------------------------------------------------------------------------------

ENDLESS = [plant for plant in PLANTS if plant != "belongs to another user"]


@pytest.mark.parametrize("plant", ENDLESS)
def test_readers_neither_wait_nor_read_without_end(plant: str, out: Path, victim: Path) -> None:
    for name in ("trials.sqlite", "run.json", "summary.json"):
        PLANTS[plant](out / name, victim)
    for call in (
        lambda: frame(out),
        lambda: read_run(out),
        lambda: read_folder(out),
        lambda: at_work(out),
        lambda: TrialStore(out / "trials.sqlite"),
    ):
        with pytest.raises(UnsafeFile):
            call()


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("plant", ["a pipe", "a symbolic link to /dev/zero"])
def test_commands_that_look_at_a_folder_say_so_in_one_message(
    plant: str, out: Path, victim: Path
) -> None:
    for name in ("trials.sqlite", "summary.json"):
        PLANTS[plant](out / name, victim)
    program = (
        "import sys, tilewright.cli\n"
        "for command in ('trials', 'explain'):\n"
        "    sys.argv = ['tilewright', command, sys.argv[-1]]\n"
        "    try: tilewright.cli.main()\n"
        "    except SystemExit as end: print(end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["2", "2"]
    assert done.stderr.count("\n") == done.stderr.count("error: ") == 2, done.stderr


# -- cache and workspace -------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "data", "manifests", "manifests/stage"])
def test_the_cache_goes_through_no_link(below: str, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("k.json")).write_text("{}")
    (root / below).parent.mkdir(parents=True, exist_ok=True)
    (root / below).symlink_to(elsewhere)

    def fill() -> None:
        store = Store(root)
        name = store.put("thing", str.encode, ".npz")
        store.save(Manifest("stage", "k", {}, {"role": name}))

    with pytest.raises(UnsafeFile, match="a symbolic link, where a folder is expected"):
        fill()
    if below != "data":
        with pytest.raises(UnsafeFile):
            Store(root).find("stage", "k")
    assert [path.name for path in elsewhere.iterdir()] == ["k.json"]


WORKSPACE = ("cache", "oracle", "prefect", "mlflow", "mlflow/artifacts", "mlflow/artifacts/models",
        "mlflow/artifacts/0123", "mlflow/mlflow.db", "mlflow/mlflow.db-journal",
        "mlflow/mlflow.db-wal", "prefect/prefect.db", "prefect/prefect.db-shm",
        "prefect/server.json", "prefect/server.log", "mlflow/server.log", "pages.json",
        "tilewright.log", "workspace.json")  # fmt: skip


@pytest.mark.parametrize("name", WORKSPACE)
def test_a_workspace_with_links_in_it_is_refused(name: str, tmp_path: Path, victim: Path) -> None:
    workspace = tmp_path / "home"
    (workspace / name).parent.mkdir(parents=True)
    check_workspace(workspace)
    (workspace / name).symlink_to(victim if "." in Path(name).name else tmp_path)
    with pytest.raises(UnsafeFile, match=Path(name).name):
        check_workspace(workspace)
    if "." in Path(name).name:
        (workspace / name).unlink()
        (workspace / name).hardlink_to(victim)
        with pytest.raises(UnsafeFile, match="a hard link"):
            check_workspace(workspace)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ["mlflow/mlflow.db", "prefect/prefect.db-journal"])
def test_a_command_opens_no_database_behind_a_link(name: str, tmp_path: Path, victim: Path) -> None:
    place = Place(tmp_path)
    path = tmp_path / "home" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    done = place.run("tune", "--workload", RUN["workload"], "--trials", "2", "--out", "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path} is a symbolic link")
    assert done.stderr.count("\n") == 1
    _assert_untouched(victim)


def test_a_run_in_mlflow_goes_on_only_where_its_files_are_files(
    tmp_path: Path, victim: Path
) -> None:
    from tilewright.services.check_workspace import check_below

    run = tmp_path / "artifacts" / "0123"
    (run / "artifacts").mkdir(parents=True)
    (run / "artifacts" / "trials.parquet").write_bytes(b"")
    check_below(run)
    shutil.rmtree(run / "artifacts")
    (run / "artifacts" / "models").mkdir(parents=True)
    (run / "artifacts" / "models" / "summary.json").symlink_to(victim)
    with pytest.raises(UnsafeFile, match=r"summary\.json"):
        check_below(run)


def test_what_is_kept_in_a_folder_says_whose_it_is(tmp_path: Path) -> None:
    """Moved, a folder keeps what it is known by; a copy gets its own, and so does a new one."""
    first = tmp_path / "first"
    first.mkdir()
    known = identity(first)
    assert identity(first) == known
    moved = first.rename(tmp_path / "moved")
    assert identity(moved) == known
    copy = Path(shutil.copytree(moved, tmp_path / "copy"))
    assert identity(copy) != known
    assert identity(moved) == known
    first.mkdir()
    assert identity(first) not in (known, identity(copy))
    for text in ("", "[]", json.dumps({"id": 3, "place": 4}), "[" * 3000):
        (first / ".tune").write_text(text)
        assert len(identity(first)) == 32
