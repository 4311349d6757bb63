"""What a tuning run is asked to do: the command line's arguments, and a deployment's form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from targets.errors import TilewrightError, UnknownName

SpaceName = Literal["extended", "template", "unchecked"]
SPACES = get_args(SpaceName)
DEFAULT_TRIALS = 64
DEFAULT_BATCH = 16

OptionValue = str | int | float | bool


class OptionsError(TilewrightError):
    """An argument that makes no sense."""


class TuningOptions(BaseModel):
    """Everything that decides a tuning run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        "resnet18", min_length=1, description="an ONNX or torch.export file, or a built-in network"
    )
    target: str = Field(
        "vta-pynq", min_length=1, description="a preset, or a JSON file with a specification"
    )
    tuner: str = Field("default", min_length=1, description="a registered tuner")
    tuner_options: dict[str, OptionValue] = Field(
        default_factory=dict, description="options of the tuner, by name"
    )
    trials: int = Field(DEFAULT_TRIALS, ge=1, le=100_000, description="measurements a workload")
    batch: int = Field(DEFAULT_BATCH, ge=1, le=10_000, description="measurements a round")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="same seed, same schedules")
    space: SpaceName = Field("extended", description="the schedule space")
    input_shapes: dict[str, tuple[int, ...]] = Field(
        default_factory=dict, description="sizes of inputs that the model leaves open"
    )
    max_waste: float = Field(
        0.5, ge=0, le=1, description="pad a layer if at most this share of it is padding"
    )
    out: str = Field("", description="folder for the results; empty: tuned/<model>")
    warm_start: Literal["", "champion"] = Field(
        "", description="'champion': start from the best models that were compared"
    )
    fresh: bool = Field(False, description="start over instead of resuming")

    @property
    def folder(self) -> Path:
        return Path(self.out or f"tuned/{Path(self.model).stem}")


def space_name(name: str) -> SpaceName:
    """Raises `UnknownName`."""
    if name in SPACES:
        return cast(SpaceName, name)
    raise UnknownName("space", name, list(SPACES))


def parse_options(**values: object) -> TuningOptions:
    """Raises `OptionsError` with the first thing that is wrong and what to do."""
    try:
        return TuningOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        given = values.get(name)
        hint = (
            TuningOptions.model_fields[name].description
            if name in TuningOptions.model_fields
            else ""
        )
        raise OptionsError(
            f"--{name.replace('_', '-')} {given}: {first['msg'].lower()} ({hint})"
        ) from None
