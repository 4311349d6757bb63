"""Checks what every target owes; anyone can run the checks on a target of their own.

    from tilewright.targets.conformance import CHECKS
    for check in CHECKS.values():
        check(lambda: MyTarget(), parse_workload("dense:n=1,c=64,o=64"))

Each check makes targets of its own, looks at a sample of the workload's space and raises
`AssertionError` with what was broken. A target that measures in seconds is asked for some dozens of
measurements in all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import STATUSES, Configs, Lowered, Measurements, Target
from tilewright.targets.capabilities import (
    Baseline,
    BaselineSchedule,
    Bounds,
    Enumerates,
    Estimates,
    Fallback,
    HasArea,
    HasCosts,
    HasTraits,
    MeasuresInOnePass,
    Verifies,
    capability,
)
from tilewright.targets.workload import Workload

Make = Callable[[], Target]

SAMPLE = 24  # configs that are lowered
MEASURED = 8  # of those, measured
NOISE = 3.0  # by what factor a measurement that does not repeat may differ
SMALL = 2_000  # spaces up to this size are enumerated


def describes_itself(make: Make, workload: Workload) -> None:
    """Equal targets have equal names, fingerprints, features and spaces."""
    one, two = make(), make()
    assert one.name, "a target has a name"
    assert one.name.isprintable(), f"no name a person can read: {one.name!r}"
    named = re.fullmatch(r"[\w-]+", one.fingerprint)  # it becomes part of file names
    assert named, f"a fingerprint is letters, digits, - and _, not {one.fingerprint!r}"
    assert one.fingerprint == two.fingerprint, "two equal targets have different fingerprints"
    assert isinstance(one.deterministic, bool), "deterministic is True or False"
    features = one.hardware_features()
    assert all(np.isfinite(value) for value in features.values()), f"not all finite: {features}"
    assert one.space(workload) == two.space(workload), "two equal targets offer different spaces"


def offers_a_space(make: Make, workload: Workload) -> None:
    """Knobs have names of their own and values without repetition; flat indices go both ways."""
    space = make().space(workload)
    names = [knob.name for knob in space.knobs]
    assert len(set(names)) == len(names) > 0, f"knobs need names of their own: {names}"
    for knob in space.knobs:
        assert len(set(knob.values)) == len(knob.values) > 0, f"{knob.name} repeats a value"
    assert space.size > 0, "an empty space: raise WorkloadError instead"
    flat = _sample(space.size, SAMPLE)
    if space.listed is not None:
        assert list(space.listed) == sorted(set(space.listed)), "listed indices must ascend"
        flat = np.asarray(space.listed)[flat]
    assert (space.ravel(space.unravel(flat)) == flat).all(), "unravel and ravel disagree"


def lowers_the_same_again(make: Make, workload: Workload) -> None:
    """Lowering is a function of workload and config: not of the batch, not of what came before."""
    target, (whole, configs) = make(), _lowered(make(), workload)
    again = target.lower(workload, configs)
    _equal_lowered(whole, again, "a second time")
    order = np.random.default_rng(1).permutation(len(configs))
    _equal_lowered(whole.rows(order), target.lower(workload, configs[order]), "in another order")
    part = np.arange(len(configs)) % 2 == 0
    _equal_lowered(whole.rows(part), target.lower(workload, configs[part]), "in a smaller batch")


def types_its_failures(make: Make, workload: Workload) -> None:
    """A config that does not compile is a row with a class and a reason, and reveals nothing."""
    lowered, configs = _lowered(make(), workload)
    n = len(configs)
    assert lowered.workload == workload, "lowered another workload"
    assert np.array_equal(lowered.configs, configs), "lowered other configs"
    assert lowered.failures.shape == lowered.reasons.shape == (n,), "one class and reason a config"
    assert len(lowered.hidden) == n, "one row of hidden features a config"
    names = lowered.hidden.names
    assert len(set(names)) == len(names), f"hidden features need names of their own: {names}"
    told = np.array([bool(reason) for reason in lowered.reasons])
    assert (told == ~lowered.ok).all(), "a failure says why, and only a failure does"
    assert np.isnan(lowered.hidden.matrix[~lowered.ok]).all(), "a failed compile reveals nothing"
    assert np.isfinite(lowered.hidden.matrix[lowered.ok]).all(), "a program's features are numbers"


def keeps_its_programs(make: Make, workload: Workload) -> None:
    """Programs are plain arrays with a row a config, so that they can be kept and sent."""
    lowered, configs = _lowered(make(), workload)
    for name, part in lowered.programs.items():
        assert len(part) == len(configs), f"'{name}' has {len(part)} rows for {len(configs)}"
        assert part.values.dtype.kind in "buif", f"'{name}' is not a plain array of numbers"
        assert part.offsets[0] == 0, f"'{name}' does not begin at 0"
        assert part.offsets[-1] == len(part.values), f"'{name}' has values of no row"
        lengths = np.diff(part.offsets)
        assert (lengths >= 0).all(), f"rows of '{name}' overlap"
        assert not lengths[~lowered.ok].any(), f"'{name}' has a program where compiling failed"


def measures_honestly(make: Make, workload: Workload) -> None:
    """Statuses are known ones, numbers are there where a row is valid and nowhere else, and what
    did not compile is not measured."""
    target, (lowered, _) = make(), _lowered(make(), workload)
    some = lowered.rows(_few(lowered))
    before = [part.values.copy() for part in some.programs.values()]
    measured = target.measure(some)
    assert len(measured) == len(some), f"{len(measured)} measurements of {len(some)} configs"
    assert set(measured.status) <= set(STATUSES), f"unknown status in {set(measured.status)}"
    assert (measured.valid <= some.ok).all(), "a config without a program is valid"
    valid = measured.valid
    assert (measured.seconds[valid] > 0).all(), "a valid config takes more than no time"
    assert np.isnan(measured.seconds[~valid]).all(), "seconds of a config that is not valid"
    assert (measured.cycles[~valid] == -1).all(), "cycles of a config that is not valid are -1"
    counted = measured.cycles[valid]
    assert (counted > 0).all() or (counted == -1).all(), "cycles of some valid configs only"
    told = np.array([bool(reason) for reason in measured.reason])
    assert (told == ~valid).all(), "a config that is not valid says why, and only such a one"
    if measured.repeats is not None:
        assert len(measured.repeats) == len(some), "a row of repetitions a config"
    after = [part.values for part in some.programs.values()]
    assert all(map(np.array_equal, before, after)), "measuring changed the programs"


def measures_what_was_lowered(make: Make, workload: Workload) -> None:
    """A row's measurement is its own: the same in another batch and on another object, exactly so
    if the target says that measuring repeats."""
    target = make()
    lowered, _ = _lowered(target, workload)
    some = lowered.rows(_few(lowered))
    whole = target.measure(some)
    order = np.arange(len(some))[::-1]
    for other in (target, make()):
        _equal_measured(
            whole.rows(order), other.measure(some.rows(order)), exact=target.deterministic
        )


def copes_with_nothing(make: Make, workload: Workload) -> None:
    """An empty batch is an empty answer."""
    target = make()
    none = np.empty((0, len(target.space(workload).knobs)), np.int32)
    lowered = target.lower(workload, none)
    assert len(lowered) == 0, "lowered nothing to something"
    assert len(target.measure(lowered)) == 0, "measured nothing and found something"


def keeps_its_capabilities(make: Make, workload: Workload) -> None:
    """What it offers beyond the contract holds together with what it measures."""
    target = make()
    lowered, configs = _lowered(target, workload)
    some = lowered.rows(_few(lowered))
    measured = target.measure(some)
    if (estimates := capability(target, Estimates)) is not None:
        table = estimates.estimate(workload, configs)
        assert len(table) == len(configs), "an estimate a config"
        assert len(table.places("latency")) == 1, "one estimated column means latency"
        assert (table.of_meaning("latency") > 0).all(), "an estimated latency is above 0"
        assert len(set(table.names)) == len(table.names), "estimates need names of their own"
    if (costs := capability(target, HasCosts)) is not None:
        priced = costs.costs(workload)
        assert min(priced.compiling, priced.measuring) > 0, "trials cost time"
    if (verifies := capability(target, Verifies)) is not None:
        wrong = verifies.verify(some)
        assert (wrong[measured.valid] == 0).all(), "a valid config computes wrong numbers"
        assert (wrong[~some.ok] == -1).all(), "-1 where there is no program"
    if (baseline := capability(target, Baseline)) is not None:
        _is_a_schedule(baseline.baseline(workload))
    if (fallback := capability(target, Fallback)) is not None:
        _is_a_schedule(fallback.fallback(workload))
    if (known := capability(target, HasTraits)) is not None:
        assert min(vars(known.traits.blocks).values()) >= 1, "blocks have at least one element"
    if (area := capability(target, HasArea)) is not None:
        assert area.area()["total"] > 0, "hardware takes room"


def _is_a_schedule(found: BaselineSchedule) -> None:
    assert found.source, "a baseline says where it comes from"
    assert len(found.lowered) == 1, "a baseline is a batch of one"
    assert found.measured.valid.all(), "the baseline is not valid"
    values = found.space.values(found.lowered.configs)
    assert values.shape == (1, len(found.space.knobs)), "a config of another space"


def measures_within_bounds(make: Make, workload: Workload) -> None:
    """Latencies are not below their bounds, and repeat. Where they are timed on a real machine, by
    a factor of `NOISE`, and other work on the machine may break even that: run this check alone."""
    target = make()
    lowered, _ = _lowered(target, workload)
    some = lowered.rows(_few(lowered))
    measured, again = target.measure(some), target.measure(some)
    slack = 1.0 if target.deterministic else NOISE
    both = measured.valid & again.valid
    ratio = measured.seconds[both] / again.seconds[both]
    assert ((ratio <= slack) & (ratio >= 1 / slack)).all(), f"latencies that differ by {ratio}"
    if (known := capability(target, Bounds)) is not None:
        fastest = measured.seconds[measured.valid].min(initial=np.inf)
        roofline, bound = known.roofline(workload).seconds, known.bound(workload)
        assert roofline <= fastest * slack, f"{fastest:g} s beats the roofline of {roofline:g} s"
        least = 0.0 if bound is None else bound.seconds
        assert least <= fastest * slack, f"{fastest:g} s beats the bound of {least:g} s"
        if (bounds := known.schedule_bounds(workload, some.configs)) is not None:
            beaten = bounds > measured.latency * slack
            assert not beaten.any(), "a schedule beats its own bound"


def enumerates_what_it_measures(make: Make, workload: Workload) -> None:
    """Enumerating gives what lowering and measuring give."""
    target = make()
    space, whole = target.space(workload), capability(target, Enumerates)
    if whole is None or space.size > SMALL or space.listed is not None:
        return
    lowered, measured = whole.enumerate(workload)
    flat = _sample(space.size, SAMPLE)
    again = target.lower(workload, space.unravel(flat))
    assert np.array_equal(lowered.failures[flat], again.failures), "other failures"
    assert np.array_equal(lowered.hidden.matrix[flat], again.hidden.matrix, equal_nan=True), (
        "other hidden features"
    )
    _equal_measured(measured.rows(flat), target.measure(again), exact=target.deterministic)


def measures_the_same_in_one_pass(make: Make, workload: Workload) -> None:
    """Lowering and measuring at once gives what one after the other gives."""
    target = make()
    space, at_once = target.space(workload), capability(target, MeasuresInOnePass)
    if at_once is None or space.listed is not None:
        return
    configs = space.unravel(_sample(space.size, SAMPLE))
    done: list[int] = []
    lowered, measured = at_once.lower_and_measure(workload, configs, done.append)
    again = target.lower(workload, configs)
    assert sum(done) == len(configs), "progress of other rows"
    assert np.array_equal(lowered.failures, again.failures), "other failures"
    assert np.array_equal(lowered.hidden.matrix, again.hidden.matrix, equal_nan=True), (
        "other hidden features"
    )
    _equal_measured(measured, target.measure(again), exact=target.deterministic)


CHECKS: dict[str, Callable[[Make, Workload], None]] = {
    check.__name__: check
    for check in (
        describes_itself, offers_a_space, lowers_the_same_again, types_its_failures,
        keeps_its_programs, measures_honestly, measures_what_was_lowered, copes_with_nothing,
        keeps_its_capabilities, measures_within_bounds, enumerates_what_it_measures,
        measures_the_same_in_one_pass,
    )
}  # fmt: skip


def _sample(size: int, count: int) -> NDArray[np.int64]:
    """Places in a space, the first and the last among them."""
    drawn = np.random.default_rng(0).integers(0, size, count)
    return np.unique(np.concatenate([[0, size - 1], drawn]))


def _lowered(target: Target, workload: Workload) -> tuple[Lowered, Configs]:
    space = target.space(workload)
    flat = _sample(space.size, SAMPLE)
    configs = space.unravel(flat if space.listed is None else np.asarray(space.listed)[flat])
    return target.lower(workload, configs), configs


def _few(lowered: Lowered) -> NDArray[np.int64]:
    """Rows to measure: most of them compiled, one that did not if there is any."""
    return np.concatenate([np.flatnonzero(lowered.ok)[:MEASURED], np.flatnonzero(~lowered.ok)[:1]])


def _equal_lowered(one: Lowered, other: Lowered, when: str) -> None:
    assert np.array_equal(one.failures, other.failures), f"other failures {when}"
    assert one.hidden.columns == other.hidden.columns, f"other hidden features {when}"
    assert np.array_equal(one.hidden.matrix, other.hidden.matrix, equal_nan=True), (
        f"other hidden features {when}"
    )
    assert one.programs.keys() == other.programs.keys(), f"other programs {when}"
    for name, part in one.programs.items():
        assert np.array_equal(part.offsets, other.programs[name].offsets), f"other '{name}' {when}"
        assert np.array_equal(part.values, other.programs[name].values), f"other '{name}' {when}"


def _equal_measured(one: Measurements, other: Measurements, *, exact: bool) -> None:
    assert np.array_equal(one.valid, other.valid) or not exact, "other statuses in another batch"
    if exact:
        assert np.array_equal(one.status, other.status), "other statuses in another batch"
        assert np.array_equal(one.latency, other.latency, equal_nan=True), "other latencies"
        return
    for seconds in (one.seconds[one.valid], other.seconds[other.valid]):
        assert (np.isfinite(seconds) & (seconds > 0)).all(), f"latencies of {seconds}"
