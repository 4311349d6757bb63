"""Defines the options of a sweep: the command's arguments, and what the flow takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.user_text import printable
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import (
    with_networks_in_list,
    with_targets_in_list,
    with_tuners_in_list,
)
from tilewright.tuning.cli_command import words_of
from tilewright.tuning.options import DEFAULTS, OptionsError, StoreUrl

SHARED = (
    "trials", "batch", "stop_gain", "space", "epilogue", "layers", "input_shapes", "max_waste",
    "jobs", "cluster", "store", "fresh",
)  # fmt: skip
"""Options that every run has as the sweep has them, by their names in `TuningOptions`."""


_FLAGS = {"input_shapes": "--input-shape"}
"""Fields whose option has another name than they."""


class SweepOptions(BaseModel):
    """Everything that decides a sweep, and where it goes. Every tuner tunes every network on every
    target once a seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    networks: tuple[str, ...] = Field(
        min_length=1,
        description="model files or built-in networks",
        json_schema_extra=with_networks_in_list,
    )
    targets: tuple[str, ...] = Field(
        default=(DEFAULTS.target,),
        min_length=1,
        description="presets, files, or kinds of target",
        json_schema_extra=with_targets_in_list,
    )
    tuners: tuple[str, ...] = Field(
        default=("default", "random"),
        min_length=1,
        description="registered tuners, options behind colons: ml2tuner:alpha=2:first=32",
        json_schema_extra=with_tuners_in_list,
    )
    seeds: str = Field(default="0-4", min_length=1, description="0-4 or 0,3,7: a run for each")
    trials: int = Field(
        default=DEFAULTS.trials, ge=1, le=100_000, description="measurements a workload"
    )
    batch: int = Field(default=DEFAULTS.batch, ge=1, le=10_000, description="measurements a round")
    stop_gain: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share the trials of all workloads of a run, as 'tilewright tune --stop-gain'",
    )
    space: str = Field(default="", description="the schedule space; empty: the target's usual one")
    epilogue: str = Field(
        default=DEFAULTS.epilogue, description="what follows the sums, as 'tilewright tune'"
    )
    layers: tuple[str, ...] = Field(
        default=(), description="tune these layers only, by the operators' names"
    )
    input_shapes: dict[str, tuple[int, ...]] = Field(
        default_factory=dict, description="sizes of inputs that models leave open"
    )
    max_waste: float = Field(
        default=DEFAULTS.max_waste,
        ge=0,
        le=1,
        description="offload a layer if at most this share of its multiplications is by zeros",
    )
    jobs: int = Field(default=1, ge=1, le=256, description="workloads of a run at a time")
    cluster: str = Field(
        default="", description="the Dask cluster that lowers and measures, as 'tilewright tune'"
    )
    store: StoreUrl = Field(
        default="", description="the database that keeps the trials, as 'tilewright tune'"
    )
    out: str = Field(default="swept", min_length=1, description="folder for the results")
    fresh: bool = Field(default=False, description="start over; reuse no finished run")

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.out)

    @property
    def subject(self) -> str:
        """What is tuned on what, in the user's words."""
        names = (", ".join(each) for each in (self.networks, self.targets))
        return printable(as_typed(" on ".join(names)))

    @property
    def rivals(self) -> str:
        """The tuners, as the command takes them."""
        return printable(",".join(self.tuners))

    @property
    def command(self) -> str:
        """`tilewright sweep …` with all that is not as usual, paths as they were typed. To start
        over is no part of it."""
        words = ["tilewright", "sweep", *map(as_typed, self.networks)]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            usual = field.get_default(call_default_factory=True)
            if name not in ("networks", "fresh") and as_typed(str(value)) != str(usual):
                words += words_of(_FLAGS.get(name, f"--{name.replace('_', '-')}"), value)
        return shlex.join(words)


def parse_sweep(**values: Any) -> SweepOptions:
    """Raises `OptionsError` with the first thing that is wrong and what to do."""
    try:
        return SweepOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        hint = SweepOptions.model_fields[name].description
        said = f"{first['msg'][:1].lower()}{first['msg'][1:]} ({hint})"
        raise OptionsError(f"--{name.replace('_', '-')} {values.get(name)}: {said}") from None
