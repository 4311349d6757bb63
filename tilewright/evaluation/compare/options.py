"""Options of a comparison of tuners.

The options of `tilewright compare`, the form of its deployments and the keyword arguments of
`tilewright.compare` are derived from `CompareOptions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from tilewright.core.options import CliOption, CommandOptions
from tilewright.core.user_text import printable, split_names, split_targets
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import (
    with_networks,
    with_networks_in_list,
    with_targets_in_list,
    with_tuners_in_list,
)
from tilewright.tuning.options import DEFAULTS, Cluster, InputShapes, MaxWaste, Space, Store

SHARED = (
    "trials", "batch", "stop_gain", "space", "epilogue", "layers", "input_shapes", "max_waste",
    "jobs", "cluster", "store", "fresh",
)  # fmt: skip
"""Options that are passed on to every run of a network, by their names in `TuningOptions`."""
TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_BY_SUBJECT: Any = None
"""Placeholder for defaults that differ between comparisons on networks and on workloads."""
_OF_NETWORKS: dict[str, Any] = {
    "tuners": ("default", "random"), "seeds": "0-4", "trials": DEFAULTS.trials,
    "batch": DEFAULTS.batch, "jobs": 1, "out": "swept",
}  # fmt: skip
_OF_WORKLOADS: dict[str, Any] = {
    "tuners": ("default", "default-blind", "ml2tuner", "autotvm", "random"),
    "seeds": "0-9", "trials": 128, "batch": 8, "out": "compared",
}  # fmt: skip
"""Defaults of comparisons on networks and of comparisons on workloads, by name of the option."""
_ONLY_NETWORKS = ("store", "stop_gain", "epilogue", "layers", "input_shapes")
_ONLY_WORKLOADS = ("replay", "network", "workloads", "live")


class CompareOptions(CommandOptions):
    """Options that determine a comparison of tuners and its output directory.

    With `networks`, every tuner tunes every network on every target, once per seed. Otherwise,
    every tuner tunes single workloads whose best schedule is known. These workloads come from a
    network or from recorded tables.
    """

    networks: Annotated[
        tuple[str, ...],
        CliOption(positional=True, metavar="NETWORK|TABLE", value="model", default=""),
    ] = Field(
        default=(),
        description="Networks to tune completely: ONNX, .tflite or torch.export files, or "
        "names from 'tilewright zoo'. Or recorded tables, as for --replay.",
        json_schema_extra=with_networks_in_list,
    )
    tuners: Annotated[
        tuple[str, ...],
        CliOption(
            default="default,default-blind,ml2tuner,autotvm,random; for networks default,random"
        ),
    ] = Field(
        default=_BY_SUBJECT,
        min_length=1,
        description="Tuners to compare, separated by commas; options follow a colon: "
        "default,ml2tuner:alpha=2:first=32",
        json_schema_extra=with_tuners_in_list,
    )
    seeds: Annotated[str, CliOption(default="0-9; for networks 0-4")] = Field(
        default=_BY_SUBJECT, description="Seeds, such as 0-19 or 0,3,7; one run per seed."
    )
    network: Annotated[str, CliOption(value="model")] = Field(
        default="",
        description="A model file or built-in network whose layers are the workloads.",
        json_schema_extra=with_networks,
    )
    replay: Annotated[tuple[str, ...], CliOption(value="model", repeated=True)] = Field(
        default=(),
        description="Recorded tables of real hardware instead of a network; reference.json "
        "must be next to them.",
    )
    workloads: Annotated[tuple[str, ...], CliOption(repeated=True)] = Field(
        default=(),
        description="Workloads to use: positions such as 1,3-5, names such as C4, or "
        "complete texts such as 'conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1' "
        "(repeat the option).",
    )
    targets: Annotated[
        tuple[str, ...],
        CliOption(flag="--target", aliases=("--targets",), value="target", split=split_targets),
    ] = Field(
        default=(DEFAULTS.target,),
        min_length=1,
        description="The hardware: a preset, a specification file, or KIND:…; 'tilewright "
        "targets' lists the presets. For networks, several are possible, "
        "separated by commas.",
        json_schema_extra=with_targets_in_list,
    )
    trials: Annotated[int, CliOption(default="128; for networks 64")] = Field(
        default=_BY_SUBJECT, ge=1, le=100_000, description="Measurements per workload."
    )
    stop_gain: Annotated[float | None, CliOption(metavar="SHARE")] = Field(
        default=None,
        ge=0,
        lt=1,
        description="Allocate the trials of a network to its workloads by expected "
        "improvement, as 'tilewright tune --stop-gain'.",
    )
    batch: Annotated[int, CliOption(default="8; for networks 16")] = Field(
        default=_BY_SUBJECT, ge=1, le=10_000, description="Measurements per round."
    )
    space: Space = ""
    epilogue: Annotated[str, CliOption(metavar="network|per-channel|plain")] = Field(
        default=DEFAULTS.epilogue,
        description="Operations after each layer of a network, as for 'tilewright tune "
        "--epilogue'.",
    )
    layers: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=(), description="Tune only these layers of a network: NAME,NAME,…"
    )
    input_shapes: InputShapes = Field(default_factory=dict)
    max_waste: MaxWaste = DEFAULTS.max_waste
    jobs: Annotated[int | None, CliOption(default="all cores; for networks 1")] = Field(
        default=_BY_SUBJECT,
        ge=1,
        le=256,
        description="Number of runs at the same time; N is a short form of --cluster "
        "local:N. For networks: number of workloads of a run at the same time.",
    )
    cluster: Cluster = ""
    store: Store = ""
    out: Annotated[str, CliOption(value="path", default="compared; for networks swept")] = Field(
        default=_BY_SUBJECT, min_length=1, description="Output directory."
    )
    live: bool = Field(
        default=False,
        description="Tune workloads on the target itself instead of an enumerated table, so "
        "that the times are realistic.",
    )
    fresh: bool = Field(
        default=False,
        description="Delete the earlier results and start over instead of reusing finished runs.",
    )

    @field_validator("tuners", mode="before")
    @classmethod
    def _as_names(cls, tuners: Any) -> Any:
        return split_names(tuners, "--tuners") if isinstance(tuners, str) else tuners

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Rename options of earlier versions, and add the defaults that were not given.

        Targets that are given as one text are split into a list. Recorded tables among the networks
        are moved to `replay`. Options with the value None count as not given. The defaults differ
        between a comparison on networks and a comparison on workloads.

        Args:
            values: the given options by name; returned unchanged if it is not a dict.
        """
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if target := values.pop("target", None):
            values.setdefault("targets", (target,))
        if isinstance(values.get("targets"), str):
            values["targets"] = split_targets(values["targets"], "--target")
        named = tuple(values.get("networks") or ())
        tables = tuple(item for item in named if str(item).endswith(TABLE_SUFFIXES))
        if tables:
            values["networks"] = tuple(item for item in named if item not in tables)
            values["replay"] = (*values.get("replay", ()), *tables)
        given = {name: value for name, value in values.items() if value is not None}
        return (_OF_NETWORKS if values.get("networks") else _OF_WORKLOADS) | given

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if self.networks:
            for name in _ONLY_WORKLOADS:
                if getattr(self, name):
                    raise ValueError(
                        f"--{name} only applies to single workloads, but "
                        f"{printable(self.subject)} is tuned completely; leave one of the "
                        "two out"
                    )
            return self
        for name in _ONLY_NETWORKS:
            if getattr(self, name) != type(self).model_fields[name].get_default(
                call_default_factory=True
            ):
                raise ValueError(
                    f"--{name.replace('_', '-')} only applies to whole networks; name a "
                    "network to tune, or leave the option out"
                )
        if self.network and self.replay:
            raise ValueError(
                f"--network {self.network} and --replay {self.replay[0]} cannot be combined; "
                "leave one of the two out"
            )
        if len(self.targets) > 1:
            raise ValueError(
                "single workloads are compared on one --target; name NETWORKS to compare on "
                "several targets"
            )
        if self.cluster and self.jobs:
            raise ValueError(
                f"--jobs {self.jobs} is a short form of --cluster local:{self.jobs}, but "
                f"--cluster {self.cluster} is given, too; leave one of the two out"
            )
        return self

    def default_value(self, name: str) -> Any:
        """Return the default of an option.

        Some defaults differ between a comparison on networks and a comparison on workloads.

        Args:
            name: name of the option.
        """
        usual = _OF_NETWORKS if self.networks else _OF_WORKLOADS
        return usual[name] if name in usual else super().default_value(name)

    @property
    def target(self) -> str:
        """Target of a comparison on workloads, which has only one."""
        return self.targets[0]

    @property
    def folder(self) -> Path:
        """Output directory of the comparison."""
        return Path(self.out)

    @property
    def subject(self) -> str:
        """Description of what is tuned and on which target, as the user typed it."""
        if self.replay:
            return printable(as_typed(", ".join(Path(table).name for table in self.replay)))
        count = len(self.workloads)
        layers = f"{count} workload{'s' * (count != 1)}"
        what = ", ".join(self.networks) or self.network or layers
        return printable(as_typed(f"{what} on {', '.join(self.targets)}"))

    @property
    def rivals(self) -> str:
        """Names of the compared tuners, separated by commas."""
        return printable(",".join(self.tuners))
