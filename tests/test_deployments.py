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
ONCE = {"users"}
"""Those that only `docker compose run` starts."""
KEYS = {
    "build", "cap_drop", "command", "configs", "depends_on", "entrypoint", "environment",
    "healthcheck", "image", "init", "network_mode", "networks", "ports", "profiles", "restart",
    "security_opt", "volumes",
}  # fmt: skip
"""Of the Compose specification, those a service here has."""


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_every_name_is_declared(compose: Any) -> None:
    known = {"name", "services", "volumes", "networks", "configs"}
    assert {key for key in compose if not key.startswith("x-")} == known
    assert set(compose["services"]) == SERVICES | ONCE
    for service in compose["services"].values():
        assert set(service) <= KEYS
        assert set(service.get("networks", [])) <= set(compose["networks"])
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
    for name in SERVICES:
        service = compose["services"][name]
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
    for variable in "TILEWRIGHT_DATABASE_PASSWORD", "TILEWRIGHT_WORKER_SECRET":
        used = re.findall(rf"\$\{{{variable}([^}}]*)\}}", text)
        assert used
        assert all(after.startswith((":?", "?")) for after in used), "it would have a default"
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
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


def test_both_servers_ask_for_the_login_of_a_user(compose: Any) -> None:
    for name in "prefect", "mlflow":
        service = compose["services"][name]
        module = "tilewright.services.team_server"
        assert service["command"][:5] == ["python", "-P", "-m", module, name]
        assert "users:/users:ro" in service["volumes"]
        assert "401" in service["healthcheck"]["test"][-1]
    users = compose["services"]["users"]
    assert users["network_mode"] == "none"
    assert users["volumes"] == ["users:/users"]
    worker = compose["services"]["worker"]
    assert not any(volume.startswith("users:") for volume in worker["volumes"])


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_the_servers_have_the_options_they_are_started_with(compose: Any, name: str) -> None:
    words = [word.partition("${")[0] or "http://x" for word in compose["services"][name]["command"]]
    command = [sys.executable, *words[1:]]
    done = subprocess.run(
        [*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {word for word in command if word.startswith("--")} <= set(done.stdout.split())


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


def test_the_script_shows_a_secret_once(tmp_path: Path) -> None:
    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", str(FILE.parent / "team.py"), *words, "--folder", str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    secret = said("add-user", "ada").stdout.strip()
    assert re.fullmatch("[0-9a-f]{64}", secret)
    file = tmp_path / "users"
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    for name in "workers", "a:b", "a\nb", "":
        refused = said("add-user", name)
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: ")
    assert said("remove-user", "ada").returncode == 0
    assert file.read_text() == ""
    assert "'ada' is not a user" in said("remove-user", "ada").stderr
