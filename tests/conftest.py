"""Pytest configuration: golden files, shared fixtures, and the order of tests over workers.

`pytest --update-golden` writes the current outputs as the new golden files. Look at the diff before
committing it.

`make test` calls `pytest -n 3 --dist loadfile --no-loadscope-reorder`. Each worker takes whole
files, so that module fixtures are made once. The files that take longest come first, by the seconds
in the tests' `slow` and `nightly` marks. A test marked `alone` runs while no other test runs.
(`--dist loadgroup` does not work here: pytest 9.2 keeps the test names in a place that pytest-xdist
3.8 cannot modify.)

Hypothesis runs without deadlines: a first example may compile code, and machines may be busy.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import draws, warm
from tests.sharing import Turns, folder_of_the_run, made_once, prefect_beside
from tilewright.services.prefect_server import Login

if TYPE_CHECKING:
    from tests.cli.conftest import Place

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A suite that a script starts with `&` ignores Ctrl-C, and its commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

GOLDEN = Path(__file__).parent / "data" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


QUIET_POOLS = {"OMP_WAIT_POLICY": "PASSIVE", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Settings that let waiting OpenMP and TVM threads release their core. By default they spin. If
several test workers share few cores, a training of half a second then takes minutes."""


def pytest_configure(config: pytest.Config) -> None:
    # Workspaces reserve their ports here. The ports of the user's own workspaces stay reserved.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="tilewright-state-")
    for name, value in QUIET_POOLS.items():  # the libraries read this when they are loaded
        os.environ.setdefault(name, value)
    chosen = config.getoption("markexpr")
    if "not slow" in chosen:
        warm.expect_short_commands()
    if "not slow" in chosen or "not nightly" in chosen:
        draws.draw_fewer()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return `golden(name, text)`, which compares a text with the golden file of that name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {name}: run pytest --update-golden"
        assert text == path.read_text()

    return check


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """Run one Prefect server for many tests, as an external server, and yield its login.

    Starting a server takes a third of the time of a short run. Tests of a command that starts its
    own server do not use this fixture.
    """
    with prefect_beside(tmp_path_factory.mktemp("prefect")) as login:
        yield login


@pytest.fixture(scope="session")
def digits_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a compiled library of `digits_cnn`, which tests only read."""

    def build(folder: Path) -> None:
        from tilewright.flows.build import build_artifact
        from tilewright.search import LocalRunner
        from tilewright.tuning.build_options import BuildOptions

        options = BuildOptions(model="digits_cnn", out=folder / "art", target="cpu", trials=0)
        build_artifact(LocalRunner(), options)

    return made_once(tmp_path_factory, "digits-library", build) / "art"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return _place(tmp_path)


@pytest.fixture
def guest(tmp_path: Path, prefect_server: Login) -> Place:
    """Return a place whose commands use a running Prefect server."""
    return _place(tmp_path, prefect_server)


def _place(folder: Path, login: Login | None = None) -> Place:
    from tests.cli.conftest import Place  # imported late, because few processes need it

    return Place(folder, login)


# -- several workers ---------------------------------------------------------------------------


OF_OWN_TARGETS = ("browser", "team")
"""Marks of tests that need a special set-up. `make browser-test` and `make team-test` run them."""


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (nightly := item.get_closest_marker("nightly")) is not None:
            item.add_marker(pytest.mark.slow(**nightly.kwargs))
    unasked = [mark for mark in OF_OWN_TARGETS if mark not in str(config.getoption("markexpr"))]
    left = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    seconds: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        seconds[item.path] += max(
            (float(mark.kwargs["seconds"]) for mark in item.iter_markers("slow")), default=0.1
        )
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="session")
def _turns(tmp_path_factory: pytest.TempPathFactory) -> Turns:
    return Turns(folder_of_the_run(tmp_path_factory))


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, _turns: Turns) -> Iterator[None]:
    alone = request.node.get_closest_marker("alone") is not None
    with _turns.alone() if alone else _turns.beside_others():
        yield


# -- slow tests --------------------------------------------------------------------------------

UNMARKED_SECONDS = 10.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List slow tests without the mark `slow`. On a busy machine, others may be listed too."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
            seconds[report.nodeid] += report.duration
    for test, spent in sorted(seconds.items()):
        if spent > UNMARKED_SECONDS:
            terminalreporter.write_line(f"not marked slow, took {spent:.0f} s: {test}")
