"""Defines the options of a sweep: the command's arguments, and what the flow takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tilewright.core.options import CliOption, CommandOptions
from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import (
    with_networks_in_list,
    with_targets_in_list,
    with_tuners_in_list,
)
from tilewright.tuning.options import (
    DEFAULTS,
    Batch,
    Cluster,
    InputShapes,
    MaxWaste,
    Space,
    Trials,
)

SHARED = (
    "trials", "batch", "stop_gain", "space", "epilogue", "layers", "input_shapes", "max_waste",
    "jobs", "cluster", "fresh",
)  # fmt: skip
"""Options that every run has as the sweep has them, by their names in `TuningOptions`."""


class SweepOptions(CommandOptions):
    """Everything that decides a sweep, and where it goes. Every tuner tunes every network on every
    target once a seed."""

    networks: Annotated[
        tuple[str, ...], CliOption(positional=True, metavar="NETWORK", value="model")
    ] = Field(
        min_length=1,
        description="ONNX, .tflite or torch.export files, or names from 'tilewright zoo'.",
        json_schema_extra=with_networks_in_list,
    )
    tuners: tuple[str, ...] = Field(
        default=("default", "random"),
        min_length=1,
        description="Comma-separated; options behind colons: default,ml2tuner:alpha=2:veto=0.3",
        json_schema_extra=with_tuners_in_list,
    )
    seeds: str = Field(default="0-4", min_length=1, description="0-4 or 0,3,7: a run for each.")
    targets: Annotated[tuple[str, ...], CliOption(value="target")] = Field(
        default=(DEFAULTS.target,),
        min_length=1,
        description="Comma-separated; 'tilewright targets' lists them.",
        json_schema_extra=with_targets_in_list,
    )
    trials: Trials = DEFAULTS.trials
    stop_gain: Annotated[float | None, CliOption(metavar="SHARE")] = Field(
        default=None,
        ge=0,
        lt=1,
        description="Share the trials of a run's workloads, as 'tilewright tune --stop-gain'.",
    )
    batch: Batch = DEFAULTS.batch
    space: Space = ""
    epilogue: Annotated[str, CliOption(metavar="network|per-channel|plain")] = Field(
        default=DEFAULTS.epilogue,
        description="What follows the sums, as 'tilewright tune --epilogue'.",
    )
    layers: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=(), description="Tune these layers only, NAME,NAME,…"
    )
    input_shapes: InputShapes = Field(default_factory=dict)
    max_waste: MaxWaste = DEFAULTS.max_waste
    jobs: int = Field(default=1, ge=1, le=256, description="Workloads of a run at a time.")
    cluster: Cluster = ""
    out: Annotated[str, CliOption(value="path")] = Field(
        default="swept", min_length=1, description="Folder for the results."
    )
    fresh: bool = Field(default=False, description="Start over; do not reuse finished runs.")

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
