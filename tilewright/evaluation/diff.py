"""Comparison of two runs for the same network and target: is the second run worse, and why?

Latencies are compared in cycles if the target counts cycles, otherwise in seconds. If measurements
vary and both runs have a 95 % interval, the second run counts as slower only if its interval lies
above the interval of the first run.

The share of valid trials and the errors of the cost models vary with the trials that happened to be
drawn. They count as worse only if the difference is larger than chance explains (see `_validity`
and `_models`).
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
from tilewright.tuning.read_run import read_written, unreadable_message
from tilewright.tuning.run_figures import valid_share

WORSE, NO_WORSE = "worse", "no worse"
CHANCE = 2.0
"""Number of standard errors up to which a difference is attributed to chance."""
LEAST_ERROR = {"P_rmse": 0.05, "A_rmse": 0.05, "V_brier": 0.02}
"""Largest difference between the errors of a model that is ignored. `P_rmse` and `A_rmse` are
errors in log2 of the latency; `V_brier` is a mean squared error of probabilities."""


@dataclass(frozen=True)
class Change:
    """Latency of a layer, or the total latency of all layers, in the two compared runs.

    Attributes:
        what: name of the layer or of the total.
        unit: "cycles" or "seconds".
        a: latency in the first run; None if no schedule was valid.
        b: latency in the second run; None if no schedule was valid.
        more: relative increase from `a` to `b`; 0.05 means 5 % slower. None if a latency is
            unknown.
        worse: True if the second run is worse.
    """

    what: str
    unit: str
    a: float | None
    b: float | None
    more: float | None
    worse: bool


@dataclass(frozen=True)
class Pair:
    """Values of a quantity, such as the share of valid trials, in the two compared runs.

    Latencies have a class of their own, `Change`.

    Attributes:
        what: name of the quantity.
        a: value in the first run; None if the run does not have it.
        b: value in the second run; None if the run does not have it.
        worse: True if the second run is worse.
    """

    what: str
    a: float | None
    b: float | None
    worse: bool


@dataclass(frozen=True)
class DifferentSetting:
    """A property that differs between the two runs: an option, a version or a fingerprint.

    Attributes:
        what: name of the property.
        a: value in the first run.
        b: value in the second run.
    """

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class DiffVerdict:
    """Result of a comparison of two runs.

    Attributes:
        a: output directory of the first run.
        b: output directory of the second run.
        network: name of the network.
        target: name of the target.
        space: name of the schedule space.
        tolerance_percent: tolerance of the comparison in percent.
        total: latency of all tuned layers together.
        workloads: latency of each layer.
        validity: share of valid trials.
        models: mean error of each cost model over the layers.
        changed: differences in target fingerprints and package versions, which affect lowering,
            measuring and learning.
        settings: differences in the options of the runs.
        reasons: one message per respect in which the second run is worse; empty if it is not worse.
    """

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
    def is_worse(self) -> bool:
        """True if the second run is worse in any respect."""
        return bool(self.reasons)

    @property
    def word(self) -> str:
        """The verdict as text: "worse" or "no worse"."""
        return WORSE if self.is_worse else NO_WORSE

    def to_json(self) -> dict[str, Json]:
        """Return the output of `tilewright diff --json` (docs/reference/output-directory.md)."""
        written: dict[str, Json] = {"version": DIFF.written, "verdict": self.word}
        return written | asdict(self)


def diff_runs(a: Side, b: Side, tolerance_percent: float = 0.0) -> DiffVerdict:
    """Decide whether run `b` is worse than run `a`.

    Args:
        a: the first run.
        b: the second run.
        tolerance_percent: largest deterioration that does not count as worse. For latencies it is a
            percentage of the first latency, for the share of valid trials it is in percentage
            points.

    Returns:
        The verdict with its reasons and all compared quantities.

    Raises:
        DiffError: the tolerance is invalid, or the runs differ in network, target, space or layers.
    """
    if not (math.isfinite(tolerance_percent) and tolerance_percent >= 0):
        raise DiffError(f"--tolerance {tolerance_percent:g}: give a percentage of 0 or more")
    _check_comparable(a, b)
    layers_of_b = {layer.id: layer for layer in b.layers}
    total = _change("the tuned layers of the network", a.total, b.total, tolerance_percent)
    layers = tuple(
        _change(layer.name, layer.latency, layers_of_b[layer.id].latency, tolerance_percent)
        for layer in a.layers
    )
    validity = _validity(a, b, tolerance_percent)
    models = tuple(_models(a.layers, [layers_of_b[layer.id] for layer in a.layers]))
    return DiffVerdict(
        a=a.place, b=b.place, network=a.network, target=a.target, space=a.space,
        tolerance_percent=tolerance_percent, total=total, workloads=layers, validity=validity,
        models=models, changed=_changed_versions(a, b),
        settings=_differing_settings(a.settings, b.settings),
        reasons=(
            *(_slower_text(layer) for layer in (total, *layers) if layer.worse),
            *([_less_valid(validity)] if validity.worse else []),
            *(_less_right(model) for model in models if model.worse),
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
                f"{a.place} and {b.place} cannot be compared, because the {what} differs: "
                f"{of_a} and {of_b}"
            )
    if a.spec != b.spec:
        names = sorted(n for n in a.spec.keys() | b.spec.keys() if a.spec.get(n) != b.spec.get(n))
        raise DiffError(
            f"{a.place} and {b.place} cannot be compared, because they have different "
            f"targets called {a.target}; these keys differ: {', '.join(names)}"
        )
    if {layer.id for layer in a.layers} == {layer.id for layer in b.layers}:
        return
    plain = ({layer.text for layer in side.layers} for side in (a, b))
    if next(plain) == next(plain):
        theirs = {layer.id: layer for layer in b.layers}
        mine = next(layer for layer in a.layers if layer.id not in theirs)
        other = next(layer for layer in b.layers if layer.text == mine.text)
        raise DiffError(
            f"{a.place} and {b.place} cannot be compared, because the epilogues differ: "
            f"{mine.name} has '{mine.epilogue}' and '{other.epilogue}'"
        )
    raise DiffError(
        f"{a.place} and {b.place} cannot be compared, because their layers differ. "
        f"{_missing_layers_text(a, b)}{_missing_layers_text(b, a)}Tune both with the same --layers"
    )


def _missing_layers_text(side: Side, other: Side) -> str:
    known = {layer.id for layer in other.layers}
    missing = [layer.name for layer in side.layers if layer.id not in known]
    return f"Only {side.place} has {', '.join(missing)}. " if missing else ""


def _change(what: str, a: RunLatency, b: RunLatency, tolerance_percent: float) -> Change:
    """Compare a latency of two runs.

    The latencies are compared in cycles if both runs have them, otherwise in seconds. If both runs
    have 95 % intervals of the seconds, the second latency is worse if its interval lies above the
    first interval by more than the tolerance. Otherwise it is worse if it is larger by more than
    the tolerance. A latency that is no longer known, because no trial is valid, is worse as well.

    Args:
        what: name of the layer or of the total.
        a: latency in the first run.
        b: latency in the second run.
        tolerance_percent: tolerated increase in percent.
    """
    unit = "cycles" if a.cycles is not None and b.cycles is not None else "seconds"
    before, after = (getattr(item, unit) for item in (a, b))
    if not a.is_known or not b.is_known or not before:
        return Change(what, unit, before, after, None, a.is_known and not b.is_known)
    allowed = 1 + tolerance_percent / 100
    if unit == "seconds" and a.interval is not None and b.interval is not None:
        worse = b.interval.low > a.interval.high * allowed
    else:
        worse = after > before * allowed
    return Change(what, unit, before, after, after / before - 1, worse)


def _validity(a: Side, b: Side, tolerance_percent: float) -> Pair:
    """Compare the shares of valid trials of two runs.

    The second share is worse if two conditions hold: it is smaller by more than the tolerance, and
    it is smaller by more than `CHANCE` standard errors of the difference between two proportions.

    Args:
        a: the first run.
        b: the second run.
        tolerance_percent: tolerance in percentage points.
    """
    if not a.trials or not b.trials:
        return Pair("valid trials", None, None, False)
    one, other = (valid_share(side.invalid, side.trials) for side in (a, b))
    pooled = valid_share(a.invalid + b.invalid, a.trials + b.trials)
    error = math.sqrt(pooled * (1 - pooled) * (1 / a.trials + 1 / b.trials))
    lost = one - other
    return Pair("valid trials", one, other, lost > max(CHANCE * error, tolerance_percent / 100))


def _models(a: Sequence[ComparedLayer], b: Sequence[ComparedLayer]) -> Iterable[Pair]:
    """Compare the errors of the cost models that two runs have trained.

    The error of a model is worse if the mean of its differences over the layers exceeds both
    `LEAST_ERROR` and `CHANCE` standard errors of that mean. With a single layer, only `LEAST_ERROR`
    applies.

    Args:
        a: layers of the first run.
        b: the same layers of the second run, in the same order.

    Yields:
        For each model, its mean errors over the layers for which both runs trained it. If there is
        no such layer, each mean is over the layers of its own run and never counts as worse.
    """
    names = sorted({name for item in (*a, *b) for name in item.errors})
    for name in names:
        both = [
            (x.errors[name], y.errors[name])
            for x, y in zip(a, b, strict=True)
            if name in x.errors and name in y.errors
        ]
        if not both:
            one, other = (_mean(item.errors[name] for item in s if name in item.errors)
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


def _changed_versions(a: Side, b: Side) -> tuple[DifferentSetting, ...]:
    """Return the differences between two runs in target fingerprints and package versions.

    The fingerprint covers the lowering, the simulator and the compiler of a target. Versions are
    compared only for packages that both runs recorded.

    Args:
        a: the first run.
        b: the second run.
    """
    prints = _differing_settings(
        {"target fingerprint": a.fingerprint}, {"target fingerprint": b.fingerprint}
    )
    known = a.versions.keys() & b.versions.keys()
    return prints + _differing_settings(
        {name: a.versions[name] for name in known}, {name: b.versions[name] for name in known}
    )


def _differing_settings(
    a: Mapping[str, object], b: Mapping[str, object]
) -> tuple[DifferentSetting, ...]:
    names = dict.fromkeys([*sorted(a), *sorted(b)])
    return tuple(
        DifferentSetting(name, str(a.get(name, "")), str(b.get(name, "")))
        for name in names
        if a.get(name) != b.get(name)
    )


def _slower_text(change: Change) -> str:
    if change.more is None:
        return f"{change.what}: no trial is valid any more"
    return f"{change.what}: {100 * change.more:+.2g} % {change.unit}"


def _less_valid(pair: Pair) -> str:
    assert pair.a is not None
    assert pair.b is not None
    return f"valid trials: from {100 * pair.a:.1f} % to {100 * pair.b:.1f} %"


def _less_right(pair: Pair) -> str:
    assert pair.a is not None
    assert pair.b is not None
    return f"{pair.what}: from {pair.a:.3g} to {pair.b:.3g}, so the model is less accurate"


class DiffError(TilewrightError):
    """Error for runs that cannot be read or cannot be compared."""


_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class RunLatency:
    """Latency of one call of a layer, or of an inference. It is unknown if no schedule was valid.

    Attributes:
        cycles: latency in cycles; None if it is unknown or the target does not count cycles.
        seconds: latency in seconds; None if it is unknown.
        interval: 95 % interval of the seconds; None if measurements do not vary.
    """

    cycles: int | None
    seconds: float | None
    interval: Interval | None = None

    @property
    def is_known(self) -> bool:
        """True if the run found a valid schedule."""
        return self.cycles is not None or self.seconds is not None


@dataclass(frozen=True)
class ComparedLayer:
    """A tuned layer of a run.

    Attributes:
        id: ID of the workload.
        name: name of the layer for messages.
        text: the workload as text, without its epilogue.
        epilogue: fused post-operations as text.
        latency: latency of the best schedule.
        trials: number of trials.
        invalid: number of invalid trials.
        errors: held-out error of each cost model, by name (`search.round_steps.model_errors`).
    """

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
    """A finished run, as one of the two sides of a comparison.

    Attributes:
        place: name of the run in messages, usually its output directory.
        network: name of the network.
        target: name of the target.
        kind: type of the target, for example "vta".
        spec: specification of the target.
        fingerprint: digest of the target's behaviour.
        space: name of the schedule space.
        settings: options of the run other than network and target.
        versions: versions of the packages that the run used.
        layers: the tuned layers.
        total: latency of all tuned layers together.
    """

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
        """Number of trials of all layers."""
        return sum(layer.trials for layer in self.layers)

    @property
    def invalid(self) -> int:
        """Number of invalid trials of all layers."""
        return sum(layer.invalid for layer in self.layers)


def read_side(folder: Path, place: str = "") -> Side:
    """Read a finished run from its output directory, for a comparison with another run.

    Args:
        folder: output directory of the run.
        place: name of the run in messages; by default the folder.

    Returns:
        The run.

    Raises:
        DiffError: the folder does not contain a readable run.
        UnsafeFile: a path is not a regular file.
    """
    summary = read_written(_ComparedSummary, folder, SUMMARY, DiffError)
    written = read_written(_ComparedSchedules, folder, SCHEDULES, DiffError)
    schedules = {schedule.id: schedule for schedule in written.schedules}
    if [workload.id for workload in summary.workloads] != list(schedules):
        raise DiffError(
            f"{folder / SUMMARY} and {SCHEDULES} contain different layers, because one of "
            "them is from another run; tune again"
        )
    try:
        layers = tuple(_layer(row, schedules[row.id]) for row in summary.workloads)
    except (ValueError, TilewrightError) as error:
        raise DiffError(unreadable_message(folder, error)) from None
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
    """Latencies in `summary.json`, which the entries of workloads and of the total share."""

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
    def _check_counts(self) -> Self:
        if self.invalid_trials > self.trials:
            raise ValueError(
                f"the number of invalid trials is {self.invalid_trials} of {self.trials}"
            )
        return self


class _Sharing(BaseModel):
    """Entry `stop_gain` of `summary.json`: how trials were shared among the workloads.

    Attributes:
        share: value of the option `--stop-gain`.
    """

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
        """Settings of the run that `diff` compares.

        They are the settings named in `_SETTINGS`, the tuner's own options, and `stop_gain`, the
        value of the option `--stop-gain`. The key of a tuner's option is `option` with its name.
        `stop_gain` is None if the workloads did not share their trials.
        """
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
