"""Database of the trials of an output directory. It is all that is needed to resume a run.

The database is the SQLite file `trials.sqlite` in the output directory. A team can keep the trials
of all its output directories in one PostgreSQL database. The SQLite file then contains only the URL
of this database and the ID of the output directory in it. A trial is durable as soon as its
transaction is committed, so a process may be killed at any time.

Only one command at a time may write to an output directory: its owner. Ownership is a database row
that the owner updates regularly (a heartbeat). Each transaction of the owner first checks that the
row still belongs to it. Processes that share a run (`search.run_record`) do not need ownership,
because each of them claims configs in a transaction. Clocks of different machines are never
compared: an owner on another machine is considered alive if its row changes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tilewright.core.errors import TilewrightError
from tilewright.core.files import open_to_read
from tilewright.core.formats import TRIAL_STORE
from tilewright.core.lazy_module import lazy_module
from tilewright.core.process_info import ProcessStamp
from tilewright.search.ledger_import import LEDGERS, MAX_LINE_BYTES, read_ledger
from tilewright.search.task import RunKey
from tilewright.search.trial_rows import Rejected, TrialRow, check_rows

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = lazy_module("pandas")

FILE = "trials.sqlite"
BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that belong to an SQLite database; "" is the database itself."""
COLUMNS = (
    "workload", "trial", "round", "config", "knobs", "status", "reason", "cycles", "seconds",
)  # fmt: skip
LEASE_SECONDS = 30.0
"""Time in seconds without a heartbeat after which the owner of an output directory counts as dead,
if its process cannot be observed from this machine."""
BUSY_SECONDS = 600
"""Maximum time in seconds that a transaction waits for transactions of other processes."""
POSTGRES = "postgresql+psycopg"
TOLD_ROWS = 5
_LOCK = 7108  # arbitrary ID of an advisory lock; other programs must not use it in the database

_TABLES = sa.MetaData()
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _table(
    name: str, texts: str, numbers: str = "", *more: sa.Column[Any], run: bool = True
) -> sa.Table:
    """Define a table with an ID, an optional run ID, text columns and integer columns.

    Args:
        name: name of the table.
        texts: names of the text columns, separated by spaces.
        numbers: names of the integer columns, separated by spaces.
        run: whether the table has a run ID.
        *more: further columns.
    """
    columns: list[sa.Column[Any]] = [sa.Column("id", _ID, primary_key=True)]
    if run:
        columns.append(sa.Column("run_id", _ID, sa.ForeignKey("trial_runs.id"), index=True))
    columns += [sa.Column(column, sa.BigInteger, nullable=False) for column in numbers.split()]
    columns += [sa.Column(column, sa.Text, nullable=False) for column in texts.split()]
    return sa.Table(name, _TABLES, *columns, *more)


def _rejected_column() -> sa.Column[Any]:
    return sa.Column("rejected", sa.Text)  # why a row is not used; rejected rows are never deleted


ABOUT = _table("trial_store", "name value", run=False)
RUNS = _table("trial_runs", "folder workload target run", run=False)
TRIALS = _table(
    "trials", "config knobs status reason repeats", "round slot cycles",
    sa.Column("seconds", sa.Double), _rejected_column(),
)  # fmt: skip
ROUNDS = _table(
    "trial_rounds", "failed errors", "round trials lowered", _rejected_column(),
    # The last column, because version 2 adds it with ALTER TABLE.
    sa.Column("compiled", sa.Text, nullable=False, server_default="[]"),
)  # fmt: skip
VALIDATIONS = _table("trial_validations", "choice measured", "block", _rejected_column())
CLAIMS = _table("trial_claims", "token configs host space", "pid started seconds")
OWNERS = _table("trial_owners", "folder token host space", "pid started beats", run=False)
for table, columns in (
    (ABOUT, ["name"]), (RUNS, ["folder", "workload", "target", "run"]), (OWNERS, ["folder"]),
    (TRIALS, ["run_id", "round", "slot"]), (ROUNDS, ["run_id", "round"]),
):  # fmt: skip
    used = table.c.rejected.is_(None) if "rejected" in table.c else None
    sa.Index(
        f"{table.name}_place", *(table.c[column] for column in columns), unique=True,
        sqlite_where=used, postgresql_where=used,
    )  # fmt: skip

MIGRATIONS: Mapping[int, Sequence[str]] = {
    2: ("ALTER TABLE trial_rounds ADD COLUMN compiled TEXT DEFAULT '[]' NOT NULL",),
}
"""SQL statements that upgrade a database from the preceding version of the tables, by new version.

A new database is created with the present tables and needs no migration.
"""


class TrialStoreError(TilewrightError):
    """The trials cannot be read or written."""


class StoreDamaged(TrialStoreError):
    """The SQLite file is damaged or is not a trial database."""


class RunInUse(TilewrightError):
    """Another command is working on the same output directory."""


class _OpenConnections(threading.local):
    """Database connections that are open in the current thread.

    Attributes:
        writer: connection of the current write transaction, if there is one.
        reader: connection of the current read, if there is one.
    """

    writer: sa.Connection | None = None
    reader: sa.Connection | None = None


class TrialStore:
    """The trials of one output directory. Use it as a context manager.

    The attribute `problems` lists data in the database that cannot be used. The attribute `version`
    is the version of the tables when the store was opened, or 0 if there were no tables.

    Args:
        place: path of the SQLite file, or the URL of a PostgreSQL database.
        folder: ID of the output directory in a PostgreSQL database.
        own: whether to become the owner of the output directory until the store is closed.
        read_only: whether to open the store for reading only, which needs no ownership.
        lease_seconds: time without a heartbeat after which an owner counts as dead if its process
            cannot be observed from this machine.

    Raises:
        RunInUse: another command owns the output directory.
        TrialStoreError: the database cannot be read or written, or has an unsupported version.
        UnsafeFile: the path is not a plain file.
    """

    def __init__(
        self, place: Path | str, folder: str = "", *, own: bool = True, read_only: bool = False,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:  # fmt: skip
        self.place, self.folder, self.read_only = place, folder, read_only
        self.problems: list[str] = []
        self._url = place if isinstance(place, str) else ""
        self._lease, self._pid, self._token = lease_seconds, os.getpid(), ""
        self._lock, self._open = threading.RLock(), _OpenConnections()
        self._closed = threading.Event()
        self._file: os.stat_result | None = None
        with self._explain_errors():
            self._engine = self._postgres() if self._url else self._sqlite()
        try:
            with self._explain_errors():
                self._check()
                if not read_only:
                    self._begin_writing()
                    self._create()
            if own and not read_only:
                self._take()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TrialStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return re.sub(r":[^:@/]*@", ":***@", self._url) or str(self.place)

    def close(self) -> None:
        """Give up ownership and close the connections. Committed data is already on disk."""
        self._closed.set()
        if self._pid != os.getpid():
            return  # in a forked process, the connections belong to the parent
        if self._token:
            with suppress(TilewrightError), self.transaction() as connection:
                connection.execute(sa.delete(OWNERS).where(OWNERS.c.token == self._token))
            self._token = ""
        self._engine.dispose()
        if self._file is not None:
            _leave_one_file(Path(self.place))

    # -- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Return a context manager for a write transaction that locks this output directory.

        A transaction within another transaction of the same thread becomes part of it.

        Raises:
            TrialStoreError: the database cannot be written.
            RunInUse: another command became the owner.
        """
        if self._open.writer is not None:
            yield self._open.writer
            return
        self._check_usable()
        with self._explain_errors(), self._lock, self._engine.begin() as connection:
            if self._url:
                connection.execute(sa.text(f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'"))
                lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(self.folder, _LOCK))
                connection.execute(sa.select(lock))
            self._renew(connection)
            self._open.writer = connection
            try:
                yield connection
            finally:
                self._open.writer = None

    @contextmanager
    def read_snapshot(self) -> Iterator[sa.Connection]:
        """Return a context manager for reading a consistent state of the database.

        Raises:
            TrialStoreError: the database cannot be read.
        """
        # A second connection could deadlock: it waits for a writer that waits for the first one.
        if (current := self._open.writer or self._open.reader) is not None:
            yield current
            return
        self._check_usable()
        with self._explain_errors(), self._engine.connect() as connection:
            self._open.reader = connection.execution_options(reads=True)
            try:
                yield self._open.reader
            finally:
                self._open.reader = None

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Convert database errors to `TrialStoreError`s that suggest what to do next."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, ImportError, UnicodeError) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            code = "URL" if self._url else getattr(cause, "sqlite_errorname", "SQLITE_CORRUPT")
            step = next((step for start, step in _STEPS.items() if code.startswith(start)), _STEP)
            if isinstance(error, ImportError):
                step = "install PostgreSQL's client with: pip install 'tilewright[postgres]'"
            kind = StoreDamaged if step is _DAMAGED else TrialStoreError
            full = "No space left on device" if code == "SQLITE_FULL" else ""
            text = full or " ".join(str(cause).split())[:300] or type(cause).__name__
            raise kind(f"cannot use the trials in {self}: {text}; {step}") from None

    def _check_usable(self) -> None:
        """Check that this process opened the store and that the file has not been replaced since.

        Without this check, data could be written to a file that has already been removed.

        Raises:
            RunInUse: the store was opened by the parent of this forked process.
            TrialStoreError: the file was removed or replaced.
        """
        if self._pid != os.getpid():
            raise RunInUse(
                f"{self} was opened by the process {self._pid}; open it again in this process"
            )
        with suppress(OSError):
            if self._file is None or os.path.samestat(os.stat(self.place), self._file):
                return
        raise TrialStoreError(
            f"{self} was removed or replaced while this command was running, and nothing of "
            "this batch was recorded; start the same command again"
        )

    # -- databases ------------------------------------------------------------------------------

    def _postgres(self) -> sa.Engine:
        if not self._url.startswith(f"{POSTGRES}://"):
            raise TrialStoreError(
                f"--store {self} is not the address of a database; write "
                f"{POSTGRES}://USER@HOST/DATABASE"
            )
        limits = {"connect_timeout": 10}
        return sa.create_engine(
            self._url, pool_pre_ping=True, hide_parameters=True, connect_args=limits
        )

    def _sqlite(self) -> sa.Engine:
        path = Path(self.place)
        if self.read_only or path.exists():
            os.close(open_to_read(path))
        if not self.read_only:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TrialStoreError(f"cannot write {path}: {error.strerror}; {_STEP}") from None
        engine = sa.create_engine(
            "sqlite://", creator=lambda: _connect(path, "ro" if self.read_only else "rwc"),
            poolclass=sa.QueuePool, max_overflow=-1, hide_parameters=True,
        )  # fmt: skip
        sa.event.listen(engine, "begin", _begin)
        return engine

    def _check(self) -> None:
        """Reject a database that is damaged, contains executable SQL, or has an unknown version."""
        with self.read_snapshot() as connection:
            if not self._url:
                if odd := connection.exec_driver_sql(_FOREIGN).scalar():
                    raise TrialStoreError(
                        f"{self} contains {odd!r:.80}, which is not part of a trial "
                        "database; do not use a database that someone else changed"
                    )
                if (
                    verdict := connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                ) != "ok":
                    raise sqlite3.DatabaseError(f"the database is damaged ({verdict})")
            has_tables = sa.inspect(connection).has_table(ABOUT.name)
            self.version = self._version() if has_tables else 0

    def _begin_writing(self) -> None:
        if isinstance(self.place, Path):
            with self.read_snapshot() as connection:
                use_write_ahead_log(connection.connection.driver_connection)
            self._file = self.place.stat()

    def _create(self) -> None:
        """Create the tables, or migrate those of an earlier version."""
        with self.transaction() as connection:
            if self._url:  # transactions lock only one output directory, but the tables are common
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if not sa.inspect(connection).has_table(ABOUT.name):
                _TABLES.create_all(connection)
                self.note(TRIAL_STORE.key, str(TRIAL_STORE.written))
            for version in range(self._version() + 1, TRIAL_STORE.written + 1):
                for statement in MIGRATIONS[version]:
                    connection.execute(sa.text(statement))
                self.note(TRIAL_STORE.key, str(version))

    def _version(self) -> int:
        result = self.note(TRIAL_STORE.key)
        version = int(result) if result.isascii() and result.isdigit() else -1
        if refusal := TRIAL_STORE.refusal(str(self), version):
            raise TrialStoreError(refusal)
        return version

    def note(self, name: str, value: str = "") -> str:
        """Read a named value, such as a URL, from the database, after storing a new value if given.

        The values are kept in a table of the database that has one row per name.

        Args:
            name: name of the value.
            value: new value, or "" to only read.

        Returns:
            The stored value, or "" if there is none.
        """
        if value:
            with self.transaction() as connection:
                connection.execute(sa.delete(ABOUT).where(ABOUT.c.name == name))
                connection.execute(sa.insert(ABOUT).values(name=name, value=value))
        with self.read_snapshot() as connection:
            scalar = connection.scalar(sa.select(ABOUT.c.value).where(ABOUT.c.name == name))
        return "" if scalar is None else str(scalar)

    # -- the owner ------------------------------------------------------------------------------

    def describe_owner(self) -> str | None:
        """Describe the command that owns the output directory.

        Returns:
            The description, or None if there is no owner. An owner whose process cannot be observed
            from this machine is included, although it may have ended.
        """
        with self.read_snapshot() as connection:
            row = connection.execute(
                sa.select(OWNERS).where(OWNERS.c.folder == self.folder)
            ).first()
        stamp = None if row is None else stamp_in(row._mapping)
        return None if stamp is None or stamp.is_alive() is False else stamp.describe()

    def sharing(self) -> str | None:
        """Describe a process that is measuring configs of a shared run in this output directory.

        Processes that share a run do not own the output directory.

        Returns:
            The description of one process, or None if there is none.
        """
        mine = sa.select(RUNS.c.id).where(RUNS.c.folder == self.folder)
        with self.read_snapshot() as connection:
            claims = connection.execute(sa.select(CLAIMS).where(CLAIMS.c.run_id.in_(mine)))
            stamps = [stamp_in(row) for row in claims.mappings()]
        alive = [stamp for stamp in stamps if stamp is not None and stamp.is_alive() is not False]
        return alive[0].describe() if alive else None

    def _take(self) -> None:
        """Become the owner of the output directory.

        If the process of the present owner cannot be observed, this method first waits for a
        heartbeat, at most for the lease time.

        Raises:
            RunInUse: the present owner is alive.
        """
        token, first, deadline = uuid.uuid4().hex, None, 0.0
        mine = OWNERS.c.folder == self.folder
        while True:
            with self.transaction() as connection:
                row = connection.execute(sa.select(OWNERS).where(mine)).first()
                stamp = None if row is None else stamp_in(row._mapping)
                alive = stamp is not None and stamp.is_alive()
                if stamp is not None and (alive or (alive is None and first not in (None, row))):
                    raise RunInUse(self._refusal(stamp.describe()))
                if alive is False or (first is not None and time.monotonic() > deadline):
                    connection.execute(sa.delete(OWNERS).where(mine))
                    about = {"folder": self.folder, "token": token, "beats": 0}
                    connection.execute(
                        sa.insert(OWNERS).values(about | vars(ProcessStamp.of_this_process()))
                    )
                    break
            if first is None:
                first, deadline = row, time.monotonic() + self._lease
            time.sleep(min(1.0, self._lease / 10))
        self._token = token
        threading.Thread(target=self._beat, daemon=True).start()

    def _renew(self, connection: sa.Connection) -> None:
        if not self._token:
            return
        beat = sa.update(OWNERS).where(OWNERS.c.token == self._token)
        if connection.execute(beat.values(beats=OWNERS.c.beats + 1)).rowcount != 1:
            holder = self.describe_owner() or "another command, which has ended"
            raise RunInUse(f"{self._refusal(holder)} (it took over while this command was paused)")

    def _refusal(self, holder: str) -> str:
        where = self if self._url else Path(self.place).parent
        return (
            f"{where} is in use by {holder}; wait until it ends, or choose another output "
            "directory with --out"
        )

    def _beat(self) -> None:
        while not self._closed.wait(self._lease / 3):
            with suppress(TilewrightError), self.transaction():
                pass

    # -- trials ---------------------------------------------------------------------------------

    def runs(self) -> dict[int, RunKey]:
        """Return the runs of this output directory, in the order in which they were added.

        Returns:
            Keys of the runs (workload ID, target fingerprint and run ID) by the run's number in the
            database.
        """
        mine = sa.select(RUNS).where(RUNS.c.folder == self.folder).order_by(RUNS.c.id)
        with self.read_snapshot() as connection:
            return {
                row.id: (str(row.workload), str(row.target), str(row.run))
                for row in connection.execute(mine)
            }

    def add_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, int]:
        """Add the runs that the database does not contain yet.

        Args:
            keys: keys of the runs.

        Returns:
            The number in the database of each of these runs, by key.
        """
        with self.transaction() as connection:
            known = {key: number for number, key in self.runs().items()}
            for key in keys:
                if key not in known:
                    names = dict(zip(("workload", "target", "run"), key, strict=True))
                    added = sa.insert(RUNS).values(folder=self.folder, **names)
                    known[key] = connection.execute(added.returning(RUNS.c.id)).scalar_one()
        return {key: known[key] for key in keys}

    def frame(self, keys: Sequence[RunKey] | None = None) -> pd.DataFrame:
        """Return the trials as a data frame with one row per trial and the columns `COLUMNS`.

        The trials of each run are ordered by round and numbered from 0. Rows that cannot be used
        are left out and reported in `problems`.

        Args:
            keys: keys of the runs to return; all runs by default.
        """
        numbers = {key: number for number, key in self.runs().items()}
        rows: list[list[object]] = []
        with self.read_snapshot() as connection:
            for key in numbers if keys is None else keys:
                used = (TRIALS.c.run_id == numbers.get(key)) & TRIALS.c.rejected.is_(None)
                made = sa.select(TRIALS).where(used).order_by(TRIALS.c.round, TRIALS.c.slot)
                good, bad = check_rows(TrialRow, connection.execute(made).mappings().all())
                self.report_rejected(bad)
                rows += [
                    [key[0], number, row["round"], row["config"], json.dumps(row["knobs"]),
                     row["status"], row["reason"], row["cycles"], row["seconds"]]
                    for number, row in enumerate(good)
                ]  # fmt: skip
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
            {"trial": "int64", "round": "int64", "cycles": "int64", "seconds": "float64"}
        )

    def report_rejected(self, rejected: Sequence[Rejected]) -> None:
        """Add messages about rejected rows to `problems`.

        The first few rows get one message each; the remaining rows are only counted.

        Args:
            rejected: the rows, each with the reason.
        """
        texts = [f"{self}: ignored a trial: {reason}" for _, reason in rejected[:TOLD_ROWS]]
        if len(rejected) > TOLD_ROWS:
            texts.append(f"{self}: ignored {len(rejected) - TOLD_ROWS} more trials")
        self.problems += [text for text in texts if text not in self.problems]

    def clear(self) -> None:
        """Delete all runs of the output directory, with their trials, rounds and validations."""
        with self.transaction() as connection:
            mine = sa.select(RUNS.c.id).where(RUNS.c.folder == self.folder)
            for table in (TRIALS, ROUNDS, VALIDATIONS, CLAIMS):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(mine)))
            connection.execute(sa.delete(RUNS).where(RUNS.c.folder == self.folder))

    def import_ledger(self, path: Path) -> None:
        """Import the trials of a ledger, the file format of earlier versions.

        Nothing happens if the ledger was imported before. The ledger file is kept, so that records
        that cannot be used are not lost.

        Args:
            path: the ledger file.

        Raises:
            TrialStoreError: the ledger has an unsupported version, or the trials cannot be written.
            UnsafeFile: the ledger is not a plain file.
            OSError: the ledger cannot be read.
        """
        imported = f"imported {path.name} {self.folder}"
        if not path.exists() or self.note(imported):
            return
        contents = read_ledger(path)
        if contents.refusal:
            raise TrialStoreError(contents.refusal)
        with self.transaction() as connection:
            if self.note(imported):
                return  # another command has imported the ledger meanwhile
            runs = self.add_runs([key for key, _ in contents.trials + contents.rounds])
            for table, result in ((TRIALS, contents.trials), (ROUNDS, contents.rounds)):
                if result:
                    rows = [{"run_id": runs[key], **row} for key, row in result]
                    connection.execute(sa.insert(table), rows)
            self.note(imported, f"{len(contents.trials)} trials")
        self.report_rejected(contents.rejected)

    def postgres_location(self) -> tuple[str, str] | None:
        """Return the PostgreSQL database that contains the trials of this output directory.

        Returns:
            URL of the database and ID of the output directory in it, or None if the trials are in
            the SQLite file.
        """
        url = self.note("url")
        return (url, self.note("folder")) if url else None


def stamp_in(row: Mapping[Any, Any]) -> ProcessStamp | None:
    """Parse the process that a database row describes, such as the process that owns a directory.

    Args:
        row: row with the columns `pid`, `started`, `host` and `space`.

    Returns:
        The process, or None if the columns are invalid.
    """
    pid, started = row["pid"], row["started"]
    if not isinstance(pid, int) or not isinstance(started, int):
        return None
    return ProcessStamp(pid, started, str(row["host"]), str(row["space"]))


# -- output directories -------------------------------------------------------------------------


@contextmanager
def open_store(
    folder: Path, url: str = "", *, fresh: bool = False, own: bool = True
) -> Iterator[TrialStore]:
    """Return a context manager that opens the trials of an output directory for writing.

    Ledgers of earlier versions are imported.

    Args:
        folder: the output directory.
        url: PostgreSQL database in which a new output directory keeps its trials; if empty, the
            trials are kept in the directory. Output directories that already have trials keep them
            where they are.
        fresh: whether to move a damaged file aside and start a new one.
        own: whether to become the owner of the output directory.

    Raises:
        RunInUse: another command owns the output directory.
        TrialStoreError: the database cannot be read or written.
    """
    with ExitStack() as stack:
        try:
            local = TrialStore(folder / FILE, own=own)
        except StoreDamaged:
            if not fresh:
                raise
            for suffix in BESIDE:
                with suppress(FileNotFoundError):
                    os.replace(folder / f"{FILE}{suffix}", folder / f"damaged-{FILE}{suffix}")
            local = TrialStore(folder / FILE, own=own)
        store = stack.enter_context(local)
        with local.transaction():  # if commands start at the same time, only one sets the location
            if url and not local.postgres_location() and not local.runs():
                number = uuid.uuid4().hex
                TrialStore(url, number, own=False).close()
                local.note("folder", number)
                local.note("url", url)
        if (elsewhere := local.postgres_location()) is not None:
            store = stack.enter_context(TrialStore(*elsewhere, own=own))
        if url and str(store.place) != url:
            store.problems.append(
                f"the trials of this output directory remain in {store}; --store only "
                "applies to new output directories"
            )
        for name in LEDGERS:
            store.import_ledger(folder / name)
        yield store


@contextmanager
def read_store(folder: Path) -> Iterator[TrialStore]:
    """Return a context manager that opens the trials of an output directory for reading.

    The trials can be read while a command is writing them.

    Args:
        folder: the output directory.

    Raises:
        FileNotFoundError: the directory contains no trials.
        TrialStoreError: the database cannot be read.
    """
    with ExitStack() as stack:
        ledger = next((folder / name for name in LEDGERS if (folder / name).exists()), None)
        if ledger is not None and not os.path.lexists(folder / FILE):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory())) / FILE
            store = stack.enter_context(TrialStore(place, own=False))
            store.import_ledger(ledger)
        else:
            store = stack.enter_context(_reader(folder / FILE))
            if not store.version:  # the command that made the file has not created tables yet
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(store.place))
            if (elsewhere := store.postgres_location()) is not None:
                store = stack.enter_context(_reader(*elsewhere))
        yield store


def _reader(place: Path | str, folder: str = "") -> TrialStore:
    """Open a store for reading. Tables of an earlier version are migrated first.

    Args:
        place: path of the SQLite file, or the URL of a PostgreSQL database.
        folder: ID of the output directory in a PostgreSQL database.
    """
    store = TrialStore(place, folder, read_only=True)
    if 0 < store.version < TRIAL_STORE.written:
        store.close()
        TrialStore(place, folder, own=False).close()
        store = TrialStore(place, folder, read_only=True)
    return store


# -- SQLite -------------------------------------------------------------------------------------

_STEP = "choose another output directory with --out"
_ROOM = "nothing of this batch was recorded; free some space and start the same command again"
_DAMAGED = (
    "move the file away, or delete the contents of the directory with --fresh; 'sqlite3 "
    "trials.sqlite .recover' saves what can be read"
)
_STEPS = {
    "SQLITE_FULL": _ROOM,
    "SQLITE_IOERR": _ROOM,
    "SQLITE_BUSY": "another program uses the database; end it, and start the same command again",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _DAMAGED,
    "SQLITE_ERROR": _DAMAGED,
    "URL": "start the database, then start the same command again; all committed trials are kept",
}
"""Advice for the user on what to do after a database error, by the prefix of SQLite's error name.
`URL` is the advice for PostgreSQL."""
_FOREIGN = """
    SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE V%'
    UNION ALL SELECT m.name || '.' || x.name FROM sqlite_master m, pragma_table_xinfo(m.name) x
    WHERE m.type = 'table' AND x.hidden
"""
"""SQL query for views, triggers, virtual tables and generated columns. A database that contains any
of them is rejected, because reading them could run foreign code."""


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=BUSY_SECONDS,
        isolation_level=None, check_same_thread=False,
    )  # fmt: skip
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
    for setting in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def use_write_ahead_log(connection: Any) -> str:
    """Enable SQLite's write-ahead log, so that readers are not blocked by a writer.

    If the file system does not support it, the older rollback journal is used, which is just as
    safe.

    Args:
        connection: an SQLite connection.

    Returns:
        The journal mode, or "" if neither could be set.
    """
    for mode in ("WAL", "DELETE"):
        with suppress(sqlite3.OperationalError):
            return str(connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
    return ""


def _leave_one_file(path: Path) -> None:
    """Merge the write-ahead log into the database, so that the file can be copied on its own.

    If another process has the database open, the log is merged when that process closes it.
    """
    with suppress(sqlite3.Error), closing(_connect(path, "rw")) as connection:
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA journal_mode=DELETE")


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
