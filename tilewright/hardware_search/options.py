"""Options of a co-design run: the arguments of the command and the parameters of the flow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tilewright.core.options import CliOption, CommandOptions, OptionValue
from tilewright.core.user_text import printable
from tilewright.core.working_folder import as_typed
from tilewright.tuning.choices import with_networks_in_list, with_targets
from tilewright.tuning.options import Cluster, Seed, Store

Objective = Literal["latency", "edp", "energy"]
_LONGEST_NAME = 60  # maximum length of the default folder's name


def _with_methods(schema: dict[str, Any]) -> None:
    """Add the names of the registered search methods to a JSON schema, as choices of a field."""
    from tilewright.hardware_search.methods import method_names

    schema["enum"] = list(method_names())


class CodesignOptions(CommandOptions):
    """Options that determine a co-design run and its output directory."""

    networks: Annotated[tuple[str, ...], CliOption(metavar="NAME,…", value="model")] = Field(
        min_length=1,
        description="Networks that one accelerator is designed for: names from 'tilewright "
        "zoo' or model files, separated by commas.",
        json_schema_extra=with_networks_in_list,
    )
    budget: Annotated[float, CliOption(metavar="AREA")] = Field(
        gt=0, allow_inf_nan=False, description="Largest chip area, relative to the stock machine."
    )
    trials: int = Field(
        default=1000,
        ge=1,
        le=10_000_000,
        description="Total number of measurements on all machines.",
    )
    method: str = Field(
        default="ours",
        min_length=1,
        description="Search method: ours, dcoc, autotvm, chameleon, nsga2, tpe or random.",
        json_schema_extra=_with_methods,
    )
    # autotvm, chameleon and dcoc always propose points by latency, as published.
    objective: Annotated[Objective, CliOption(metavar="latency|edp|energy")] = Field(
        default="latency",
        description="What to minimise besides the area: latency, energy, or their product (edp).",
    )
    seed: Seed = 0
    out: Annotated[str, CliOption(value="path", default="codesigned/<networks>")] = Field(
        default="", description="Output directory."
    )
    target: Annotated[str, CliOption(value="target")] = Field(
        default="vta-pynq",
        min_length=1,
        description="The base machine whose hardware knobs are searched: a preset or a file.",
        json_schema_extra=with_targets,
    )
    bounds: Annotated[
        dict[str, tuple[int, int]],
        CliOption(
            flag="--bound",
            metavar="KNOB=LOW:HIGH",
            pair="KNOB=LOW:HIGH with integers",
            separator=":",
        ),
    ] = Field(
        default_factory=dict,
        description="Smallest and largest value of a hardware knob (repeat the option for "
        "more knobs): log_block_in=4:5.",
    )
    clock: Annotated[Literal["fixed", "tree"], CliOption(metavar="fixed|tree")] = Field(
        default="fixed",
        description="'fixed': all machines run at the clock of the base machine. 'tree': the "
        "more levels the adder tree of a machine has, the slower its clock.",
    )
    method_options: Annotated[dict[str, OptionValue], CliOption(flag="--option")] = Field(
        default_factory=dict, description="Set an option of the method: NAME=VALUE."
    )
    cluster: Cluster = ""
    store: Store = ""
    fresh: bool = Field(
        default=False, description="Delete the earlier results and start over instead of resuming."
    )

    @field_validator("bounds", mode="before")
    @classmethod
    def _one_value(cls, bounds: Any) -> Any:
        """Convert a bound with a single value to an equal lower and upper limit.

        Args:
            bounds: values by name of the hardware knob, as given by the user.
        """
        if not isinstance(bounds, dict):
            return bounds
        return {k: v * 2 if isinstance(v, tuple) and len(v) == 1 else v for k, v in bounds.items()}

    @field_validator("networks")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(names):
            raise ValueError("a name of a network is empty")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{printable(twice[0])} is named twice")
        return names

    @property
    def subject(self) -> str:
        """Names of the networks for messages, as the user typed them."""
        return printable(as_typed(", ".join(self.networks)))

    def default_value(self, name: str) -> Any:
        """Return the default of an option.

        The default of `out` depends on the other options.

        Args:
            name: name of the option.
        """
        if name == "out" and self.out:
            return str(self.model_copy(update={"out": ""}).folder)
        return super().default_value(name)

    @property
    def folder(self) -> Path:
        """Output directory of the run.

        It is the option `out` or, without it, a folder that is named after the networks.
        """
        if self.out:
            return Path(self.out)
        return (
            Path("codesigned")
            / "+".join(Path(network).stem for network in self.networks)[:_LONGEST_NAME]
        )
