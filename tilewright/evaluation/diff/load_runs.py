"""Reads what is compared of a finished run from its two files of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from tilewright.core.errors import TilewrightError
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload
from tilewright.tuning.intervals import Interval
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY
from tilewright.tuning.read_run import foreign, read_written


class DiffError(TilewrightError):
    """Runs that cannot be compared, or that cannot be read."""


_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class RunLatency:
    """What a call or an inference takes: cycles, None where the target counts none; seconds; where
    measuring does not repeat the 95 % interval of these. None where nothing valid was found."""

    cycles: int | None
    seconds: float | None
    interval: Interval | None = None

    @property
    def known(self) -> bool:
        """Whether anything valid was found."""
        return self.cycles is not None or self.seconds is not None


@dataclass(frozen=True)
class ComparedLayer:
    """A workload of a run. `errors` say how wrong each model was
    (`search.round_steps.model_errors`)."""

    id: str
    name: str
    text: str
    epilogue: str
    latency: RunLatency
    trials: int
    invalid: int
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Side:
    """A finished run. `settings` are what it was asked for beside network and target, `versions`
    those of the packages it ran on, `spec` is what its target was made of."""

    place: str
    network: str
    target: str
    kind: str
    spec: Mapping[str, Any]
    fingerprint: str
    space: str
    settings: Mapping[str, object]
    versions: Mapping[str, str]
    layers: tuple[ComparedLayer, ...]
    total: RunLatency

    @property
    def trials(self) -> int:
        """Of all layers."""
        return sum(each.trials for each in self.layers)

    @property
    def invalid(self) -> int:
        """Trials of all layers that are not valid."""
        return sum(each.invalid for each in self.layers)


def read_side(folder: Path, place: str = "") -> Side:
    """The run in a folder, called `place` if that is given. Raises `DiffError`, and `UnsafeFile`
    for anything but files."""
    summary = read_written(_ComparedSummary, folder, SUMMARY, DiffError)
    written = read_written(_ComparedSchedules, folder, SCHEDULES, DiffError)
    schedules = {each.id: each for each in written.schedules}
    if [each.id for each in summary.workloads] != list(schedules):
        raise DiffError(
            f"{folder / SUMMARY} and {SCHEDULES} are of different layers: one of them is from "
            "another run; tune again"
        )
    try:
        layers = tuple(_layer(row, schedules[row.id]) for row in summary.workloads)
    except (ValueError, TilewrightError) as error:
        raise DiffError(foreign(folder, error)) from None
    return Side(
        place=place or str(folder),
        network=summary.network,
        target=written.target.name,
        kind=written.target.kind,
        spec=written.target.spec,
        fingerprint=written.target.fingerprint,
        space=summary.space,
        settings=summary.settings,
        versions=summary.versions,
        layers=layers,
        total=summary.total.latency,
    )


def _layer(row: _ComparedWorkload, schedule: _ComparedSchedule) -> ComparedLayer:
    name = layer(schedule.names, parse_workload(schedule.workload, schedule.epilogue))
    return ComparedLayer(
        id=row.id, name=name, text=schedule.workload, epilogue=schedule.epilogue,
        latency=row.latency, trials=row.trials, invalid=row.invalid_trials,
        errors=row.model_errors,
    )  # fmt: skip


# -- the files -----------------------------------------------------------------------------------

_SETTINGS = ("tuner", "trials", "batch", "seed", "warm_start")


class _Validation(BaseModel):
    tuned_interval: Interval | None = None


class _Measured(BaseModel):
    """What a workload and all of them together have in common."""

    tuned_cycles: _Count | None
    tuned_seconds: _Seconds | None
    validation: _Validation | None = None

    @property
    def latency(self) -> RunLatency:
        interval = None if self.validation is None else self.validation.tuned_interval
        return RunLatency(self.tuned_cycles, self.tuned_seconds, interval)


class _ComparedWorkload(_Measured):
    id: str
    trials: _Count
    invalid_trials: _Count
    model_errors: dict[str, _Share] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.invalid_trials > self.trials:
            raise ValueError(f"{self.invalid_trials} of {self.trials} trials are invalid")
        return self


class _Sharing(BaseModel):
    """How trials were shared."""

    share: float


class _ComparedSummary(BaseModel):
    network: str
    space: str
    tuner: str
    tuner_options: dict[str, str | int | float | bool]
    trials: _Count
    batch: _Count
    seed: int
    warm_start: str = ""
    stop_gain: _Sharing | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    workloads: Annotated[list[_ComparedWorkload], Field(min_length=1)]
    total: _Measured

    @property
    def settings(self) -> dict[str, object]:
        """What was asked for, by its name in `tuning.options`."""
        plain = {name: getattr(self, name) for name in _SETTINGS}
        options = {f"option {name}": value for name, value in self.tuner_options.items()}
        return plain | options | {"stop_gain": self.stop_gain and self.stop_gain.share}


class _ComparedTarget(BaseModel):
    name: str
    kind: str
    fingerprint: str
    spec: dict[str, Any] = Field(default_factory=dict)


class _ComparedSchedule(BaseModel):
    id: str
    workload: str
    epilogue: str
    names: list[str]


class _ComparedSchedules(BaseModel):
    target: _ComparedTarget
    schedules: list[_ComparedSchedule]
