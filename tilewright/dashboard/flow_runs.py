"""Client of Prefect's API that reads failed flow runs and deletes flow runs.

A run that fails before it reaches MLflow, for example because a file is missing, has a record only
in Prefect. The API is called directly, because importing Prefect's client would double the memory
of the start page's server.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_list, as_object, as_text, read_json
from tilewright.flows.serve import FLOW

ANSWER_SECONDS = 10.0
BUSY_SECONDS = 0.1
"""Seconds before a request is repeated that failed because Prefect's database was busy."""
MOST_FAILED = 200
"""Maximum number of failed flow runs that are read. Prefect returns at most this many records per
request."""
_STATES = {"FAILED": "failed", "CRASHED": "crashed"}


@dataclass(frozen=True)
class FailedFlowRun:
    """A flow run of `tune_network` that failed.

    Attributes:
        id: Prefect's ID of the flow run.
        state: `failed` or `crashed`, as in Prefect.
        message: reason of the failure.
        began: start time in ISO format, or the scheduled time if the run never started.
        parameters: parameters of the flow run: the fields of `TuningOptions` and of other options.
    """

    id: str
    state: str
    message: str
    began: str
    parameters: Mapping[str, Json]


class FlowRunsUnavailable(TilewrightError):
    """Prefect's server does not answer, or answers with an error."""


class FlowRuns:
    """The flow runs on a Prefect server.

    Args:
        api_url: address of the server's API.
        login: user name and password, separated by a colon; "" if the server requires no login.
    """

    def __init__(self, api_url: str, login: str = "") -> None:
        self._api_url = api_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if login:
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"

    @classmethod
    def from_environment(cls) -> FlowRuns | None:
        """Return the flow runs on the server in `PREFECT_API_URL`; None if it is not set."""
        address = os.environ.get("PREFECT_API_URL", "")
        return cls(address, os.environ.get("PREFECT_API_AUTH_STRING", "")) if address else None

    def failed(self) -> list[FailedFlowRun]:
        """Return the failed and crashed tuning runs, latest first, at most `MOST_FAILED`.

        Raises:
            FlowRunsUnavailable: the server does not answer.
        """
        asked: dict[str, Json] = {
            "flows": {"name": {"any_": [FLOW]}},
            "flow_runs": {
                "state": {"type": {"any_": list[Json](_STATES)}},
                "parent_task_run_id": {"is_null_": True},
            },
            "sort": "EXPECTED_START_TIME_DESC",
            "limit": MOST_FAILED,
        }
        found = []
        for each in as_list(self._ask("POST", "flow_runs/filter", asked)):
            with suppress(ValueError, KeyError):
                found.append(_read_flow_run(as_object(each)))
        return found

    def delete(self, flow_run_id: str) -> None:
        """Delete a flow run and its child flow runs. Do nothing if it does not exist.

        Args:
            flow_run_id: Prefect's ID of the flow run.

        Raises:
            FlowRunsUnavailable: the server does not answer.
        """
        asked: dict[str, Json] = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run_id]}}}
        while below := as_list(self._ask("POST", "flow_runs/filter", asked)):
            for each in below:
                self._ask("DELETE", f"flow_runs/{as_text(as_object(each)['id'])}")
        self._ask("DELETE", f"flow_runs/{flow_run_id}")

    def _ask(self, method: str, path: str, asked: Json = None) -> Json:
        request = Request(
            f"{self._api_url}/{path}", method=method, headers=self._headers,
            data=None if asked is None else json.dumps(asked).encode(),
        )  # fmt: skip
        try:
            text = _answer(request)
            return read_json(text) if text else None
        except HTTPError as error:
            if method == "DELETE" and error.code == HTTPStatus.NOT_FOUND:
                return None
            raise FlowRunsUnavailable(f"Prefect answers {error.code} {error.reason}") from None
        except (OSError, ValueError, HTTPException) as error:
            raise FlowRunsUnavailable(f"Prefect does not answer: {error}") from None


def _answer(request: Request) -> bytes:
    """Send a request and return the body of the response.

    The request is repeated while the server reports that its SQLite file is busy (status 503).
    Raises `OSError` or `HTTPException` if the request fails.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            with urlopen(request, timeout=ANSWER_SECONDS) as reply:
                return bytes(reply.read())
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(BUSY_SECONDS)


def _read_flow_run(run: Mapping[str, Json]) -> FailedFlowRun:
    """Parse a flow run. Raise `ValueError` or `KeyError` if a field is missing or invalid."""
    state = as_object(run["state"])
    began = run.get("start_time") or run["expected_start_time"]
    return FailedFlowRun(
        as_text(run["id"]), _STATES[as_text(state["type"])], str(state.get("message") or ""),
        as_text(began), as_object(run["parameters"]),
    )  # fmt: skip
