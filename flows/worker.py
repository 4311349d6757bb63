"""Starts a worker of the Prefect work pool that can log in to this folder's servers.

    python -m tilewright.flows.worker [OPTION]...    # options of `prefect worker start`

The work pool is the one in `deployments/prefect.yaml`. If your servers do not need this login, you
can instead run `prefect worker start --pool tilewright` in the root of the repository.
`PREFECT_LOCAL_STORAGE_PATH` must then name the folder with the cached results of finished stages.
"""

from __future__ import annotations

import os
import sys

from tilewright.core.errors import TilewrightError
from tilewright.core.process_info import module_path
from tilewright.flows.deploy_all import POOL, ended_with, log_in
from tilewright.services.mlflow_server import mlflow_login
from tilewright.services.workspace import use_workspace


def main() -> None:
    """Start the worker. If no server is available, exit with status 2 and an error message."""
    try:
        log_in()
        os.environ |= mlflow_login(use_workspace())
    except TilewrightError as error:
        sys.exit(ended_with(error))
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": module_path()})


if __name__ == "__main__":
    main()
