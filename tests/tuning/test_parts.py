"""Checks that tuning some layers, or one workload, gives the schedules of a whole-network run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.tune_bare import tune_bare
from tilewright.core.options import OptionsError
from tilewright.services.prefect_server import Login
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, parse_epilogue
from tilewright.targets.workload import parse_workload
from tilewright.tuning.network import Extracted, Subgraph, UnknownLayer, select_layers
from tilewright.tuning.options import PLAIN_STEPS, TuningOptions

RUN = {"tuner": "ml2tuner-published", "trials": 8, "batch": 4, "seed": 3}
FLAGS = ("--tuner", "ml2tuner-published", "--trials", "8", "--batch", "4", "--seed", "3")
TEXT, EPILOGUE = "dense:n=1,c=128,o=16", ">> 8, min 127, max -128"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    out = tmp_path_factory.mktemp("whole") / "out"
    tune_bare(model="digits_cnn", **RUN, out=str(out))
    return list(json.loads((out / "schedules.json").read_text())["schedules"])


def schedules(out: Path) -> list[dict[str, object]]:
    return list(json.loads((out / "schedules.json").read_text())["schedules"])


def test_layers_get_the_schedules_they_get_in_the_whole_network(
    whole: list[dict[str, object]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    summary = tune_bare(model="digits_cnn", layers=["fc", "conv2"], **RUN, out=str(out))
    assert summary["part"] == {"layers": ["fc", "conv2"], "workloads_of_network": 4}
    assert schedules(out) == [row for row in whole if row["names"] in (["conv2"], ["fc"])]
    grown = tune_bare(model="digits_cnn", **RUN, out=str(out))
    assert "part" not in grown
    assert [row["reused_trials"] for row in grown["workloads"]] == [0, 8, 0, 8]


@pytest.mark.nightly(seconds=40)
def test_the_commands_do_what_the_library_call_does(
    whole: list[dict[str, object]], tmp_path: Path, prefect_server: Login
) -> None:
    place = Place(tmp_path, prefect_server)
    for flags in (("--bare",), ()):
        out = place.folder / f"layers{len(flags)}"
        done = place.run("tune", "digits_cnn", "--layers", "fc", *FLAGS, *flags, "--out", out.name)
        assert done.returncode == 0, done.stderr
        assert "only part of the network: 1 of its 4 workloads" in done.stdout
        assert "these layers" in done.stdout
        assert schedules(out) == [row for row in whole if row["names"] == ["fc"]]
        alone = place.folder / f"alone{len(flags)}"
        done = place.run("tune", "--workload", TEXT, *FLAGS, *flags, "--out", alone.name)
        assert done.returncode == 0, done.stderr
        assert "this workload" in done.stdout
        summary = json.loads((alone / "summary.json").read_text())
        assert summary["part"]["workload"] == summary["network"] == TEXT
        assert summary["workloads"][0]["id"] == parse_workload(TEXT).id
        assert ("mlflow_run_id" in summary) == (not flags)


def test_a_workload_keeps_its_epilogue(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = tune_bare(workload=TEXT, epilogue=EPILOGUE, **RUN, out=str(out))
    assert summary["part"] == {"workload": TEXT, "epilogue": EPILOGUE}
    (row,) = schedules(out)
    assert (row["workload"], row["epilogue"]) == (TEXT, EPILOGUE)
    assert row["id"] == parse_workload(TEXT, EPILOGUE).id


def test_options_name_one_subject_and_a_folder_of_its_own() -> None:
    """Two targets of one network have two folders, so neither run is refused."""
    folders = [
        TuningOptions.parse(**given).folder.as_posix()
        for given in (
            {},
            {"model": "nets/mine.onnx"},
            {"layers": ["layer1.0.conv1", "fc"]},
            {"layers": [f"/stage{item}/conv/Conv" for item in range(9)]},
            {"workload": TEXT},
            {"target": "gemmini"},
            {"target": "cpu:lanes=8,precision=int8"},
            {"target": "cpu:lanes=16,isa=avx512vnni,threads=4,precision=int8"},
            {"target": "cpu:lanes=16,isa=avx512vnni,threads=8,precision=int8"},
            {"target": "boards/mine.json"},
        )
    ]
    assert folders[:3] == [
        "tuned/resnet18-vta-pynq", "tuned/mine-vta-pynq",
        "tuned/resnet18-vta-pynq-layer1.0.conv1+fc",
    ]  # fmt: skip
    assert folders[5:7] == ["tuned/resnet18-gemmini", "tuned/resnet18-cpu-lanes-8-precision-int8"]
    assert folders[-1] == "tuned/resnet18-mine"
    assert len(set(folders)) == len(folders)
    assert all(len(folder) < 80 and folder.count("/") == 1 for folder in folders)
    for given in ({"model": ""}, {"model": "resnet18", "workload": TEXT}):
        with pytest.raises(
            OptionsError, match="either a network or a workload, not both or neither"
        ):
            TuningOptions.parse(**given)


def test_an_unknown_layer_comes_with_the_nearest_ones() -> None:
    workload = parse_workload(TEXT)
    macs = 2 * workload.macs
    twice = Subgraph(workload, 2, ("layer1.0.conv1", "layer1.0.conv2"), macs)
    once = Subgraph(parse_workload("dense:n=1,c=64,o=64"), 1, ("fc",), 4096)
    result = Extracted((twice, once), {"total": macs + 5000, "offloaded": macs + 4096})
    some = select_layers(result, ["layer1.0.conv2"])
    assert some == Extracted((twice,), {"total": macs + 5000, "offloaded": macs})
    with pytest.raises(
        UnknownLayer, match=r"con' has nothing to tune; did you mean layer1\.0\.conv2"
    ):
        select_layers(result, ["layer1.0.con"])
    with pytest.raises(UnknownLayer, match="tilewright inspect"):
        select_layers(Extracted((), {"total": 1, "offloaded": 0}), ["x"])


def test_the_plain_steps_are_the_default_epilogue() -> None:
    """The options hold the epilogue as text, so that parsing options does not import numpy."""
    assert parse_epilogue(PLAIN_STEPS) == DEFAULT_EPILOGUE
