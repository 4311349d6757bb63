"""Tests how the trial store handles faults of the disk, of the clock and of other processes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.reliability.stored_runs import BATCH, TRIALS, Counting, hold, tune_into, whole_run
from tests.trial_tables import frame, rows, tables
from tilewright.core.files import UnsafeFile
from tilewright.search import RunInUse, TrialStore, TrialStoreError, open_store, read_store
from tilewright.search.trial_store import FILE, MIGRATIONS, StoreDamaged, use_write_ahead_log

# -- two owners --------------------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = hold(tmp_path / FILE)
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow(seconds=2)
def test_a_second_owner_is_refused_until_the_first_is_killed(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(RunInUse, match=rf"{tmp_path} .* process {holder.pid} .*--out"):
        TrialStore(tmp_path / FILE)
    assert len(frame(tmp_path)) == 0  # reading is always allowed
    holder.kill()
    holder.wait()
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store)


@pytest.mark.slow(seconds=2)
def test_an_owner_that_is_stopped_stays_the_owner_and_is_named_as_stopped(tmp_path: Path) -> None:
    holder = hold(tmp_path / FILE, 0.2)
    try:
        holder.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # longer than the heartbeat's interval
        with pytest.raises(RunInUse, match=rf"stopped: resume it with 'kill -CONT {holder.pid}'"):
            TrialStore(tmp_path / FILE, lease_seconds=0.2)
        with read_store(tmp_path) as store:
            assert f"process {holder.pid}" in str(store.describe_owner())
    finally:
        holder.kill()
        holder.wait()
    with read_store(tmp_path) as store:
        assert store.describe_owner() is None


def _move_owner(folder: Path) -> None:
    """Record that the owner runs on another machine, where its process cannot be seen."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        database.execute("update trial_owners set space = 'elsewhere', host = 'elsewhere'")
        database.commit()


def test_an_owner_elsewhere_is_given_the_time_for_a_heartbeat(tmp_path: Path) -> None:
    first = TrialStore(tmp_path / FILE, lease_seconds=0.6)
    _move_owner(tmp_path)
    with pytest.raises(RunInUse, match=r"on elsewhere, on another machine"):
        TrialStore(tmp_path / FILE, lease_seconds=5.0)  # it sees a heartbeat much earlier
    first._closed.set()  # stop the heartbeat
    time.sleep(0.5)
    with TrialStore(tmp_path / FILE, lease_seconds=0.6) as second:
        # The first owner continues, like a machine that wakes from sleep.
        with pytest.raises(RunInUse, match="it took over while this command was paused"):
            tune_into(first)
        tune_into(second)
        assert tables(second) == whole_run(tmp_path)
    first.close()


def test_a_clock_that_jumps_takes_no_run_from_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, shifts = time.time, iter([0.0, 1e6, -1e6, 3600.0, -3600.0] * 50)
    monkeypatch.setattr(time, "time", lambda: now() + next(shifts))
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store)
        with pytest.raises(RunInUse):
            TrialStore(tmp_path / FILE)
        assert tables(store) == whole_run(tmp_path)


FORKING = """
import os, sys, time
from pathlib import Path
from tilewright.search import RunInUse, TrialStore
from tests.reliability.stored_runs import tune_into
store = TrialStore(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    try:
        tune_into(store)
    except RunInUse:
        store.close()
        print("refused", flush=True)
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.slow(seconds=3)
def test_a_fork_neither_owns_the_run_nor_gives_it_up_nor_outlives_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path / FILE)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip() for _ in range(2)}
        (child,) = (int(line) for line in said - {"refused"})
        try:
            assert "refused" in said
            with pytest.raises(RunInUse, match=f"process {parent.pid} "):
                TrialStore(tmp_path / FILE)
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # the child is still alive
            TrialStore(tmp_path / FILE).close()
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)


def test_of_many_commands_that_start_at_once_one_owns_the_run(tmp_path: Path) -> None:
    owners: list[TrialStore] = []
    refused: list[str] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        try:
            owners.append(TrialStore(tmp_path / FILE))
        except RunInUse as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(owners), len(refused)) == (1, 7)
    owners[0].close()


def test_readers_keep_nobody_from_writing(tmp_path: Path) -> None:
    stop = threading.Event()
    TrialStore(tmp_path / FILE).close()

    def look() -> None:
        while not stop.is_set():
            frame(tmp_path)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(20):
            with TrialStore(tmp_path / FILE) as store:
                store.add_runs([("w", "t", "r")])
    finally:
        stop.set()
        looker.join()


def test_a_thread_that_reads_opens_no_second_connection(tmp_path: Path) -> None:
    """A second connection would cause a deadlock.

    It would wait for a writer, and the writer waits for the first connection's reads to end.
    """
    with TrialStore(tmp_path / FILE) as store, store.read_snapshot() as first:
        assert store.note("version") == str(1 + len(MIGRATIONS))
        with store.read_snapshot() as second:
            assert second is first


@pytest.mark.attack
@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_removed_while_it_is_written_is_told_at_once(
    tmp_path: Path, replaced: bool
) -> None:
    with TrialStore(tmp_path / FILE) as first:
        (tmp_path / FILE).unlink()
        if replaced:
            TrialStore(tmp_path / FILE).close()
        with pytest.raises(TrialStoreError, match="was removed or replaced while this command"):
            tune_into(first)


# -- disks -------------------------------------------------------------------------------------


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small disk. Skip the test if this user cannot mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    with _disk(tmp_path / "disk", "size=512k") as disk:
        filler = disk / "filler"
        with TrialStore(disk / FILE) as store:
            with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
                file.write(bytes(1 << 20))
            filler.write_bytes(bytes(filler.stat().st_size - 8192))
            with pytest.raises(TrialStoreError, match="No space left on device; nothing of this"):
                tune_into(store)
            held = len(store.frame())
            assert held % BATCH == 0
        filler.unlink()
        target = Counting({})
        with TrialStore(disk / FILE) as store:
            tune_into(store, target)
            assert tables(store) == whole_run(tmp_path)
        assert target.measured == TRIALS - held


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tilewright.search import TrialStoreError, TrialStore
from tests.reliability.stored_runs import tune_into
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TrialStore(Path(sys.argv[1])) as store:
    size = Path(sys.argv[1] + "-wal").stat().st_size + 30_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        tune_into(store)
    except TrialStoreError as error:
        print(error)
"""


@pytest.mark.slow(seconds=3)
def test_a_batch_that_fits_only_in_part_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / FILE)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "nothing of this batch was recorded; free some space" in done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    held = len(frame(tmp_path))
    assert held < TRIALS
    assert held % BATCH == 0
    with TrialStore(tmp_path / FILE) as store:
        tune_into(store)
        assert tables(store) == whole_run(tmp_path)


def test_a_read_only_disk_is_read_and_not_written(tmp_path: Path) -> None:
    with _disk(tmp_path / "disk", "size=1m") as disk:
        with TrialStore(disk / FILE) as store:
            tune_into(store)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert len(frame(disk)) == TRIALS
        with pytest.raises(TrialStoreError, match=r"--out"):
            TrialStore(disk / FILE)
        with pytest.raises(TrialStoreError, match=r"Read-only file system.*--out"):
            TrialStore(disk / "new" / FILE)


def test_a_run_that_died_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    """The write-ahead log still exists beside the database."""
    with _disk(tmp_path / "disk", "size=1m") as disk:
        holder = hold(disk / FILE)
        holder.kill()
        holder.wait()
        assert (disk / f"{FILE}-wal").exists()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with read_store(disk) as store:
            assert store.describe_owner() is None
            assert store.runs() == {}


def test_without_shared_memory_the_older_journal_is_used(tmp_path: Path) -> None:
    """Network disks have no shared memory. SQLite's VFS `unix-dotfile` works without it."""
    path = f"file:{tmp_path / FILE}?vfs=unix-dotfile"
    with closing(sqlite3.connect(path, uri=True)) as connection:
        assert use_write_ahead_log(connection) == "delete"
        connection.execute("create table t (a)")
    with closing(sqlite3.connect(tmp_path / "usual")) as connection:
        assert use_write_ahead_log(connection) == "wal"


# -- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with TrialStore(folder / FILE) as store:
        tune_into(store)
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"no database" * 1000,
        lambda data: data[: len(data) // 2],
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: data[:16] + b"\xff" * 16 + data[32:],
    ],
)
def test_a_damaged_database_is_named_and_kept_and_a_fresh_run_puts_it_aside(
    damage, finished: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    data = damage((finished / FILE).read_bytes())
    (tmp_path / FILE).write_bytes(data)
    for opens in (lambda: TrialStore(tmp_path / FILE), lambda: frame(tmp_path)):
        with pytest.raises(StoreDamaged, match=r"trials\.sqlite: .*--fresh.*\.recover"):
            opens()
    assert (tmp_path / FILE).read_bytes() == data
    with open_store(tmp_path, fresh=True) as store:
        tune_into(store)
        assert tables(store) == whole_run(tmp_path)
    assert (tmp_path / f"damaged-{FILE}").read_bytes() == data


@pytest.mark.parametrize("cut", range(1, 9))
def test_damage_anywhere_is_told_or_harmless(cut: int, finished: Path, tmp_path: Path) -> None:
    data = bytearray((finished / FILE).read_bytes())
    place = len(data) * cut // 9
    data[place : place + 64] = os.urandom(64)
    (tmp_path / FILE).write_bytes(data)
    with suppress(StoreDamaged), TrialStore(tmp_path / FILE) as store:
        tune_into(store)
        assert len(store.frame()) == TRIALS


@pytest.mark.parametrize("version", [str(2 + len(MIGRATIONS)), "-1", "one", ""])
def test_a_database_of_another_version_is_refused(
    version: str, finished: Path, tmp_path: Path
) -> None:
    shutil.copy(finished / FILE, tmp_path)
    rows(tmp_path, "update trial_store set value = ? where name = 'version'", version)
    before = (tmp_path / FILE).read_bytes()
    for opens in (lambda: TrialStore(tmp_path / FILE), lambda: frame(tmp_path)):
        with pytest.raises(TrialStoreError, match=r"trial database of version .* reads \d"):
            opens()
    assert (tmp_path / FILE).read_bytes() == before


def test_something_else_than_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    for opens in (lambda: TrialStore(tmp_path / FILE), lambda: frame(tmp_path)):
        with pytest.raises(UnsafeFile):
            opens()
    assert (tmp_path / FILE).exists()


def test_a_database_whose_tables_are_being_created_has_no_trials(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE).close()
    (tmp_path / FILE).touch()
    with pytest.raises(FileNotFoundError), read_store(tmp_path):
        pass
    with open_store(tmp_path) as store, read_store(tmp_path) as reader:
        assert reader.runs() == store.runs() == {}
