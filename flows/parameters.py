"""Defines the parameter forms of deployments, with checked fields; commands have options."""

from __future__ import annotations

from pydantic import Field

from tilewright.core.options import CommandOptions
from tilewright.core.sanitize import printable
from tilewright.tuning.choices import with_networks, with_targets, with_tuners_in_list


class CompareForm(CommandOptions):
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
        description="registered tuners, options behind colons: ml2tuner:alpha=2:veto=0.3",
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
    jobs: int = Field(default=1, ge=1, le=256, description="runs at a time")
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
