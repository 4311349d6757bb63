"""Checks that the command in a record stands for the run's options."""

from __future__ import annotations

import shlex

import pytest
import typer.main

from tilewright.cli.app import app
from tilewright.cli.arguments import read_input_shapes, read_pair
from tilewright.tuning.cli_command import command_of
from tilewright.tuning.options import DEFAULTS, TuningOptions

OPTIONS = (
    DEFAULTS,
    TuningOptions(model="my net.onnx", target="board.json", tuner="ml2tuner", trials=32, seed=3),
    TuningOptions(
        model="m.onnx", tuner_options={"alpha": 2.5, "use_v": False}, isolate=1.5, jobs=2,
        input_shapes={"x": (1, 3, 8, 8)}, max_waste=1.0, warm_start="champion", out="it's here",
    ),
    TuningOptions(model="resnet18", layers=("layer1.0.conv1", "layer4.1.conv2")),
    TuningOptions(trials=32, stop_gain=0.001),
    TuningOptions(cluster="host:8786,other:8786"),
    TuningOptions(workload="dense:n=1,c=512,o=1000", epilogue=">> 8, relu"),
)  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_what_it_says_is_read_as_the_same_options(options: TuningOptions) -> None:
    program, command, *arguments = shlex.split(command_of(options))
    assert (program, command) == ("tilewright", "tune")
    group = typer.main.get_command(app)
    tune = group.commands["tune"]  # type: ignore[attr-defined]
    given = tune.make_context("tune", list(arguments)).params
    fields = {name: value for name, value in given.items() if name in TuningOptions.model_fields}
    pairs = dict(read_pair(text, "--option") for text in given["option"] or [])
    shapes = read_input_shapes(given["shape"])
    out = str(given["out"] or "")
    named = tuple((given["layers"] or "").split(",")) if given["layers"] else ()
    read = fields | {
        "tuner_options": pairs, "input_shapes": shapes, "out": out, "layers": named,
        "calibration": str(given["calibration"] or ""),
        "model": given["model"] or "", "workload": given["workload"] or "",
    }  # fmt: skip
    expected = options.model_dump() | {
        "tuner_options": {name: str(value) for name, value in options.tuner_options.items()}
    }
    assert {name: read[name] for name in expected if name in read} == expected


def test_only_what_is_not_as_usual_is_said() -> None:
    assert command_of(TuningOptions(model="resnet18", fresh=True)) == "tilewright tune resnet18"
