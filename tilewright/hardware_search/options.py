"""Defines the options of a co-design run: the command's arguments, and what the flow takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed
from tilewright.hardware_search.costs import Objective
from tilewright.tuning.choices import with_networks_in_list, with_targets
from tilewright.tuning.options import OptionsError, OptionValue, StoreUrl

_LONGEST_NAME = 60  # characters of a default folder


def _with_methods(schema: dict[str, Any]) -> None:
    """A form offers those there are."""
    from tilewright.hardware_search.method import method_names

    schema["enum"] = list(method_names())


class CodesignOptions(BaseModel):
    """Everything that decides a co-design run, and where it goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    networks: tuple[str, ...] = Field(
        min_length=1,
        description="built-in networks or model files; one machine serves them all",
        json_schema_extra=with_networks_in_list,
    )
    budget: float = Field(
        gt=0, allow_inf_nan=False, description="the largest area, where the stock machine takes 1"
    )
    trials: int = Field(
        default=1000, ge=1, le=10_000_000, description="measurements of all machines together"
    )
    method: str = Field(
        default="ours", min_length=1, description="who searches", json_schema_extra=_with_methods
    )
    method_options: dict[str, OptionValue] = Field(
        default_factory=dict, description="options of the method, by name"
    )
    objective: Objective = Field(
        default="latency",
        description="what the front holds beside the area: latency, energy or their product (edp) "
        "of one inference of each network. autotvm, chameleon and dcoc propose by latency in any "
        "case, as published",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="same seed, same front")
    target: str = Field(
        default="vta-pynq",
        min_length=1,
        description="the machine whose knobs are turned; all that is no knob is as it has it",
        json_schema_extra=with_targets,
    )
    bounds: dict[str, tuple[int, int]] = Field(
        default_factory=dict, description="lowest and highest value of hardware knobs, by name"
    )
    clock: Literal["fixed", "tree"] = Field(
        default="fixed",
        description="'fixed': all machines run at the base machine's clock; 'tree': slower, the "
        "more levels their adder trees have",
    )
    cluster: str = Field(
        default="",
        description="the Dask cluster that lowers and measures: tls://HOST:PORT of its scheduler, "
        "or local:N for N processes of this machine; empty: this process",
    )
    store: StoreUrl = Field(
        default="", description="the database that keeps the trials, as 'tilewright tune'"
    )
    out: str = Field(default="", description="folder for the results; empty: codesigned/<networks>")
    fresh: bool = Field(default=False, description="start over instead of resuming")

    @field_validator("networks")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(names):
            raise ValueError("a network without a name")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{printable(twice[0])} is named twice")
        return names

    @property
    def subject(self) -> str:
        """What is served, in the user's words."""
        return printable(as_typed(", ".join(self.networks)))

    @property
    def folder(self) -> Path:
        """Where the results go."""
        if self.out:
            return Path(self.out)
        return (
            Path("codesigned") / "+".join(Path(each).stem for each in self.networks)[:_LONGEST_NAME]
        )


def parse_codesign(**values: object) -> CodesignOptions:
    """Raises `OptionsError` with the first thing that is wrong and what to do."""
    try:
        return CodesignOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        hint = CodesignOptions.model_fields[name].description if name else ""
        flag = {"bounds": "bound", "method_options": "option"}.get(name, name)
        given = ",".join(values[name]) if name == "networks" else values.get(name)  # type: ignore[arg-type]
        said = first["msg"].removeprefix("Value error, ")
        raise OptionsError(
            f"--{flag} {printable(str(given))}: {said[:1].lower()}{said[1:]} ({hint})"
        ) from None
