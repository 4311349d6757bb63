"""A worker of the pool of `deployments/prefect.yaml`, with what opens the servers of this folder.

    python -m flows.working [OPTION]...    # those of `prefect worker start`

With servers of your own, which need no such login, `prefect worker start --pool tilewright` in the
repository's root is the same.
"""

from __future__ import annotations

import os
import sys

from flows.deploying import POOL, ended_with, log_in
from services.home import use_home
from services.mlflow_server import mlflow_login
from targets.errors import TilewrightError
from targets.module_path import module_path


def main() -> None:
    """Become the worker. Exit status 2 with one message if there is no server."""
    try:
        log_in()
        os.environ |= mlflow_login(use_home())
    except TilewrightError as error:
        sys.exit(ended_with(error))
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": module_path()})


if __name__ == "__main__":
    main()
