"""Places files that an attacker could leave in a folder, and watches whether they are opened.

Each planted file leaves a mark if it is executed: a folder of its name below `marks`, or a line
printed by the module that a settings file tells numba to import.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

ZEN = "Beautiful is better than ugly"
"""A line that `import this` prints. A settings file can name this module, and nothing else imports
it."""
MODULES = (
    "cli", "conftest", "git", "gunicorn.conf", "mlflow", "numpy", "prefect", "services", "setup",
    "sitecustomize", "targets", "tilewright", "usercustomize", "uvicorn", "xgboost", "yaml",
)  # fmt: skip


def plant(folder: Path, marks: Path, only: str | None = None) -> list[Path]:
    """Place all planted files, or only those named `only`, and return their paths."""
    marks.mkdir(exist_ok=True)
    before = set(folder.rglob("*"))
    for name, lay in PLANTS.items():
        if only in (None, name):
            lay(folder, marks)
    return sorted(path for path in set(folder.rglob("*")) - before - {marks} if path.is_file())


def _logging(path: Path, mark: Path) -> Path:
    """Write a logging configuration that creates a folder when it is loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = {"()": "os.makedirs", "name": str(mark), "exist_ok": True}
    path.write_text(json.dumps({"version": 1, "handlers": {"console": handler}}))
    return path


def _prefect_toml(folder: Path, marks: Path) -> None:
    file = _logging(folder / "hostile" / "prefect.yml", marks / "prefect.toml")
    (folder / "prefect.toml").write_text(f"[logging]\nconfig_path = {json.dumps(str(file))}\n")


def _pyproject(folder: Path, marks: Path) -> None:
    file = _logging(folder / "hostile" / "pyproject.yml", marks / "pyproject.toml")
    (folder / "pyproject.toml").write_text(
        f"[tool.prefect.logging]\nconfig_path = {json.dumps(str(file))}\n"
    )


def _dot_env(folder: Path, marks: Path) -> None:
    file = _logging(folder / "hostile" / "env.yml", marks / ".env")
    for name in (".env", ".flaskenv"):
        (folder / name).write_text(f"PREFECT_LOGGING_CONFIG_PATH={file}\n")


def _numba(folder: Path, marks: Path) -> None:
    (folder / ".numba_config.yaml").write_text("cache_locator_classes: this.d\n")


def _matplotlib(folder: Path, marks: Path) -> None:
    (folder / "matplotlibrc").write_text("backend: module://mlflow\nsavefig.dpi: 1\n")


def _modules(folder: Path, marks: Path) -> None:
    for name in MODULES:
        mark = str(marks / f"{name}.py")
        (folder / f"{name}.py").write_text(f"import os\nos.makedirs({mark!r}, exist_ok=True)\n")


def _editable(folder: Path, marks: Path) -> None:
    """Make a folder with the name that setuptools adds to `sys.path` for namespace packages.

    Python searches it for `sitecustomize` before any code of this project runs.
    """
    place = folder / f"__editable__.tilewright-{version('tilewright')}.finder.__path_hook__"
    place.mkdir()
    for name in ("sitecustomize", "usercustomize", "cuda", "socksio"):
        mark = str(marks / f"editable-{name}.py")
        (place / f"{name}.py").write_text(f"import os\nos.makedirs({mark!r}, exist_ok=True)\n")


def _git(folder: Path, marks: Path) -> None:
    """Make a Git repository whose status runs a command, and whose hooks are commands."""
    repository = folder / ".git"
    (repository / "hooks").mkdir(parents=True)
    (repository / "objects").mkdir()
    (repository / "refs" / "heads").mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n")
    command = f"mkdir -p '{marks / 'git'}'"
    (repository / "config").write_text(
        f'[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = "{command}"\n'
        f'\tpager = "{command}"\n\tsshCommand = "{command}"\n'
    )
    for hook in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction"):
        file = repository / "hooks" / hook
        file.write_text(f"#!/bin/sh\n{command}\n")
        file.chmod(0o755)


def _others(folder: Path, marks: Path) -> None:
    """Write settings files of other dependencies, where these may search for them."""
    calls = f"(os.makedirs({str(marks / 'logging.conf')!r}, exist_ok=True),)"
    (folder / "logging.conf").write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=h\n[formatters]\nkeys=\n[logger_root]\n"
        f"handlers=h\n[handler_h]\nclass=StreamHandler\nargs={calls}\n"
    )
    (folder / "alembic.ini").write_text(f"[alembic]\nscript_location = {folder / 'hostile'}\n")
    (folder / "hostile").mkdir(exist_ok=True)
    (folder / "hostile" / "env.py").write_text(
        f"import os\nos.makedirs({str(marks / 'alembic.ini')!r}, exist_ok=True)\n"
    )
    package = folder / "evil-1.0.dist-info"  # entry points, if it is on the path
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = (
        "tilewright.targets", "tilewright.tuners", "prefect.collections", "mlflow.app",
        "mlflow.tracking_store", "mlflow.artifact_repository", "sqlalchemy.dialects",
        "mlflow.request_header_provider", "mlflow.run_context_provider", "fsspec.specs",
    )  # fmt: skip
    (package / "entry_points.txt").write_text(
        "".join(f"[{group}]\nevil = setup:evil\n" for group in groups)
    )
    for name in (
        "MLproject", "prefect.yaml", ".prefectignore", "setup.cfg", "tox.ini", ".databrickscfg",
        ".netrc", "python_env.yaml", "conda.yaml", "uvicorn.json", "optuna.ini", ".condarc",
        "pyvenv.cfg", "hostile.pth", "fonts.conf", ".magic", "fsspec.json", "xgboost.conf",
    ):  # fmt: skip
        (folder / name).write_text("hostile = true\n")


Lay = Callable[[Path, Path], None]
PLANTS: dict[str, Lay] = {
    "prefect.toml": _prefect_toml,
    "pyproject.toml": _pyproject,
    ".env": _dot_env,
    ".numba_config.yaml": _numba,
    "matplotlibrc": _matplotlib,
    "modules": _modules,
    "editable": _editable,
    ".git": _git,
    "others": _others,
}

# -- watching for opened files ---------------------------------------------------------------------

_OPEN, _IS_FOLDER, _OVERFLOW = 0x20, 0x40000000, 0x4000
_HEAD = struct.Struct("iIII")


@contextmanager
def watching(files: list[Path]) -> Iterator[set[Path]]:
    """Collect which of the files any process opens. The set is complete when the context ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0
    opened: set[Path] = set()
    try:
        folders = {}
        for folder in {path.parent for path in files}:
            watch = libc.inotify_add_watch(descriptor, os.fsencode(folder), _OPEN)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            folders[watch] = folder
        yield opened
        opened |= _events(descriptor, folders) & set(files)
    finally:
        os.close(descriptor)


def _events(descriptor: int, folders: dict[int, Path]) -> set[Path]:
    result = set()
    while True:
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return result
        while data:
            watch, mask, _, length = _HEAD.unpack_from(data)
            name, data = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
            assert not mask & _OVERFLOW, "more happened than the kernel keeps"
            if not mask & _IS_FOLDER:
                result.add(folders[watch] / os.fsdecode(name.rstrip(b"\0")))
