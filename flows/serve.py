"""Serves the tuning flow as a Prefect deployment from this machine, without a work pool."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import TilewrightError
from tilewright.core.process_info import ProcessStamp
from tilewright.core.user_text import printable
from tilewright.services.mlflow_server import mlflow_login
from tilewright.services.page_addresses import name_prefect_pages
from tilewright.services.prefect_server import announce_server, start_prefect_pages
from tilewright.services.server_process import LOOPBACK
from tilewright.services.start_servers import API_URL, login_for, send_pending_records
from tilewright.services.workspace import use_workspace
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.output_dir import OUTPUT_ROOT
from tilewright.tuning.regression_options import WatchOptions

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

FLOW = "tune_network"
SERVING = "TILEWRIGHT_SERVING"
"""Environment variable that is set for runs of `tilewright serve`. Such a run prints one line when
it ends."""
LOG_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
MLFLOW_LOG_LEVEL = "MLFLOW_LOGGING_LEVEL"
_STAMP = re.compile(r"process (\d+) on (.*), started (\d+) in (.*)")
"""Matches the version of a deployment, which identifies the process that serves the deployment."""
END_SECONDS = 5.0
"""Seconds that runs get to end by themselves, and again after they were asked to terminate."""


class CronError(TilewrightError):
    """Prefect does not accept a cron expression."""


class AlreadyServed(TilewrightError):
    """Another process or a work pool already serves the deployment."""


def print_one_line_per_run() -> None:
    """Let each run print one line when it ends, instead of the logs of Prefect and MLflow.

    Prefect's pages still show the logs. Call this function before Prefect or MLflow is imported,
    because both read the variables at import. The processes of runs inherit the variables.
    """
    os.environ[SERVING] = "true"
    os.environ.setdefault(LOG_LEVEL, "CRITICAL")
    os.environ.setdefault(MLFLOW_LOG_LEVEL, "WARNING")


def check_cron(cron: str) -> None:
    """Check that Prefect accepts a cron expression.

    Args:
        cron: the cron expression.

    Raises:
        CronError: Prefect does not accept it.
    """
    with _prefect_without_home():
        from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        raise CronError(
            f"--cron '{cron}' is not a cron expression; write minute, hour, day of month, "
            "month and weekday: '0 2 * * *' is every night at 2:00, '30 6 * * 1-5' is 6:30 "
            "on weekdays; or use --every SECONDS"
        ) from None


def serve_tuning(
    options: TuningOptions, watch: WatchOptions, tracking: TrackingOptions, *, name: str,
    root: Path, cron: str, every_seconds: float | None, port: int, emit: Callable[[str], None],
) -> None:  # fmt: skip
    """Register a deployment and execute its scheduled runs, one at a time, until Ctrl-C.

    The runs use the server in `PREFECT_API_URL` or the server of `tilewright ui`. If there is
    neither, a server with web pages is started. If `print_one_line_per_run` was called before
    Prefect was imported, each run prints one line when it ends.

    Args:
        options: options of the runs.
        watch: options for comparing a run with the previous one.
        tracking: tracking options.
        name: name of the deployment.
        root: folder outside of which no run may write results.
        cron: cron expression of the schedule.
        every_seconds: interval of the schedule in seconds, instead of `cron`.
        port: port of the server, if one is started.
        emit: function that receives lines for the user.

    Raises:
        AlreadyServed: another process or a work pool serves a deployment of this name.
        ServerError: the server cannot be used.
        SecretError: the login cannot be read.
        WorkspaceError: the workspace cannot be used.
    """
    workspace = use_workspace()
    os.environ |= mlflow_login(workspace)
    os.environ[OUTPUT_ROOT] = str(root.resolve())  # the processes of runs inherit it
    with ExitStack() as stack:
        named = os.environ.get(API_URL)
        login = login_for(named, workspace)
        address = named or (login and login.api_url)
        pages = (address or "").removesuffix("/api")
        if not address:
            server = start_prefect_pages(workspace, LOOPBACK, port)
            stack.callback(server.process.stop)
            server.process.wait(emit)
            stack.enter_context(announce_server(workspace, server))
            login, address = server.login, server.api_url
            pages = f"{server.pages} (password {server.credentials.login})"
        os.environ |= login.settings if login else {API_URL: address}
        _read_settings_again()
        name_prefect_pages(address)
        check_unserved(FLOW, name)
        emit(f"Prefect  {pages}")
        when = f"every {every_seconds:g} s" if every_seconds else f"cron {cron}"
        emit(f"serving {FLOW}/{name} ({when}), results below {root}; stop with Ctrl-C")
        try:
            _serve(options, watch, tracking, name, cron, every_seconds)
        finally:
            _end_runs()
            send_pending_records()


def deployment_name(options: TuningOptions) -> str:
    """Return the default name of a deployment: network and target, in permitted characters."""
    return re.sub(r"[/%&<>]+", "-", options.short_name)


def check_unserved(flow: str, name: str) -> None:
    """Check that no other process or work pool serves a deployment of this name.

    Prefect would silently replace the existing deployment. The server in the environment is asked.

    Args:
        flow: name of the flow.
        name: name of the deployment.

    Raises:
        AlreadyServed: another process or a work pool serves the deployment.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            held = client.read_deployment_by_name(f"{flow}/{name}")
        except ObjectNotFound:
            return
    if held.work_pool_name:
        raise AlreadyServed(
            f"the work pool {printable(held.work_pool_name)} of this server already has a "
            f"deployment {flow}/{name}; choose another name with --name"
        )
    if server := serving_process(held):
        raise AlreadyServed(
            f"{server} already serves {flow}/{name}; end it, or choose another name with --name"
        )


def serving_process(deployment: DeploymentResponse) -> str:
    """Return a description of the process that serves a deployment, or "" if no process does.

    A process on another machine or in another container cannot be checked. It counts as alive if
    the server considers the deployment ready.

    Args:
        deployment: the deployment, as the server describes it.
    """
    from prefect.client.schemas.objects import DeploymentStatus

    if deployment.work_pool_name:
        return ""
    heard = deployment.status is DeploymentStatus.READY
    match = _STAMP.fullmatch(deployment.version or "")
    if match is None:
        return "another process" if heard else ""
    pid, host, started, space = match.groups()
    stamp = ProcessStamp(int(pid), int(started), host, space)
    alive = stamp.is_alive()
    return stamp.describe() if alive or (alive is None and heard) else ""


def _own_stamp() -> str:
    """Return a text that identifies this process, in the format that `_STAMP` matches.

    The text becomes the version of the deployment that this process serves.
    """
    own = ProcessStamp.of_this_process()
    return f"process {own.pid} on {own.host}, started {own.started} in {own.space}"


@contextmanager
def _prefect_without_home() -> Iterator[None]:
    """Let Prefect be imported within the context without creating its home folder.

    The arguments of a command are checked before any file is written.
    """
    named = "PREFECT_HOME" in os.environ
    os.environ.setdefault("PREFECT_HOME", os.devnull)
    try:
        yield
    finally:
        if not named:
            del os.environ["PREFECT_HOME"]


def _read_settings_again() -> None:
    """Let Prefect read its settings again, because they were incomplete when it was imported."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()


def _end_runs() -> None:
    """End the runs that are in progress, while the Prefect server still answers.

    Without the server, a run would try forever to report its end. All measurements are kept.
    """
    runs = active_children()
    for end in (lambda run: None, BaseProcess.terminate, BaseProcess.kill):
        deadline = time.monotonic() + END_SECONDS
        for run in runs:
            end(run)
        for run in runs:
            run.join(max(0.0, deadline - time.monotonic()))


def _serve(
    options: TuningOptions, watch: WatchOptions, tracking: TrackingOptions, name: str, cron: str,
    every_seconds: float | None,
) -> None:  # fmt: skip
    from prefect.types.entrypoint import EntrypointType

    from tilewright.flows import forms as flat_parameters
    from tilewright.flows import nightly

    when = {"interval": every_seconds} if every_seconds else {"cron": cron}
    nightly.tune_network.serve(
        name=name,
        version=_own_stamp(),
        parameters=flat_parameters.fields_of(options, watch, tracking),
        description="Tune every workload of a network, and compare the results with the "
        "previous run.",
        tags=["tilewright"],
        limit=1,
        print_starting_message=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
        **when,
    )
