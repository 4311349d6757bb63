"""Parses `deployments/compose.yaml` and checks what it promises. No container is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deployments" / "compose.yaml"
SERVICES = {"database", "prefect", "mlflow", "worker"}
KEYS = {
    "build", "cap_drop", "command", "configs", "depends_on", "environment", "healthcheck", "image",
    "init", "networks", "ports", "restart", "security_opt", "volumes",
}  # fmt: skip
"""Of the Compose specification, those a service here has."""


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_every_name_is_declared(compose: Any) -> None:
    known = {"name", "services", "volumes", "networks", "configs"}
    assert {key for key in compose if not key.startswith("x-")} == known
    assert set(compose["services"]) == SERVICES
    for service in compose["services"].values():
        assert set(service) <= KEYS
        assert set(service["networks"]) <= set(compose["networks"])
        assert set(service.get("depends_on", {})) <= SERVICES
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(
            compose["volumes"]
        )
        assert {each["source"] for each in service.get("configs", [])} <= set(compose["configs"])
        if "build" in service:
            folder = (FILE.parent / service["build"]["context"]).resolve()
            assert folder == ROOT
            assert (folder / service["build"]["dockerfile"]).is_file()


def test_everything_is_watched_and_waits_for_what_it_needs(compose: Any) -> None:
    for service in compose["services"].values():
        check = service["healthcheck"]
        assert check["test"][0] == "CMD"
        assert {"interval", "timeout", "retries"} <= set(check)
        assert service["restart"] == "unless-stopped"
        for needed in service.get("depends_on", {}).values():
            assert needed == {"condition": "service_healthy"}
    for name in SERVICES - {"database"}:
        program = compose["services"][name]["healthcheck"]["test"][-1]
        compile(program, name, "exec")


def test_no_password_is_known_beforehand(compose: Any) -> None:
    text = FILE.read_text()
    for variable in "TILEWRIGHT_DATABASE_PASSWORD", "TILEWRIGHT_LOGIN":
        used = re.findall(rf"\$\{{{variable}([^}}]*)\}}", text)
        assert used
        assert all(after.startswith((":?", "?")) for after in used), "it would have a default"
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            if re.search("PASSWORD|AUTH_STRING|CONNECTION_URL|STORE_URI", name):
                assert "${TILEWRIGHT_" in value


def test_pages_are_on_loopback_and_the_database_is_nowhere(compose: Any) -> None:
    services = compose["services"]
    assert {name for name, service in services.items() if "ports" in service} == {
        "prefect",
        "mlflow",
    }
    for name in "prefect", "mlflow":
        (published,) = services[name]["ports"]
        assert published.startswith(("127.0.0.1:", "${TILEWRIGHT_ADDRESS:-127.0.0.1}:"))
    assert compose["networks"]["inside"]["internal"] is True
    for name in "database", "worker":
        assert services[name]["networks"] == ["inside"]


def test_no_image_has_the_secret_of_a_home() -> None:
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".venv", ".tilewright", "**/.tilewright"} <= set(left_out)


@pytest.mark.slow(seconds=4)
def test_the_servers_have_the_options_they_are_started_with(compose: Any) -> None:
    import click
    from mlflow.cli import cli

    server = cli.commands["server"]
    assert isinstance(server, click.Command)
    known = {name for parameter in server.params for name in parameter.opts}
    command = compose["services"]["mlflow"]["command"]
    assert command[:2] == ["mlflow", "server"]
    assert {word for word in command if word.startswith("--")} <= known


def test_the_image_takes_the_driver_out_of_the_lock() -> None:
    """As the Dockerfile does: one package, with its hashes."""
    found = re.search(
        r"awk ('[^']*') requirements-dev.lock", (FILE.parent / "Dockerfile").read_text()
    )
    assert found is not None
    taken = subprocess.run(
        ["bash", "-c", f"awk {found[1]} requirements-dev.lock"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert taken[0].startswith("psycopg2-binary==")
    assert len(taken) > 2
    assert all(re.match(r"    --hash=sha256:[0-9a-f]{64}", line) for line in taken[1:])


def test_the_script_says_what_it_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(FILE.parent / "team.py"), "--folder", str(tmp_path / "team")],
        env={k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: TILEWRIGHT_DATABASE_PASSWORD is not set")
    assert not (tmp_path / "team").exists()
