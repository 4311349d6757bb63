"""Registers all flows with a Prefect server: the work pool, the deployments and the automations.

    python -m tilewright.flows.deploy_all [FOLDER]    # default: deployments/ in the current folder

The command may be repeated; existing objects are updated. It starts no process, but prints what to
start next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tilewright.core.errors import TilewrightError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.process_info import module_path
from tilewright.core.user_text import printable
from tilewright.flows.serve import serving_process
from tilewright.services.server_process import ServerError, is_answering
from tilewright.services.start_servers import API_URL, AUTH_STRING, login_for
from tilewright.services.workspace import use_workspace

yaml = lazy_module("yaml")

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL, POOL_KIND = "tilewright", "process"
DEPLOYMENTS, AUTOMATIONS = "prefect.yaml", "zombies.yaml"
MINUTES = 10


class DeployError(TilewrightError):
    """The server rejected the deployments, or they cannot be read."""


def deploy_all(folder: Path) -> list[str]:
    """Register the work pool, the deployments and the automations with the Prefect server.

    Args:
        folder: folder with `prefect.yaml`, which lists the deployments, and `zombies.yaml`, which
            lists the automations.

    Returns:
        Lines for the user about what was done and what to start next.

    Raises:
        ServerError: no server answers.
        DeployError: the deployments cannot be registered.
        SecretError: the login cannot be read.
        WorkspaceError: the workspace cannot be used.
    """
    if not (folder / DEPLOYMENTS).is_file():
        raise DeployError(
            f"{folder / DEPLOYMENTS} does not exist; run this command in the root of the repository"
        )
    address = log_in()
    with _client() as client:
        _check_unserved(client, folder / DEPLOYMENTS)
        done = [f"using Prefect at {address}", _provide_pool(client)]
        done += _deploy(folder / DEPLOYMENTS)
        _close_forms(client)
        done += apply_automations(folder / AUTOMATIONS)
        if not _acts_on_events(client):
            done.append(
                "note: this server does not run automations; start it with "
                "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED=true"
            )
    return [
        *done,
        "next, start a worker with 'make worker', here or on any machine that has this repository",
    ]


def apply_automations(file: Path) -> list[str]:
    """Create or update the automations in a file.

    Args:
        file: YAML file with a list `automations`.

    Returns:
        One line for the user per automation.
    """
    with _client() as client:
        return [_apply(client, automation) for automation in _automations(file)]


def _client() -> SyncPrefectClient:
    """Return a client for the server in the environment."""
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def log_in() -> str:
    """Set the login of the Prefect server in the environment, and return the server's address.

    Returns:
        Address of the server's API.

    Raises:
        ServerError: no server is configured, or it does not answer.
        SecretError: the login cannot be read.
        WorkspaceError: the workspace cannot be used.
    """
    workspace, named = use_workspace(), os.environ.get(API_URL)
    login = login_for(named, workspace)
    if login is not None:
        os.environ |= login.settings
    address = os.environ.get(API_URL)
    if not address:
        raise ServerError(
            "no Prefect server is configured; start one ('prefect server start', or "
            "'tilewright ui' for this folder) and set its address: export "
            f"{API_URL}=http://127.0.0.1:4200/api"
        )
    if not is_answering(f"{address.rstrip('/')}/health", _headers()):
        raise ServerError(
            f"no Prefect server responds at {address}; start it, or give another address"
        )
    return address


def _headers() -> dict[str, str]:
    """Return the HTTP headers that Prefect's client sends, as the environment configures them."""
    given = os.environ.get(AUTH_STRING)
    login = {"Authorization": f"Basic {b64encode(given.encode()).decode()}"} if given else {}
    custom = os.environ.get("PREFECT_CLIENT_CUSTOM_HEADERS") or "{}"
    return login | cast(dict[str, str], json.loads(custom))


def _provide_pool(client: SyncPrefectClient) -> str:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    try:
        client.create_work_pool(WorkPoolCreate(name=POOL, type=POOL_KIND))
    except ObjectAlreadyExists:
        return f"work pool {POOL} exists already"
    return f"work pool {POOL} created"


def _check_unserved(client: SyncPrefectClient, file: Path) -> None:
    """Check that no process serves a deployment that is defined in a file.

    Otherwise the workers of the pool would also execute the runs of that process.

    Args:
        client: Prefect client.
        file: YAML file with a list `deployments`.

    Raises:
        DeployError: a process serves one of the deployments.
    """
    from prefect.exceptions import ObjectNotFound

    for wanted in yaml.safe_load(file.read_text())["deployments"]:
        name = f"{wanted['entrypoint'].rpartition('.')[2]}/{wanted['name']}"
        with suppress(ObjectNotFound):
            if process := serving_process(client.read_deployment_by_name(name)):
                raise DeployError(
                    f"{process} already serves {name}, which is also defined in {file}; end "
                    "that process, or rename one of the two deployments"
                )


def _deploy(file: Path) -> list[str]:
    """Register the deployments in a file with Prefect's own command.

    Prefect's command is used because it reads the file exactly as Prefect documents it.

    Args:
        file: YAML file with a list `deployments`.

    Returns:
        One line for the user per deployment.
    """
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
        capture_output=True, text=True, check=False, timeout=60 * MINUTES,
        env=os.environ | {"PYTHONPATH": module_path()},
    )  # fmt: skip
    message = printable(done.stdout + done.stderr, keep="\n")
    if done.returncode:
        raise DeployError(
            f"Prefect rejected {file}; correct the file and repeat the command:\n{message.strip()}"
        )
    listed = yaml.safe_load(file.read_text())["deployments"]
    return [f"deployed {item['entrypoint'].rpartition('.')[2]}/{item['name']}" for item in listed]


def _close_forms(client: SyncPrefectClient) -> None:
    """Make the server reject runs of our deployments that have unknown parameters.

    Args:
        client: Prefect client.
    """
    from prefect.client.schemas import actions, filters

    ours = filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[POOL]))
    for deployment in client.read_deployments(work_pool_filter=ours):
        closed = {**(deployment.parameter_openapi_schema or {}), "additionalProperties": False}
        client.update_deployment(
            deployment.id, actions.DeploymentUpdate(parameter_openapi_schema=closed)
        )


def _automations(file: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = yaml.safe_load(file.read_text())["automations"]
    return result


def _apply(client: SyncPrefectClient, wanted: dict[str, Any]) -> str:
    """Create an automation, or update the existing automation with the same name.

    Prefect's synchronous client has no methods for automations, so the REST API is called directly.

    Args:
        client: Prefect client.
        wanted: content of the automation.

    Returns:
        A line for the user.
    """
    name = str(wanted["name"])
    asked = {"automations": {"name": {"any_": [name]}}}
    held = client.request("POST", "/automations/filter", json=asked).json()
    if held:
        client.request("PUT", "/automations/{id}", json=wanted, path_params={"id": held[0]["id"]})
        return f"automation '{name}' updated"
    client.request("POST", "/automations/", json=wanted)
    return f"automation '{name}' created"


def _acts_on_events(client: SyncPrefectClient) -> bool:
    settings = client.request("GET", "/admin/settings").json()
    return bool(settings["server"]["services"]["triggers"]["enabled"])


def main() -> None:
    """Register the flows and print the result. Exit with status 2 and a message on failure."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "deployments")
    try:
        lines = deploy_all(folder)
    except TilewrightError as error:
        sys.exit(ended_with(error))
    print("\n".join(lines))


def ended_with(error: TilewrightError) -> int:
    """Print an error to standard error, and return the exit status 2."""
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
