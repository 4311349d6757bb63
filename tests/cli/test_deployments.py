"""Tests the files in `deployments/`: their forms accept valid parameters and refuse others."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deployments"
pytestmark = pytest.mark.slow(seconds=0.1)

DEPLOYMENTS = {
    f"{deployment['entrypoint'].rpartition('.')[2]}/{deployment['name']}": deployment
    for deployment in yaml.safe_load((FILES / "prefect.yaml").read_text())["deployments"]
}


@cache
def flow_of(name: str) -> Any:
    module, _, flow = DEPLOYMENTS[name]["entrypoint"].rpartition(".")
    return getattr(import_module(module), flow)


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a deployment's form, as the server receives it."""
    result = flow_of(name).parameters.model_dump()
    return json.loads(json.dumps(result))


def test_every_flow_has_a_deployment() -> None:
    assert set(DEPLOYMENTS) == {
        "tune_network/nightly", "compare_tuners/weekly", "build_artifact/on-request",
        "build_dataset/on-request", "train_model/on-request", "codesign/on-request",
        "compare_tuners/on-request",
    }  # fmt: skip
    kinds = {kind for item in DEPLOYMENTS.values() for when in item.get("schedules", [])
             for kind in when}  # fmt: skip
    assert {"cron", "interval"} <= kinds
    for deployment in DEPLOYMENTS.values():
        assert deployment["work_pool"]["name"] == "tilewright"
        assert len(deployment["tags"]) == 2
        assert deployment["description"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_parameters_are_what_the_form_asks_for(name: str) -> None:
    schema = schema_of(name)
    jsonschema.validate(DEPLOYMENTS[name]["parameters"], schema)
    assert flow_of(name).validate_parameters(DEPLOYMENTS[name]["parameters"])


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_field_of_a_form_says_what_it_is_and_has_a_default_or_is_required(name: str) -> None:
    schema = schema_of(name)
    assert not schema["definitions"], "fields stand side by side"
    for field, about in schema["properties"].items():
        assert about.get("description"), field
        assert "default" in about or field in schema.get("required", []), field


@pytest.mark.parametrize(
    ("name", "field", "choice"),
    [
        ("tune_network/nightly", "tuner", "ml2tuner"),
        ("tune_network/nightly", "when_worse", "fail"),
        ("train_model/on-request", "kind", "attention"),
        ("train_model/on-request", "split", "by_task"),
        ("codesign/on-request", "method", "dcoc"),
        ("codesign/on-request", "clock", "tree"),
    ],
)
def test_where_there_are_few_choices_the_form_offers_them(
    name: str, field: str, choice: str
) -> None:
    assert choice in schema_of(name)["properties"][field]["enum"]


@pytest.mark.parametrize(
    "name", ["tune_network/nightly", "compare_tuners/on-request", "codesign/on-request"]
)
def test_a_form_offers_system_metrics_which_are_off_by_default(name: str) -> None:
    offered = schema_of(name)["properties"]["system_metrics"]
    assert (offered["type"], offered["default"]) == ("boolean", False)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("tune_network/nightly", {"trials": 0}),
        ("tune_network/nightly", {"tuner": "defualt"}),
        ("tune_network/nightly", {"target": "vta-pinq"}),
        ("tune_network/nightly", {"model": "resnet19"}),
        ("tune_network/nightly", {"when_worse": "sometimes"}),
        ("tune_network/nightly", {"tolerance_percent": -1}),
        ("compare_tuners/weekly", {"tuners": []}),
        ("compare_tuners/weekly", {"tuners": ["default", ""]}),
        ("compare_tuners/weekly", {"tuners": ["defualt:alpha=2"]}),
        ("compare_tuners/weekly", {"targets": ["pynq"]}),
        ("compare_tuners/weekly", {"network": "resnet81"}),
        ("build_artifact/on-request", {"model": "resnet"}),
        ("build_dataset/on-request", {"rows": -1}),
        ("build_dataset/on-request", {"targets": ["hueg"]}),
        ("train_model/on-request", {"dataset": "d", "out": "m", "kind": "oracle"}),
        ("codesign/on-request", {"networks": ["resnet18"], "budget": 0}),
        ("codesign/on-request", {"networks": ["resnet19"], "budget": 1}),
        ("compare_tuners/on-request", {"networks": ["resnet18"], "tuners": ["nobody"]}),
        ("compare_tuners/on-request", {"networks": ["resnet18"], "targets": ["vta-pinq"]}),
    ],
)
def test_nonsense_is_refused_by_the_form(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, schema_of(name))


@pytest.mark.parametrize(
    "good",
    [
        {"target": "vta-pynq", "model": "resnet18"},
        {"target": "my/vta.json", "model": "mine.onnx"},
        {"target": "cpu:isa=avx2", "model": "../networks/one"},
        {"target": "cpu", "workload": "dense:n=1,c=16,o=16", "model": ""},
    ],
)
def test_whatever_may_be_a_target_or_a_network_is_taken(good: dict[str, Any]) -> None:
    jsonschema.validate(good, schema_of("tune_network/nightly"))
    tuners = {"tuners": ["default", "p+v", "ml2tuner:alpha=2:first=32"]}
    jsonschema.validate(tuners, schema_of("compare_tuners/weekly"))


@pytest.mark.parametrize(
    "name",
    [
        "tune_network/nightly", "compare_tuners/weekly", "build_dataset/on-request",
        "codesign/on-request",
    ],
)  # fmt: skip
def test_every_form_of_long_work_asks_for_a_cluster(name: str) -> None:
    assert schema_of(name)["properties"]["cluster"]["default"] == ""


def test_the_ten_usual_fields_of_the_form_of_a_nightly_run_come_first() -> None:
    """Prefect's pages sort the fields by the key `position`."""
    shown = schema_of("tune_network/nightly")["properties"]
    fields = sorted(shown, key=lambda name: int(shown[name]["position"]))
    assert fields[:10] == [
        "model", "target", "tuner", "trials", "seed", "out", "when_worse", "tolerance_percent",
        "batch", "space",
    ]  # fmt: skip
    assert {"stop_gain", "fusion", "shared", "system_metrics"} <= set(fields[10:])


def test_what_contradicts_itself_ends_a_run_with_a_sentence() -> None:
    from tilewright.flows.forms import flat
    from tilewright.tuning.options import TuningOptions

    ended = flat(TuningOptions)(lambda options: options.subject)
    assert ended(model="digits_cnn") == "digits_cnn"
    # A workload overrides the network if the form has its default network.
    assert ended(workload="dense:n=1,c=16,o=16") == "dense:n=1,c=16,o=16"
    state = ended(model="digits_cnn", workload="dense:n=1,c=16,o=16")
    assert state.is_failed()
    assert state.message == "Value error, give either a network or a workload, not both or neither"


@pytest.mark.parametrize("file", ["zombies.yaml", "regression.yaml"])
def test_automations_are_such_as_prefect_takes(file: str) -> None:
    from prefect.events.schemas.automations import AutomationCore

    for automation in yaml.safe_load((FILES / file).read_text())["automations"]:
        validate = AutomationCore.model_validate(automation)
        assert validate.enabled
        assert validate.actions


def test_the_automation_listens_to_the_event_that_is_emitted() -> None:
    from tilewright.tasks.regression_check import EVENTS, REGRESSION

    (only,) = yaml.safe_load((FILES / "regression.yaml").read_text())["automations"]
    assert only["trigger"]["expect"] == [REGRESSION]
    said = (FILES / "regression.yaml").read_text()
    assert all(event in said for event in EVENTS.values())
