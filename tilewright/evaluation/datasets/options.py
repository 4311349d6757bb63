"""Options of `tilewright dataset build` and `tilewright model train`, and of their web forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from tilewright.core.files import Json
from tilewright.core.options import CliOption, CommandOptions, OptionValue
from tilewright.tuning.choices import with_targets_in_list
from tilewright.tuning.options import Seed


def _with_kinds(schema: dict[str, JsonValue]) -> None:
    """Add the kinds of models to a JSON schema, as the choices of a form's field."""
    from tilewright.models.transfer.registry import list_kinds

    schema["enum"] = list[JsonValue](list_kinds())


def _with_splits(schema: dict[str, JsonValue]) -> None:
    """Add the kinds of splits to a JSON schema, as the choices of a form's field."""
    from tilewright.evaluation.datasets.training import KINDS

    schema["enum"] = list[JsonValue](KINDS)


class DatasetFolder(CommandOptions):
    """Option for the folder in which a dataset is built."""

    out: Annotated[Path, CliOption(value="path")] = Field(description="Folder for the dataset.")


class DatasetOptions(CommandOptions):
    """Options that determine the content of a dataset.

    If `targets` are given, the dataset covers exactly these targets. Otherwise up to `specs`
    accelerators are drawn at random.
    """

    rows: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=2_000_000, ge=0, description="Number of rows from simulated accelerators."
    )
    cpu_rows: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=256,
        ge=0,
        description="Number of rows measured on this CPU, half a second each; 0 if there is "
        "no C compiler.",
    )
    seed: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0, ge=0, description="Random seed; the same seed gives the same rows."
    )
    specs: int = Field(
        default=48, ge=1, description="Largest number of accelerators in the dataset."
    )
    workloads: int = Field(
        default=128, ge=1, description="Largest number of workloads in the dataset."
    )
    targets: Annotated[
        tuple[str, ...],
        CliOption(
            flag="--target",
            value="target",
            repeated=True,
            default="accelerators drawn at random with the seed, and this CPU",
        ),
    ] = Field(
        default=(),
        description="Hardware to measure on (repeat the option for more): a preset, a file, "
        "or cpu:…",
        json_schema_extra=with_targets_in_list,
    )

    def to_json(self) -> dict[str, Json]:
        """Return the options for `plan.json`.

        An empty `targets` is omitted. Plans of versions that did not have this option therefore
        still match, and their builds can be resumed.
        """
        return self.model_dump(exclude=None if self.targets else {"targets"})


class TrainingOptions(CommandOptions):
    """Options that determine how a model is trained and evaluated."""

    dataset: Annotated[str, CliOption(value="path")] = Field(
        min_length=1, description="Folder of a dataset that 'tilewright dataset build' wrote."
    )
    out: Annotated[str, CliOption(value="path")] = Field(
        min_length=1, description="Folder for the model."
    )
    start: Annotated[str, CliOption(value="path")] = Field(
        default="",
        description="Fine-tune the model of this folder, usually on rows of a few targets.",
    )
    kind: Annotated[str, CliOption(metavar="KIND", default="xgboost, or the kind of --start")] = (
        Field(
            default="xgboost",
            description="Kind of model: xgboost, lightgbm, mlp or attention.",
            json_schema_extra=_with_kinds,
        )
    )
    split: Annotated[
        str, CliOption(metavar="SPLIT", default="by_target, with --start within_task")
    ] = Field(
        default="by_target",
        description="What the test rows have that the training rows lack: within_task "
        "(nothing, other rows of the same tasks), by_task (new workloads), "
        "by_target (new hardware).",
        json_schema_extra=_with_splits,
    )
    minutes: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="Stop training after this time."
    )
    rows: Annotated[int | None, CliOption(shows_limits=True)] = Field(
        default=None, ge=2, description="Use only this many rows, drawn at random."
    )
    seed: Seed = 0
    threads: int = Field(default=2, ge=1, le=256, description="Number of threads for training.")
    held_out: Annotated[float, CliOption(offered=False)] = Field(
        default=0.2, gt=0, lt=1, description="Fraction of the rows that the model is evaluated on."
    )
    options: Annotated[dict[str, OptionValue], CliOption(flag="--option")] = Field(
        default_factory=dict,
        description="Set an option of this kind of model: NAME=VALUE "
        "(docs/explanation/transfer.md).",
    )
