"""The files in `deployments/`: forms that take what they are given, and refuse nonsense."""

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
pytestmark = pytest.mark.slow(seconds=1)

DEPLOYMENTS = {
    f"{each['entrypoint'].rpartition('.')[2]}/{each['name']}": each
    for each in yaml.safe_load((FILES / "prefect.yaml").read_text())["deployments"]
}


@cache
def flow_of(name: str) -> Any:
    module, _, flow = DEPLOYMENTS[name]["entrypoint"].rpartition(".")
    return getattr(import_module(module), flow)


def schema_of(name: str) -> dict[str, Any]:
    """The form, as the server has it."""
    found = flow_of(name).parameters.model_dump()
    return json.loads(json.dumps(found))


def fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Of all forms within."""
    return {
        f"{form}.{name}": field
        for form, each in schema["definitions"].items()
        for name, field in each["properties"].items()
    }


def test_every_flow_has_a_deployment() -> None:
    assert set(DEPLOYMENTS) == {
        "tune_network/nightly", "compare_tuners/weekly", "build_artifact/on-request",
        "build_dataset/on-request", "train_model/on-request", "codesign/on-request",
        "sweep/on-request",
    }  # fmt: skip
    kinds = {kind for each in DEPLOYMENTS.values() for when in each.get("schedules", [])
             for kind in when}  # fmt: skip
    assert {"cron", "interval"} <= kinds
    for each in DEPLOYMENTS.values():
        assert each["work_pool"]["name"] == "tilewright"
        assert len(each["tags"]) == 2
        assert each["description"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_parameters_are_what_the_form_asks_for(name: str) -> None:
    schema = schema_of(name)
    jsonschema.validate(DEPLOYMENTS[name]["parameters"], schema)
    assert flow_of(name).validate_parameters(DEPLOYMENTS[name]["parameters"])


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_field_of_a_form_says_what_it_is_and_has_a_default_or_is_required(name: str) -> None:
    for field, about in fields(schema_of(name)).items():
        assert about.get("description"), field
    for form in schema_of(name)["definitions"].values():
        for field, about in form["properties"].items():
            known = "default" in about or about.get("type") == "object"  # of names: none
            assert known or field in form.get("required", []), field
        assert form.get("additionalProperties") is False


@pytest.mark.parametrize(
    ("name", "field", "choice"),
    [
        ("tune_network/nightly", "TuningOptions.tuner", "ml2tuner"),
        ("tune_network/nightly", "WatchOptions.when_worse", "fail"),
        ("train_model/on-request", "TrainingOptions.kind", "attention"),
        ("train_model/on-request", "TrainingOptions.split", "by_task"),
        ("codesign/on-request", "CodesignOptions.method", "dcoc"),
        ("codesign/on-request", "CodesignOptions.clock", "tree"),
    ],
)
def test_where_there_are_few_choices_the_form_offers_them(
    name: str, field: str, choice: str
) -> None:
    assert choice in fields(schema_of(name))[field]["enum"]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("tune_network/nightly", {"options": {"trials": 0}}),
        ("tune_network/nightly", {"options": {"tuner": "defualt"}}),
        ("tune_network/nightly", {"options": {}, "watch": {"when_worse": "sometimes"}}),
        ("tune_network/nightly", {"options": {}, "watch": {"tolerance_percent": -1}}),
        ("compare_tuners/weekly", {"options": {"tuners": []}}),
        ("compare_tuners/weekly", {"options": {"tuners": ["default", ""]}}),
        ("compare_tuners/weekly", {"options": {"tuners": ["defualt:alpha=2"]}}),
        ("compare_tuners/weekly", {"options": {"target": "vta-pinq"}}),
        ("compare_tuners/weekly", {"options": {"network": "resnet81"}}),
        ("tune_network/nightly", {"options": {"target": "vta-pinq"}}),
        ("tune_network/nightly", {"options": {"model": "resnet81"}}),
        ("build_artifact/on-request", {"options": {"target": "vta-pynq-99"}}),
        ("build_dataset/on-request", {"options": {"targets": ["hueg"]}}),
        ("codesign/on-request", {"options": {"networks": ["resnet81"], "budget": 1}}),
        (
            "codesign/on-request",
            {"options": {"networks": ["resnet18"], "budget": 1, "target": "vta-pinq"}},
        ),
        ("sweep/on-request", {"options": {"networks": []}}),
        ("sweep/on-request", {"options": {"networks": ["resnet18"], "tuners": ["nobody"]}}),
        ("sweep/on-request", {"options": {"networks": ["resnet18"], "targets": ["vta-pinq"]}}),
        ("build_artifact/on-request", {"options": {"trails": 3}}),
        ("build_dataset/on-request", {"options": {"rows": -1}}),
        ("train_model/on-request", {"options": {"dataset": "d", "out": "m", "kind": "oracle"}}),
        ("codesign/on-request", {"options": {"networks": ["resnet18"], "budget": 0}}),
    ],
)
def test_nonsense_is_refused_by_the_form(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, schema_of(name))


@pytest.mark.parametrize(
    "good",
    [
        {"target": "vta-pynq"},
        {"target": "cpu"},
        {"target": "machines/mine.json"},
        {"target": "mine.json"},
        {"target": "cpu:threads=2"},
        {"target": "board:lab"},
        {"model": "net.onnx"},
        {"model": "./net"},
        {"model": "", "workload": "dense:n=1,c=8,o=8"},
    ],
)
def test_names_and_paths_pass_the_form(good: dict[str, Any]) -> None:
    jsonschema.validate({"options": good}, schema_of("tune_network/nightly"))
    tuners = {"tuners": ["default", "p+v", "ml2tuner:alpha=2:veto=0.3"]}
    jsonschema.validate({"options": tuners}, schema_of("compare_tuners/weekly"))


@pytest.mark.parametrize("file", ["zombies.yaml", "regression.yaml"])
def test_automations_are_such_as_prefect_takes(file: str) -> None:
    from prefect.events.schemas.automations import AutomationCore

    for each in yaml.safe_load((FILES / file).read_text())["automations"]:
        found = AutomationCore.model_validate(each)
        assert found.enabled
        assert found.actions


def test_the_automation_listens_to_the_event_that_is_emitted() -> None:
    from tilewright.tasks.regression_check import EVENTS, REGRESSION

    (only,) = yaml.safe_load((FILES / "regression.yaml").read_text())["automations"]
    assert only["trigger"]["expect"] == [REGRESSION]
    said = (FILES / "regression.yaml").read_text()
    assert all(event in said for event in EVENTS.values())
