"""Options of `tilewright dataset build` and `tilewright model train`, and of their forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from tilewright.core.files import Json
from tilewright.core.options import CliOption, CommandOptions, OptionValue
from tilewright.tuning.choices import with_targets_in_list
from tilewright.tuning.options import Seed


def _with_kinds(schema: dict[str, JsonValue]) -> None:
    """Let a form offer the kinds of models as choices."""
    from tilewright.models.transfer.registry import list_kinds

    schema["enum"] = list[JsonValue](list_kinds())


def _with_splits(schema: dict[str, JsonValue]) -> None:
    """Let a form offer the splits as choices."""
    from tilewright.evaluation.datasets.training import KINDS

    schema["enum"] = list[JsonValue](KINDS)


class DatasetFolder(CommandOptions):
    """Option for the folder in which a dataset is built."""

    out: Annotated[Path, CliOption(value="path")] = Field(description="Folder for the dataset.")


class DatasetOptions(CommandOptions):
    """Options that determine the content of a dataset.

    If `targets` are given, the dataset covers these, and `specs` is ignored.
    """

    rows: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=2_000_000, ge=0, description="How many rows of simulated accelerators."
    )
    cpu_rows: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=256,
        ge=0,
        description="How many measured on this processor, half a second each; none are without a C "
        "compiler.",
    )
    seed: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0, ge=0, description="Same seed, same rows."
    )
    specs: int = Field(
        default=48, ge=1, description="Accelerators that the rows are spread over, at most."
    )
    workloads: int = Field(
        default=128, ge=1, description="Workloads that the rows are spread over, at most."
    )
    targets: Annotated[
        tuple[str, ...],
        CliOption(
            flag="--target",
            value="target",
            repeated=True,
            default="accelerators drawn by the seed, and this processor",
        ),
    ] = Field(
        default=(),
        description="Hardware that the rows are of, may be given again: a preset, a file, cpu:…",
        json_schema_extra=with_targets_in_list,
    )

    def to_json(self) -> dict[str, Json]:
        """Return the options for `plan.json`.

        Empty targets are omitted, as in versions without this option, so that builds of these
        versions can be resumed.
        """
        return self.model_dump(exclude=None if self.targets else {"targets"})


class TrainingOptions(CommandOptions):
    """Options that determine how a model is trained and evaluated."""

    dataset: Annotated[str, CliOption(value="path")] = Field(
        min_length=1, description="Folder of a dataset ('tilewright dataset build')."
    )
    out: Annotated[str, CliOption(value="path")] = Field(
        min_length=1, description="Folder for the model."
    )
    start: Annotated[str, CliOption(value="path")] = Field(
        default="",
        description="Fine-tune the model of this folder, usually on rows of few targets.",
    )
    kind: Annotated[str, CliOption(metavar="KIND", default="xgboost, or that of --start")] = Field(
        default="xgboost",
        description="xgboost, lightgbm, mlp or attention.",
        json_schema_extra=_with_kinds,
    )
    split: Annotated[
        str, CliOption(metavar="SPLIT", default="by_target, with --start within_task")
    ] = Field(
        default="by_target",
        description="What the rows it is judged on are new in: within_task (rows of known tasks), "
        "by_task (workloads it has not seen), by_target (hardware it has not seen).",
        json_schema_extra=_with_splits,
    )
    minutes: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="Training ends after so long at most."
    )
    rows: Annotated[int | None, CliOption(shows_limits=True)] = Field(
        default=None, ge=2, description="Read so many rows only, drawn at random."
    )
    seed: Seed = 0
    threads: int = Field(default=2, ge=1, le=256, description="Threads that learn.")
    held_out: Annotated[float, CliOption(offered=False)] = Field(
        default=0.2, gt=0, lt=1, description="Share of the rows that the model is judged on."
    )
    options: Annotated[dict[str, OptionValue], CliOption(flag="--option")] = Field(
        default_factory=dict,
        description="An option of the kind, NAME=VALUE (docs/explanation/transfer.md).",
    )
