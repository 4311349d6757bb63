"""Parses the files in `deployments/` and checks their settings. No container is started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deployments"
FILE = FOLDER / "compose.yaml"
SCRIPT = FOLDER / "team" / "team.sh"
TEMPLATE = FOLDER / "team" / "nginx.conf.template"
SERVICES = {"database", "prefect", "mlflow", "nginx", "worker"}
OURS = ("prefect", "mlflow", "worker")
"""Services that run the image of this repository."""
KEYS = {
    "build", "cap_drop", "command", "configs", "depends_on", "environment", "healthcheck", "image",
    "init", "networks", "ports", "read_only", "restart", "security_opt", "tmpfs", "user", "volumes",
}  # fmt: skip
"""Keys of the Compose specification that the services use."""


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
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source.startswith("./team/") or source in compose["volumes"]
        assert {item["source"] for item in service.get("configs", [])} <= set(compose["configs"])
        if "build" in service:
            folder = (FOLDER / service["build"]["context"]).resolve()
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
    for name in OURS:
        program = compose["services"][name]["healthcheck"]["test"][-1]
        compile(program, name, "exec")


def test_no_password_has_a_default(compose: Any) -> None:
    text = FILE.read_text()
    secrets = set(re.findall(r"\$\{(TILEWRIGHT_\w+(?:PASSWORD|TOKEN|BASE64))", text))
    assert len(secrets) == 7
    guide = (ROOT / "docs" / "guides" / "team.md").read_text()
    for variable in secrets:
        used = re.findall(rf"\$\{{{variable}([^}}\w]*)", text)
        assert ":?" in used, f"{variable} may be missing"
        assert set(used) <= {"", ":?"}, f"{variable} has a default"
        assert f"\n{variable}=$" in guide
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|AUTH_STRING|CONNECTION_URL|STORE_URI|_LOGIN", name):
                assert "${TILEWRIGHT_" in value


def test_nginx_alone_can_be_reached_from_outside(compose: Any) -> None:
    services = compose["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["nginx"]
    for published in services["nginx"]["ports"]:
        assert published.startswith("${TILEWRIGHT_ADDRESS:-127.0.0.1}:")
    inside = {name for name, network in compose["networks"].items() if network}
    assert all(compose["networks"][name] == {"internal": True} for name in inside)
    for name in SERVICES - {"nginx"}:
        assert set(services[name]["networks"]) <= inside
    assert not set(services["worker"]["networks"]) & set(services["prefect"]["networks"])


def test_each_server_is_a_user_with_a_volume_of_its_own(compose: Any) -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    made = re.search(r"for user in ([^;]*);", dockerfile)
    assert made is not None
    assert tuple(made[1].split()) == OURS
    for name in OURS:
        service = compose["services"][name]
        assert service["user"] == name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert f"{name}:/data/{name}" in service["volumes"]


def test_no_image_has_the_secret_of_a_home() -> None:
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    wanted = {".venv", ".tilewright", "**/.tilewright", "deployments/.env"}
    assert wanted | {"deployments/team/files/"} <= set(left_out)


def test_nginx_asks_for_a_login_everywhere() -> None:
    _, *servers = TEMPLATE.read_text().split("\nserver {")
    other, *ours = servers
    assert "return 421;" in other
    assert len(ours) == 2
    for server in ours:
        for line in (
            "if ($from_elsewhere) { return 403; }", "auth_basic_user_file ${USERS};",
            "client_max_body_size", "connect-src 'self'",
        ):  # fmt: skip
            assert line in server
        assert "auth_basic off" not in re.sub(" +", " ", server)


def test_both_ways_to_start_nginx_fill_every_variable(compose: Any) -> None:
    variables = set(re.findall(r"\$\{([A-Z_]+)\}", TEMPLATE.read_text())) - {"VARIABLES"}
    filled = set(re.findall(r"^s\|\\\$\{([A-Z_]+)\}", SCRIPT.read_text(), re.MULTILINE))
    assert variables == filled == set(compose["services"]["nginx"]["environment"])


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_the_servers_have_the_options_they_are_started_with(compose: Any, name: str) -> None:
    words = compose["services"][name]["command"]
    script = re.search(rf"-m {name} server (.*?)\n}}", SCRIPT.read_text(), re.DOTALL)
    assert script is not None
    options = {word for word in words if word.startswith("--")}
    options |= set(re.findall(r"(?<= )--[a-z-]+", re.sub('"[^"]*"', "", script[1])))
    help_text = subprocess.run(
        [sys.executable, "-P", "-m", *words[: 3 if name == "prefect" else 2], "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for option in options:
        assert re.search(rf"{option}\b", help_text), option


def test_the_image_takes_the_driver_out_of_the_lock() -> None:
    """The Dockerfile extracts one package with its hashes in the same way."""
    match = re.search(r"awk ('[^']*') requirements-dev.lock", (FOLDER / "Dockerfile").read_text())
    assert match is not None
    taken = subprocess.run(
        ["bash", "-c", f"awk {match[1]} requirements-dev.lock"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert taken[0].startswith("psycopg2-binary==")
    assert len(taken) > 2
    assert all(re.match(r"    --hash=sha256:[0-9a-f]{64}", line) for line in taken[1:])


def test_the_script_says_what_it_can_do_and_what_it_lacks(tmp_path: Path) -> None:
    def errors(*words: str) -> str:
        done = subprocess.run(
            [str(SCRIPT), *words], env={"TILEWRIGHT_TEAM_CONFIG": str(tmp_path / "none")},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        return done.stderr

    assert re.fullmatch(r"error: (run this as root|.*none is missing; copy .*)\n", errors("run"))
