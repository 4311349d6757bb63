"""Decides whether a run is no worse than another one of the same network on the same target, and
why.

Latency counts by cycles where the target counts them. Where measuring does not repeat, a run takes
longer if its whole 95 % interval lies above the other's. What rests on few trials, their validity
and the errors of models, is worse only beyond what chance explains (`_validity`, `_models`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json
from tilewright.core.formats import DIFF
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload
from tilewright.tuning.intervals import Interval
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY
from tilewright.tuning.read_run import foreign, read_written
from tilewright.tuning.run_figures import valid_share

WORSE, NO_WORSE = "worse", "no worse"
CHANCE = 2.0
"""Standard errors that a difference may have by chance."""
LEAST_ERROR = {"P_rmse": 0.05, "A_rmse": 0.05, "V_brier": 0.02}
"""Smaller differences between a model's errors say nothing: log2 of a latency, and the mean square
of a chance."""


@dataclass(frozen=True)
class Change:
    """A latency in both runs, `unit` being `cycles` or `seconds`; `more` is the share by which the
    second is larger; None where one run found nothing valid."""

    what: str
    unit: str
    a: float | None
    b: float | None
    more: float | None
    worse: bool


@dataclass(frozen=True)
class Pair:
    """A figure of both runs; None where a run does not have it."""

    what: str
    a: float | None
    b: float | None
    worse: bool


@dataclass(frozen=True)
class DifferentSetting:
    """What the runs do not have in common: an option, a version, a fingerprint."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class DiffVerdict:
    """What `diff_runs` found. `reasons` say why the second run is worse, none where it is not;
    `changed` is what lowers, measures and learns, `settings` what was asked for."""

    a: str
    b: str
    network: str
    target: str
    space: str
    tolerance_percent: float
    total: Change
    workloads: tuple[Change, ...]
    validity: Pair
    models: tuple[Pair, ...]
    changed: tuple[DifferentSetting, ...]
    settings: tuple[DifferentSetting, ...]
    reasons: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether there is any reason."""
        return bool(self.reasons)

    @property
    def word(self) -> str:
        """`worse` or `no worse`."""
        return WORSE if self.worse else NO_WORSE

    def to_json(self) -> dict[str, Json]:
        """What `tilewright diff --json` prints (docs/reference/output-directory.md)."""
        written: dict[str, Json] = {"version": DIFF.written, "verdict": self.word}
        return written | asdict(self)


def diff_runs(a: Side, b: Side, tolerance_percent: float = 0.0) -> DiffVerdict:
    """Whether run `b` is no worse than `a`, where latencies may be larger, and the share of valid
    trials smaller, by `tolerance_percent`. Raises `DiffError` if the two are no answers to one
    question."""
    if not (math.isfinite(tolerance_percent) and tolerance_percent >= 0):
        raise DiffError(f"--tolerance {tolerance_percent:g}: give a percentage of 0 or more")
    _check_comparable(a, b)
    others = {each.id: each for each in b.layers}
    total = _change("the tuned layers of the network", a.total, b.total, tolerance_percent)
    layers = tuple(
        _change(each.name, each.latency, others[each.id].latency, tolerance_percent)
        for each in a.layers
    )
    validity = _validity(a, b, tolerance_percent)
    models = tuple(_models(a.layers, [others[each.id] for each in a.layers]))
    return DiffVerdict(
        a=a.place, b=b.place, network=a.network, target=a.target, space=a.space,
        tolerance_percent=tolerance_percent, total=total, workloads=layers, validity=validity,
        models=models, changed=_changed(a, b), settings=_differing(a.settings, b.settings),
        reasons=(
            *(_slower(each) for each in (total, *layers) if each.worse),
            *([_less_valid(validity)] if validity.worse else []),
            *(_less_right(each) for each in models if each.worse),
        ),
    )  # fmt: skip


def _check_comparable(a: Side, b: Side) -> None:
    for what, of_a, of_b in (
        ("network", a.network, b.network),
        ("target", a.target, b.target),
        ("kind of target", a.kind, b.kind),
        ("space", a.space, b.space),
    ):
        if of_a != of_b:
            raise DiffError(
                f"{a.place} and {b.place} cannot be compared: another {what}, {of_a} and {of_b}"
            )
    if a.spec != b.spec:
        names = sorted(n for n in a.spec.keys() | b.spec.keys() if a.spec.get(n) != b.spec.get(n))
        raise DiffError(
            f"{a.place} and {b.place} cannot be compared: two targets are called {a.target}, which "
            f"differ in {', '.join(names)}"
        )
    if {each.id for each in a.layers} == {each.id for each in b.layers}:
        return
    plain = ({each.text for each in side.layers} for side in (a, b))
    if next(plain) == next(plain):
        theirs = {each.id: each for each in b.layers}
        mine = next(each for each in a.layers if each.id not in theirs)
        other = next(each for each in b.layers if each.text == mine.text)
        raise DiffError(
            f"{a.place} and {b.place} cannot be compared: another epilogue, {mine.name} with "
            f"'{mine.epilogue}' and with '{other.epilogue}'"
        )
    raise DiffError(
        f"{a.place} and {b.place} cannot be compared: other layers. {_only(a, b)}{_only(b, a)}"
        "Tune both with the same --layers"
    )


def _only(side: Side, other: Side) -> str:
    known = {each.id for each in other.layers}
    missing = [each.name for each in side.layers if each.id not in known]
    return f"Only {side.place} has {', '.join(missing)}. " if missing else ""


def _change(what: str, a: RunLatency, b: RunLatency, tolerance_percent: float) -> Change:
    unit = "cycles" if a.cycles is not None and b.cycles is not None else "seconds"
    before, after = (getattr(each, unit) for each in (a, b))
    if not a.known or not b.known or not before:
        return Change(what, unit, before, after, None, a.known and not b.known)
    allowed = 1 + tolerance_percent / 100
    if unit == "seconds" and a.interval is not None and b.interval is not None:
        worse = b.interval.low > a.interval.high * allowed
    else:
        worse = after > before * allowed
    return Change(what, unit, before, after, after / before - 1, worse)


def _validity(a: Side, b: Side, tolerance_percent: float) -> Pair:
    """The shares of valid trials. A share of few trials is uncertain: it is worse if it is smaller
    by more than `CHANCE` standard errors of the difference of two proportions, and the tolerance in
    percentage points."""
    if not a.trials or not b.trials:
        return Pair("valid trials", None, None, False)
    one, other = (valid_share(side.invalid, side.trials) for side in (a, b))
    pooled = valid_share(a.invalid + b.invalid, a.trials + b.trials)
    error = math.sqrt(pooled * (1 - pooled) * (1 / a.trials + 1 / b.trials))
    lost = one - other
    return Pair("valid trials", one, other, lost > max(CHANCE * error, tolerance_percent / 100))


def _models(a: Sequence[ComparedLayer], b: Sequence[ComparedLayer]) -> Iterable[Pair]:
    """The mean errors of each model over the layers where both runs have it. Worse if the layers'
    differences have a mean of more than `CHANCE` standard errors, and of more than `LEAST_ERROR`;
    with one layer the latter alone."""
    names = sorted({name for each in (*a, *b) for name in each.errors})
    for name in names:
        both = [
            (x.errors[name], y.errors[name])
            for x, y in zip(a, b, strict=True)
            if name in x.errors and name in y.errors
        ]
        if not both:
            one, other = (_mean(each.errors[name] for each in s if name in each.errors)
                          for s in (a, b))  # fmt: skip
            yield Pair(name, one, other, False)
            continue
        differences = [y - x for x, y in both]
        error = stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else 0.0
        worse = fmean(differences) > max(CHANCE * error, LEAST_ERROR.get(name, 0.0))
        yield Pair(name, fmean(x for x, _ in both), fmean(y for _, y in both), worse)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _changed(a: Side, b: Side) -> tuple[DifferentSetting, ...]:
    """What stands between a schedule and its latency: the target's fingerprint covers its lowering,
    simulator and compiler, and the specification is the same."""
    prints = _differing(
        {"target fingerprint": a.fingerprint}, {"target fingerprint": b.fingerprint}
    )
    known = a.versions.keys() & b.versions.keys()
    return prints + _differing(
        {name: a.versions[name] for name in known}, {name: b.versions[name] for name in known}
    )


def _differing(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[DifferentSetting, ...]:
    names = dict.fromkeys([*sorted(a), *sorted(b)])
    return tuple(
        DifferentSetting(name, str(a.get(name, "")), str(b.get(name, "")))
        for name in names
        if a.get(name) != b.get(name)
    )


def _slower(change: Change) -> str:
    if change.more is None:
        return f"{change.what}: nothing that was tried is valid any more"
    return f"{change.what}: {100 * change.more:+.2g} % {change.unit}"


def _less_valid(pair: Pair) -> str:
    assert pair.a is not None
    assert pair.b is not None
    return f"valid trials: {100 * pair.a:.1f} % became {100 * pair.b:.1f} %"


def _less_right(pair: Pair) -> str:
    assert pair.a is not None
    assert pair.b is not None
    return f"{pair.what}: {pair.a:.3g} became {pair.b:.3g}, the model is further off"


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
