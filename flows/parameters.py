"""Defines the parameter forms of deployments, with checked fields; commands have options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tilewright.core.user_text import printable
from tilewright.evaluation.datasets.plan import CPU_ROWS, ROWS, SPECS, WORKLOADS
from tilewright.evaluation.datasets.plan import DatasetOptions as DatasetOptions
from tilewright.tuning.build_options import DEFAULT_TRIALS, BuildOptions
from tilewright.tuning.choices import (
    with_networks,
    with_targets,
    with_targets_in_list,
    with_tuners_in_list,
)
from tilewright.tuning.output_dir import OUTPUT_ROOT, below_root


class Form(BaseModel):
    """Fields that are not named are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def confined(out: str) -> Path:
    """A folder for results, below that of the deployment if it has any. Raises `OutputError`."""
    return below_root(Path(out), os.environ.get(OUTPUT_ROOT, ""))


class CompareForm(Form):
    """Which tuners are compared, on what."""

    network: str = Field(
        default="resnet18",
        description="a model file or a built-in network to take layers from; empty: those that are "
        "spelled out below",
        json_schema_extra=with_networks,
    )
    workloads: tuple[str, ...] = Field(
        default=(),
        description="which of its layers: places like 1,3-5, names, or whole texts; none: all",
    )
    tuners: tuple[str, ...] = Field(
        default=("default", "default-blind", "ml2tuner", "autotvm", "random"),
        min_length=1,
        description="registered tuners, options behind colons: ml2tuner:alpha=2:first=32",
        json_schema_extra=with_tuners_in_list,
    )
    target: str = Field(
        default="vta-pynq",
        min_length=1,
        description="a preset, a file, or a kind of target",
        json_schema_extra=with_targets,
    )
    space: str = Field(default="", description="the schedule space; empty: the target's usual one")
    trials: int = Field(default=128, ge=1, le=100_000, description="measurements a run")
    seeds: str = Field(default="0-9", min_length=1, description="0-19 or 0,3,7: a run for each")
    batch: int = Field(default=8, ge=1, le=10_000, description="measurements a round")
    max_waste: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="offload a layer if at most this share of its multiplications is by zeros",
    )
    jobs: int = Field(
        default=1, ge=1, le=256, description="runs at a time, in so many processes of this machine"
    )
    cluster: str = Field(
        default="",
        description="the Dask cluster that makes the runs instead: tls://HOST:PORT of its "
        "scheduler",
    )
    out: str = Field(default="compared", min_length=1, description="folder for the report")
    fresh: bool = Field(default=False, description="start over; reuse no finished run")

    @property
    def subject(self) -> str:
        """What tuners are compared on, in the user's words."""
        return printable(self.network or f"{len(self.workloads)} workloads")

    @property
    def rivals(self) -> str:
        """The tuners, as the command takes them."""
        return printable(",".join(self.tuners))


class BuildForm(Form):
    """Of which network an artifact is built, and for what."""

    model: str = Field(
        default="resnet18",
        min_length=1,
        description="a model file, or a built-in network",
        json_schema_extra=with_networks,
    )
    out: str = Field(default="built", min_length=1, description="folder for the artifact")
    target: str = Field(
        default="vta-pynq",
        min_length=1,
        description="a preset, a file, or a kind of target",
        json_schema_extra=with_targets,
    )
    schedules: str = Field(
        default="", description="a folder that tuning wrote; empty: tune here, with so many trials"
    )
    trials: int = Field(
        default=DEFAULT_TRIALS,
        ge=0,
        le=100_000,
        description="measurements a workload without schedules; 0 takes what is estimated best",
    )
    calibration: str = Field(
        default="", description="samples for a float model: an NPZ file or a folder of them"
    )
    keep_float: tuple[str, ...] = Field(
        default=(), description="operators to leave to the CPU, in float"
    )
    per_channel: bool = Field(
        default=False, description="give weights of a float model scales by output channel"
    )
    bare: bool = Field(
        default=False, description="refuse what the artifact's runtime cannot run by itself"
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="same seed, same artifact")

    @property
    def options(self) -> BuildOptions:
        """The same as `tilewright build` takes it. Raises `OutputError`."""
        return BuildOptions(
            model=self.model, out=confined(self.out), target=self.target,
            schedules=_path(self.schedules), trials=self.trials,
            calibration=_path(self.calibration), keep_float=self.keep_float,
            per_channel=self.per_channel, bare=self.bare, seed=self.seed,
        )  # fmt: skip


class DatasetForm(Form):
    """How large a dataset, and of what."""

    rows: int = Field(default=ROWS, ge=0, description="rows of simulated accelerators")
    cpu_rows: int = Field(
        default=CPU_ROWS, ge=0, description="rows measured on this processor, half a second each"
    )
    seed: int = Field(default=0, ge=0, description="same seed, same rows")
    specs: int = Field(default=SPECS, ge=1, description="accelerators they are spread over")
    workloads: int = Field(default=WORKLOADS, ge=1, description="workloads they are spread over")
    targets: tuple[str, ...] = Field(
        default=(),
        description="hardware that the rows are of; none: drawn by the seed",
        json_schema_extra=with_targets_in_list,
    )
    cluster: str = Field(
        default="",
        description="the Dask cluster that measures the rows: tls://HOST:PORT of its scheduler, or "
        "local:N for N processes of this machine; empty: this process",
    )
    out: str = Field(default="datasets/nightly", min_length=1, description="folder of the dataset")

    @property
    def options(self) -> DatasetOptions:
        """The same as `tilewright dataset build` takes it."""
        asked: dict[str, Any] = self.model_dump(exclude={"cluster", "out"})
        return DatasetOptions(**asked)


def _path(text: str) -> Path | None:
    return Path(text) if text else None
