"""Tests `make deploy` and `make worker` with a real server: forms, one run and automations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from tests import warm
from tests.cli.conftest import Place
from tests.sharing import ANSWER_SECONDS, prefect_beside

pytestmark = pytest.mark.nightly(seconds=7)

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deployments"
LIMIT_SECONDS = 600  # generous: the machine may be busy compiling
NIGHT = {"model": "digits_cnn", "layers": ["fc"], "tuner": "random", "trials": 1, "out": "night"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("deployed")
    with prefect_beside(folder / "home", acting=True) as server:
        yield Place(folder, server)


@pytest.fixture(scope="module")
def api(place: Place) -> Iterator[httpx.Client]:
    assert place.server is not None
    headers = place.server.credentials.headers
    with httpx.Client(
        base_url=place.server.api_url, headers=headers, timeout=ANSWER_SECONDS
    ) as client:
        yield client


@pytest.fixture(scope="module")
def deployed(place: Place) -> str:
    """Run `make deploy` in the folder in which the workers will work. Return its output."""
    done = warm.run(
        [str(FILES)], place.folder, place.environment, 600, module="tilewright.flows.deploy_all"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def post(api: httpx.Client, path: str, **document: object) -> Any:
    reply = api.post(path, json=document)
    assert reply.status_code < 300, reply.text
    return reply.json() if reply.content else None


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def the_nightly(api: httpx.Client) -> Any:
    return api.get("/deployments/name/tune_network/nightly").raise_for_status().json()


def test_everything_is_deployed_and_said(deployed: str, api: httpx.Client) -> None:
    result = post(api, "/deployments/filter")
    assert len(result) == 7
    assert all(item["work_pool_name"] == "tilewright" for item in result)
    assert api.get("/work_pools/tilewright").json()["type"] == "process"
    (only,) = post(api, "/automations/filter")
    assert only["name"] == "tilewright zombies"
    assert deployed.count("deployed ") == 7
    assert deployed.splitlines()[-1].endswith("make worker")
    assert "note:" not in deployed
    kinds = {name for item in result for when in item["schedules"] for name in when["schedule"]}
    assert {"cron", "interval"} <= kinds


def test_a_form_refuses_nonsense(deployed: str, api: httpx.Client) -> None:
    nightly = the_nightly(api)
    for bad in {"trials": 0}, {"tuner": "defualt"}, {"target": "vta-pinq"}, {"trails": 8}:
        reply = api.post(
            f"/deployments/{nightly['id']}/create_flow_run",
            json={"parameters": NIGHT | bad},
        )
        assert 400 <= reply.status_code < 500
        assert next(iter(bad)) in reply.text


def test_a_worker_runs_what_is_asked_for_below_its_folder(
    deployed: str, api: httpx.Client, place: Place
) -> None:
    nightly = the_nightly(api)
    create = f"/deployments/{nightly['id']}/create_flow_run"
    good = post(api, create, parameters=NIGHT)
    done = warm.run(
        ["--run-once"], place.folder, place.environment, 600, module="tilewright.flows.worker"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = api.get(f"/flow_runs/{good['id']}").json()
    assert run["state"]["type"] == "COMPLETED", run["state"]["message"]
    assert run["name"].startswith("digits_cnn on vta-pynq, random, seed 0, ")
    assert {"tilewright", "tune", "digits_cnn", "watch: first"} <= set(run["tags"])
    summary = place.json("night/summary.json")
    assert summary["prefect_flow_run_id"] == run["id"]
    kept = post(api, "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    assert {"summary", "layers", "mlflow-run", "regression-watch", "trials"} <= {
        item["key"] for item in kept
    }


def test_deploying_again_brings_automations_up_to_date(
    deployed: str, api: httpx.Client, place: Place
) -> None:
    program = (
        "from tilewright.flows.deploy_all import apply_automations, log_in\n"
        "from pathlib import Path\n"
        "import sys\n"
        "log_in()\n"
        "print(apply_automations(Path(sys.argv[1])))"
    )
    for _ in range(2):
        done = warm.run([str(FILES / "zombies.yaml")], place.folder, place.environment, 300,
                        program=program)  # fmt: skip
        assert done.stdout == "[\"automation 'tilewright zombies' updated\"]\n"
    assert len(post(api, "/automations/filter")) == 1


# -- the automations of the files, on invented events --------------------------------------------


def applied(api: httpx.Client, file: str, **trigger: object) -> None:
    (wanted,) = yaml.safe_load((FILES / file).read_text())["automations"]
    wanted["name"] += " of a test"
    wanted["trigger"] |= trigger
    post(api, "/automations/", **wanted)


def happened(api: httpx.Client, event: str, resource: str, *related: dict[str, str]) -> None:
    document = {
        "id": str(uuid4()), "occurred": datetime.now(UTC).isoformat(), "event": event,
        "resource": {"prefect.resource.id": resource}, "related": list(related), "payload": {},
    }  # fmt: skip
    reply = api.post("/events", json=[document])
    assert reply.status_code == 204, reply.text


def test_a_run_that_falls_silent_is_marked_as_crashed(deployed: str, api: httpx.Client) -> None:
    applied(api, "zombies.yaml", within=10)  # the minimum, to save time
    flow = post(api, "/flows/", name="tune_network")
    runs = [
        post(
            api, "/flow_runs/", flow_id=flow["id"], tags=[tag],
            state={"type": "RUNNING", "name": "Running"},
        )["id"]
        for tag in ("tilewright", "of-others")
    ]  # fmt: skip
    for run, tag in zip(runs, ("tilewright", "of-others"), strict=True):
        related = {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
        happened(api, "prefect.flow-run.heartbeat", f"prefect.flow-run.{run}", related)
    wait_for(lambda: api.get(f"/flow_runs/{runs[0]}").json()["state"]["type"] == "CRASHED")
    assert "no sign of life" in api.get(f"/flow_runs/{runs[0]}").json()["state"]["message"]
    assert api.get(f"/flow_runs/{runs[1]}").json()["state"]["type"] == "RUNNING"


def test_a_regression_pauses_its_deployment(deployed: str, api: httpx.Client) -> None:
    applied(api, "regression.yaml")
    nightly = the_nightly(api)
    related = {
        "prefect.resource.id": f"prefect.deployment.{nightly['id']}",
        "prefect.resource.role": "deployment",
    }
    happened(api, "tilewright.no-regression", "tilewright.tuning.resnet18.vta-pynq", related)
    assert not the_nightly(api)["paused"]
    happened(api, "tilewright.regression", "tilewright.tuning.resnet18.vta-pynq", related)
    wait_for(lambda: the_nightly(api)["paused"])


# -- without a server ----------------------------------------------------------------------------


def test_without_a_server_it_says_what_to_start(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for module in "tilewright.flows.deploy_all", "tilewright.flows.worker":
        done = warm.run([str(FILES)], tmp_path, place.environment, 300, module=module)
        assert done.returncode == 2
        assert done.stderr.startswith("error: no Prefect server is configured; start one")
        assert "export PREFECT_API_URL=" in done.stderr
    silent = place.environment | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = warm.run([str(FILES)], tmp_path, silent, 300, module="tilewright.flows.deploy_all")
    assert done.returncode == 2
    assert "no Prefect server responds at http://127.0.0.1:9/api" in done.stderr
