"""Checks that an option is declared once: the command, form, library call and record agree."""

from __future__ import annotations

import inspect
import shlex
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import tilewright
from tilewright.cli.options import OfferedFields, with_options
from tilewright.core.errors import TilewrightError
from tilewright.core.options import CliOption, CommandOptions, OptionsError, cli_option
from tilewright.flows.forms import flat
from tilewright.hardware_search.options import CodesignOptions
from tilewright.tuning.build_options import BuildOptions
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


def read(model: type[CommandOptions], words: list[str]) -> CommandOptions:
    """Return the options that a command line stands for."""
    results: list[CommandOptions] = []

    def command(options: CommandOptions) -> None:
        results.append(options)

    command.__annotations__["options"] = model
    app = typer.Typer()
    app.command()(with_options(command))
    CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    return results[0]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_command_in_a_record_is_read_as_the_same_options(options: TuningOptions) -> None:
    program, command, *words = shlex.split(options.command_line("tune"))
    assert (program, command) == ("tilewright", "tune")
    texts = {name: str(value) for name, value in options.tuner_options.items()}
    assert read(TuningOptions, words) == options.model_copy(update={"tuner_options": texts})


def test_tables_of_numbers_are_read_as_they_are_written() -> None:
    options = CodesignOptions(
        networks=("alexnet", "vgg11"), budget=0.5, bounds={"x": (1, 2), "y": (3, 3)}
    )
    words = shlex.split(options.command_line("codesign"))[2:]
    assert read(CodesignOptions, words) == options
    assert read(CodesignOptions, [*words, "--bound", "z=4"]).model_dump()["bounds"]["z"] == (4, 4)
    with pytest.raises(TilewrightError, match=r"--bound gives x two values, 1:2 and 1:3"):
        read(CodesignOptions, [*words, "--bound", "x=1:3"])


@pytest.mark.parametrize(
    ("model", "call"),
    [(TuningOptions, tilewright.tune), (BuildOptions, tilewright.build),
     (CodesignOptions, tilewright.codesign)],
)  # fmt: skip
def test_form_and_library_call_have_the_fields_of_the_model(
    model: type[CommandOptions], call: object
) -> None:
    form = inspect.signature(flat(model)(lambda options: options)).parameters
    library = inspect.signature(call).parameters  # type: ignore[arg-type]
    assert set(form) == set(library) == set(model.model_fields)
    for name, field in model.model_fields.items():
        assert form[name].default == library[name].default
        shown = form[name].annotation.__metadata__[-1].json_schema
        assert shown["description"].startswith(field.description or "nothing")


def test_a_command_may_offer_fewer_fields_and_spell_them_its_own_way() -> None:
    def command(
        options: Annotated[
            TuningOptions,
            OfferedFields(
                "trials", "model", required=("model",), changed={"trials": CliOption(flag="-n")}
            ),
        ],
    ) -> None:
        typer.echo(f"{options.model} {options.trials}")

    command.__annotations__ = inspect.get_annotations(command, eval_str=True, locals=locals())
    app = typer.Typer()
    app.command()(with_options(command))
    assert CliRunner().invoke(app, ["-n", "3", "resnet18"]).output == "resnet18 3\n"
    assert CliRunner().invoke(app, []).exit_code == 2
    assert not cli_option(TuningOptions.model_fields["trials"]).flag


def test_precision_is_a_part_of_the_targets_name() -> None:
    assert TuningOptions(target="cpu", precision="int8").target == "cpu:precision=int8"
    assert TuningOptions(target="cpu:threads=2", precision="f32").target.endswith(",precision=f32")
    with pytest.raises(OptionsError, match="--precision is only for the target cpu"):
        TuningOptions.parse(target="vta-pynq", precision="int8")


def test_only_what_is_not_as_usual_is_said() -> None:
    assert (
        TuningOptions(model="resnet18", fresh=True).command_line("tune")
        == "tilewright tune resnet18"
    )
