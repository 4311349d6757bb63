"""Messages about external causes that stopped a command, such as a full disk or a lost server.

Libraries report such causes in different ways, often as the error of a server that cannot write.
Their error is therefore only a hint. The cause is found by checking folders and databases.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import started_in
from tilewright.services.prefect_mlflow_settings import without_login
from tilewright.services.server_process import ServerError
from tilewright.services.workspace import current_workspace

PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG}
FOREIGN = {
    "httpcore", "httpx", "lightgbm", "mlflow", "prefect", "requests", "sqlalchemy", "sqlite3",
    "urllib3", "xgboost",
}  # fmt: skip
EXTRAS = {
    "prefect": "flows", "mlflow": "flows", "dask": "cluster", "distributed": "cluster",
    "cryptography": "cluster", "optuna": "optuna",
}  # fmt: skip
"""Extra of this distribution (as in `pip install tilewright[EXTRA]`) that installs a package, by
name of the package."""
LITTLE_SPACE = 8 << 20
"""Free bytes below which a disk is assumed to be the cause of a library's failure."""
PATIENCE_SECONDS = 2.0
_SHOWN = 120  # characters of a path


def explain_error(error: BaseException) -> str | None:
    """Return a message about the external cause of an error and what to do about it.

    External causes are, for example, a full disk or a locked database.

    Args:
        error: the error that stopped the command.

    Returns:
        The message. None if the error is a defect of this program, or if its own message is
        sufficient.
    """
    if isinstance(error, TilewrightError) and not isinstance(error, ServerError):
        return None
    if isinstance(error, OSError) and error.errno in PATH_ERRORS and error.strerror:
        place = str(error.filename2 or error.filename or "a path")
        return f"{error.strerror}: {_shorten(place)}; give another path"
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, ModuleNotFoundError) and (result := _missing_extra(one.name or "")):
            return result
    result = _disk_error(chain)
    if result is None and any(_is_foreign(one) for one in chain):
        result = _full_or_read_only() or _database_problem(chain) or _lost_server(chain)
    if result is None:
        return None
    return f"{result}, then repeat the command; it resumes from here, and no measurement is lost"


def _missing_extra(module: str) -> str | None:
    """Return a message on how to install a missing package.

    Args:
        module: name of the module that could not be imported.

    Returns:
        The message, which names the extra of Tilewright that installs the package; None if no extra
        does.
    """
    package = module.partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = EXTRAS[package]
    without = ", or repeat the command with --bare, where it has that option"
    return (
        f"the package {package} is not installed; install it with: pip install "
        f"'tilewright[{extra}]'{without if extra == 'flows' else ''}"
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_foreign(error: BaseException) -> bool:
    return isinstance(error, ServerError) or _package(error) in FOREIGN


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _disk_error(chain: Sequence[BaseException]) -> str | None:
    for one in chain:
        if isinstance(one, OSError) and one.errno in DISK_ERRORS and one.strerror:
            return _disk_message(one, one.filename2 or one.filename or "a file of the run")
    return None


def _disk_message(problem: OSError, place: object) -> str:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    step = "make room there" if full else "make it writable or choose another folder"
    return f"{problem.strerror}: {place}; {step}"


def _full_or_read_only() -> str | None:
    for folder in (current_workspace().root, started_in(), Path(tempfile.gettempdir())):
        try:
            there = next(parent for parent in (folder, *folder.parents) if parent.exists())
            state = os.statvfs(there)
            if state.f_bavail * state.f_frsize < LITTLE_SPACE:
                return _disk_message(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), folder)
            with tempfile.TemporaryFile(dir=there) as probe:
                probe.write(bytes(1 << 16))
        except OSError as error:
            return _disk_message(error, folder)
    return None


def _database_problem(chain: Sequence[BaseException]) -> str | None:
    workspace = current_workspace()
    kept = (workspace.prefect_database, workspace.mlflow_database)
    for path in filter(Path.exists, kept):
        try:
            uri = f"{path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_SECONDS)) as database:
                database.execute("begin immediate")
                (verdict,) = database.execute("pragma quick_check(1)").fetchone()
                if verdict != "ok":
                    return _set_aside(path, verdict.strip().splitlines()[-1])
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                return f"the database {path} is locked by another process; end that process"
            return _set_aside(path, str(error))
    for one in chain:
        if _package(one) == "sqlite3":
            return (
                f"the databases in {workspace.root} cannot be used ({one}); check the "
                "folder and the free disk space"
            )
    return None


def _set_aside(path: Path, problem: str) -> str:
    return f"the database {path} is damaged ({problem}); move the file away (a new one is created)"


def _lost_server(chain: Sequence[BaseException]) -> str | None:
    packages = {_package(one) for one in chain}
    named = os.environ.get("PREFECT_API_URL")
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    if packages & {"httpx", "httpcore"}:
        where = f"at {without_login(named)}" if named else "of this command"
        return f"the Prefect server {where} does not respond; see {current_workspace().server_log}"
    if packages & {"requests", "urllib3"} and tracking.startswith("http"):
        return f"the MLflow server at {without_login(tracking)} does not respond; start it again"
    return None
