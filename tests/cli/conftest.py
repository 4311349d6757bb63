"""Fixtures of the command-line tests, among them one finished `tilewright tune` run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import in_process, warm
from tests.sharing import OURS, made_once
from tilewright.services.prefect_server import Login
from tilewright.services.server_credentials import Credentials, workspace_secret
from tilewright.services.workspace import Workspace

TILEWRIGHT = warm.TILEWRIGHT
WITHOUT_RECORDS = {
    "board", "build", "cpu", "enumerate", "explain", "export", "inspect", "networks", "run",
    "targets", "trials", "tuners", "verify", "vta",
}  # fmt: skip
"""Commands that start neither Prefect nor MLflow."""


@dataclass(frozen=True)
class Place:
    """A folder to run commands in, with its own workspace and maybe an external Prefect server."""

    folder: Path
    server: Login | None = None

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        named = self.server.settings if self.server else {}
        return kept | named | {"TILEWRIGHT_HOME": str(self.folder / "home")}

    def login(self, api_url: str) -> Login:
        """Return the login for a server that this place starts itself."""
        workspace = Workspace(self.folder / "home")
        return Login(api_url, Credentials(workspace_secret(workspace)))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tilewright …` and wait: in a fork if it keeps records, otherwise in this process."""
        if arguments[0] in WITHOUT_RECORDS or "--bare" in arguments:
            return self.call(*arguments)
        return warm.run(arguments, self.folder, self.environment, timeout=600)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tilewright …` in this process and wait."""
        return in_process.run(arguments, self.folder, self.environment)

    def script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the installed script `tilewright` in a new Python process and wait."""
        return subprocess.run(
            [str(TILEWRIGHT), *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=600,
        )  # fmt: skip

    def fork(self, *arguments: str, **variables: str) -> warm.Started:
        """Start `tilewright …` as a fork in the background."""
        return warm.start(arguments, self.folder, self.environment | variables)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the installed script in the background, with Ctrl-C enabled.

        A suite that runs in the background ignores Ctrl-C, which its children would inherit.
        """
        return subprocess.Popen(
            [str(TILEWRIGHT), *arguments],
            cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


LAYERS = ("conv2", "conv3", "fc")
"""The layers of digits_cnn that are tuned here, in network order. All have different shapes."""

TRIALS, ROUNDS = 40, 3
"""Number of trials and rounds per layer. A round has up to 16 trials."""

TUNE = ("tune", "digits_cnn", "--layers", ",".join(LAYERS), "--tuner", "ml2tuner-published",
        "--trials", str(TRIALS), "--seed", "7")  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """A finished `tilewright tune`: its place and its printed output."""

    place: Place
    printed: str

    @property
    def out(self) -> Path:
        return self.place.folder / "out"


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return one finished run. All tests of all workers share it and only read it."""

    def tune(folder: Path) -> None:
        done = Place(folder).run(*TUNE, "--out", "out")
        assert done.returncode == 0, done.stderr
        (folder / "printed").write_text(done.stdout)

    folder = made_once(tmp_path_factory, "tuned", tune)
    return Tuned(Place(folder), (folder / "printed").read_text())
