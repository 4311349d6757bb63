"""Conformance suite for targets, also for targets that are not part of Tilewright.

Example:
    ```python
    from tilewright.targets.conformance import CHECKS

    for check in CHECKS.values():
        check(lambda: MyTarget(), parse_workload("dense:n=1,c=64,o=64"))
    ```

Each check creates its own targets, examines a sample of the workload's space, and raises
`AssertionError` if the target violates the contract of `targets.base.Target`. The sample is so
small that the suite is practical even if a measurement takes seconds. Only the checks of the
capabilities `Enumerates` and `MeasuresInOnePass` measure more configs.
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

SAMPLE = 24  # number of configs that are lowered
MEASURED = 8  # number of these configs that are measured
NOISE = 3.0  # factor by which two measurements of a target that is not deterministic may differ
SMALL = 2_000  # maximum size of a space that is enumerated


def describes_itself(make: Make, workload: Workload) -> None:
    """Check that equal targets have equal names, fingerprints, hardware features and spaces.

    The targets come from two calls of `make`.
    """
    one, two = make(), make()
    assert one.name, "a target has a name"
    assert one.name.isprintable(), f"the name cannot be read by a person: {one.name!r}"
    named = re.fullmatch(r"[\w-]+", one.fingerprint)  # the fingerprint becomes part of file names
    assert named, (
        f"a fingerprint may only contain letters, digits, '-' and '_', not {one.fingerprint!r}"
    )
    assert one.fingerprint == two.fingerprint, "two equal targets have different fingerprints"
    assert isinstance(one.deterministic, bool), "'deterministic' must be True or False"
    features = one.hardware_features()
    assert all(np.isfinite(value) for value in features.values()), (
        f"some hardware features are not finite: {features}"
    )
    assert one.space(workload) == two.space(workload), "two equal targets have different spaces"


def offers_a_space(make: Make, workload: Workload) -> None:
    """Check that a workload's space is valid.

    The space has at least one knob and one config, and each knob has at least one value. Knob
    names, and the values of a knob, are unique. Listed indices are unique and ascending. Converting
    flat indices to configs and back gives the same indices.
    """
    space = make().space(workload)
    names = [knob.name for knob in space.knobs]
    assert len(set(names)) == len(names) > 0, f"two knobs have the same name: {names}"
    for knob in space.knobs:
        assert len(set(knob.values)) == len(knob.values) > 0, (
            f"the knob {knob.name} contains a value twice"
        )
    assert space.size > 0, "the space is empty; raise WorkloadError instead"
    flat = _sample(space.size, SAMPLE)
    if space.listed is not None:
        assert list(space.listed) == sorted(set(space.listed)), (
            "the listed indices must be ascending"
        )
        flat = np.asarray(space.listed)[flat]
    assert (space.ravel(space.unravel(flat)) == flat).all(), "ravel does not invert unravel"


def lowers_the_same_again(make: Make, workload: Workload) -> None:
    """Check that the result of lowering depends only on the workload and the config.

    The result must not depend on the other configs of the batch or on earlier calls of `lower`.
    """
    target, (whole, configs) = make(), _lower_sample(make(), workload)
    again = target.lower(workload, configs)
    _equal_lowered(whole, again, "a second time")
    order = np.random.default_rng(1).permutation(len(configs))
    _equal_lowered(whole.rows(order), target.lower(workload, configs[order]), "in another order")
    part = np.arange(len(configs)) % 2 == 0
    _equal_lowered(whole.rows(part), target.lower(workload, configs[part]), "in a smaller batch")


def types_its_failures(make: Make, workload: Workload) -> None:
    """Check that each config that does not compile has a failure class and a reason.

    Its hidden features must be NaN.
    """
    lowered, configs = _lower_sample(make(), workload)
    n = len(configs)
    assert lowered.workload == workload, "lower() returned another workload"
    assert np.array_equal(lowered.configs, configs), "lower() returned other configs"
    assert lowered.failures.shape == lowered.reasons.shape == (n,), (
        "lower() must return one failure class and one reason per config"
    )
    assert len(lowered.hidden) == n, "lower() must return one row of hidden features per config"
    names = lowered.hidden.names
    assert len(set(names)) == len(names), f"two hidden features have the same name: {names}"
    has_reason = np.array([bool(reason) for reason in lowered.reasons])
    assert (has_reason == ~lowered.ok).all(), (
        "a config must have a reason exactly if it failed to compile"
    )
    assert np.isnan(lowered.hidden.matrix[~lowered.ok]).all(), (
        "hidden features must be NaN for configs that failed to compile"
    )
    assert np.isfinite(lowered.hidden.matrix[lowered.ok]).all(), (
        "hidden features must be finite for configs that compiled"
    )


def keeps_its_programs(make: Make, workload: Workload) -> None:
    """Check that programs are plain arrays with one row per config.

    Such programs can be stored and sent to other processes.
    """
    lowered, configs = _lower_sample(make(), workload)
    for name, part in lowered.programs.items():
        assert len(part) == len(configs), (
            f"'{name}' has {len(part)} rows for {len(configs)} configs"
        )
        assert part.values.dtype.kind in "buif", f"'{name}' is not a plain array of numbers"
        assert part.offsets[0] == 0, f"the offsets of '{name}' do not begin at 0"
        assert part.offsets[-1] == len(part.values), f"'{name}' has values that belong to no row"
        lengths = np.diff(part.offsets)
        assert (lengths >= 0).all(), f"rows of '{name}' overlap"
        assert not lengths[~lowered.ok].any(), (
            f"'{name}' has a program for a config that failed to compile"
        )


def measures_honestly(make: Make, workload: Workload) -> None:
    """Check that statuses are known and that exactly the valid configs have latencies.

    A config that did not compile must not be reported as valid.
    """
    target, (lowered, _) = make(), _lower_sample(make(), workload)
    some = lowered.rows(_choose_few_rows(lowered))
    before = [part.values.copy() for part in some.programs.values()]
    measured = target.measure(some)
    assert len(measured) == len(some), f"{len(measured)} measurements of {len(some)} configs"
    assert set(measured.status) <= set(STATUSES), f"unknown status among {set(measured.status)}"
    assert (measured.valid <= some.ok).all(), "a config without a program is reported as valid"
    valid = measured.valid
    assert (measured.seconds[valid] > 0).all(), (
        "the latency of a valid config must be larger than 0"
    )
    assert np.isnan(measured.seconds[~valid]).all(), (
        "the latency in seconds must be NaN for invalid configs"
    )
    assert (measured.cycles[~valid] == -1).all(), "the cycles must be -1 for invalid configs"
    counted = measured.cycles[valid]
    assert (counted > 0).all() or (counted == -1).all(), (
        "either all valid configs have cycles, or none"
    )
    has_reason = np.array([bool(reason) for reason in measured.reason])
    assert (has_reason == ~valid).all(), "a config must have a reason exactly if it is invalid"
    if measured.repeats is not None:
        assert len(measured.repeats) == len(some), "there must be one row of repeats per config"
    after = [part.values for part in some.programs.values()]
    assert all(map(np.array_equal, before, after)), "measure() changed the programs"


def measures_what_was_lowered(make: Make, workload: Workload) -> None:
    """Check that a measurement depends neither on the batch nor on the target object.

    The same programs are measured twice more in reverse order: on the same target, and on a second
    target from `make`. If the target is deterministic, the numbers must be identical.
    """
    target = make()
    lowered, _ = _lower_sample(target, workload)
    some = lowered.rows(_choose_few_rows(lowered))
    whole = target.measure(some)
    order = np.arange(len(some))[::-1]
    for other in (target, make()):
        _equal_measured(
            whole.rows(order), other.measure(some.rows(order)), exact=target.deterministic
        )


def copes_with_nothing(make: Make, workload: Workload) -> None:
    """Check that an empty batch gives an empty result."""
    target = make()
    none = np.empty((0, len(target.space(workload).knobs)), np.int32)
    lowered = target.lower(workload, none)
    assert len(lowered) == 0, "lower() returned configs for an empty batch"
    assert len(target.measure(lowered)) == 0, "measure() returned results for an empty batch"


def keeps_its_capabilities(make: Make, workload: Workload) -> None:
    """Check that the optional capabilities are consistent with the measurements."""
    target = make()
    lowered, configs = _lower_sample(target, workload)
    some = lowered.rows(_choose_few_rows(lowered))
    measured = target.measure(some)
    if (estimates := capability(target, Estimates)) is not None:
        table = estimates.estimate(workload, configs)
        assert len(table) == len(configs), "there must be one row of estimates per config"
        assert len(table.column_indices("latency")) == 1, (
            "exactly one estimated column must have the meaning 'latency'"
        )
        assert (table.of_meaning("latency") > 0).all(), "estimated latencies must be larger than 0"
        assert len(set(table.names)) == len(table.names), "two estimates have the same name"
    if (costs := capability(target, HasCosts)) is not None:
        priced = costs.costs(workload)
        assert min(priced.compiling, priced.measuring) > 0, (
            "the costs of compiling and measuring must be larger than 0"
        )
    if (verifies := capability(target, Verifies)) is not None:
        wrong = verifies.verify(some)
        assert (wrong[measured.valid] == 0).all(), "a valid config computes wrong values"
        assert (wrong[~some.ok] == -1).all(), (
            "verify() must return -1 for configs without a program"
        )
    if (baseline := capability(target, Baseline)) is not None:
        _is_a_schedule(baseline.baseline(workload))
    if (fallback := capability(target, Fallback)) is not None:
        _is_a_schedule(fallback.fallback(workload))
    if (known := capability(target, HasTraits)) is not None:
        assert min(vars(known.traits.blocks).values()) >= 1, "blocks must have at least one element"
    if (area := capability(target, HasArea)) is not None:
        assert area.area()["total"] > 0, "the area must be larger than 0"


def _is_a_schedule(baseline: BaselineSchedule) -> None:
    """Check that a baseline has a source, is valid, and has a single config of its own space."""
    assert baseline.source, "a baseline must name its source"
    assert len(baseline.lowered) == 1, "a baseline must be a batch of one config"
    assert baseline.measured.valid.all(), "the baseline is not valid"
    values = baseline.space.values(baseline.lowered.configs)
    assert values.shape == (1, len(baseline.space.knobs)), (
        "the baseline's config does not fit its space"
    )


def measures_within_bounds(make: Make, workload: Workload) -> None:
    """Check that latencies are not below their lower bounds, and that repeated latencies agree.

    On a target that is not deterministic, repeated latencies may differ by a factor of `NOISE`.
    Other processes on the machine can cause larger differences, so run this check alone.
    """
    target = make()
    lowered, _ = _lower_sample(target, workload)
    some = lowered.rows(_choose_few_rows(lowered))
    measured, again = target.measure(some), target.measure(some)
    slack = 1.0 if target.deterministic else NOISE
    both = measured.valid & again.valid
    ratio = measured.seconds[both] / again.seconds[both]
    assert ((ratio <= slack) & (ratio >= 1 / slack)).all(), (
        f"the latencies of two measurements differ by the factors {ratio}"
    )
    if (known := capability(target, Bounds)) is not None:
        fastest = measured.seconds[measured.valid].min(initial=np.inf)
        roofline, bound = known.roofline(workload).seconds, known.bound(workload)
        assert roofline <= fastest * slack, (
            f"the measured latency {fastest:g} s is below the roofline of {roofline:g} s"
        )
        least = 0.0 if bound is None else bound.seconds
        assert least <= fastest * slack, (
            f"the measured latency {fastest:g} s is below the bound of {least:g} s"
        )
        if (bounds := known.schedule_bounds(workload, some.configs)) is not None:
            beaten = bounds > measured.latency * slack
            assert not beaten.any(), "the measured latency of a schedule is below its own bound"


def enumerates_what_it_measures(make: Make, workload: Workload) -> None:
    """Check that enumerating a whole space gives the same results as lowering and measuring it."""
    target = make()
    space, whole = target.space(workload), capability(target, Enumerates)
    if whole is None or space.size > SMALL or space.listed is not None:
        return
    lowered, measured = whole.enumerate(workload)
    flat = _sample(space.size, SAMPLE)
    again = target.lower(workload, space.unravel(flat))
    assert np.array_equal(lowered.failures[flat], again.failures), "different failures"
    assert np.array_equal(lowered.hidden.matrix[flat], again.hidden.matrix, equal_nan=True), (
        "different hidden features"
    )
    _equal_measured(measured.rows(flat), target.measure(again), exact=target.deterministic)


def measures_the_same_in_one_pass(make: Make, workload: Workload) -> None:
    """Check that lowering and measuring in one pass gives the same results as in two steps."""
    target = make()
    space, at_once = target.space(workload), capability(target, MeasuresInOnePass)
    if at_once is None or space.listed is not None:
        return
    configs = space.unravel(_sample(space.size, SAMPLE))
    done: list[int] = []
    lowered, measured = at_once.lower_and_measure(workload, configs, done.append)
    again = target.lower(workload, configs)
    assert sum(done) == len(configs), "progress of other rows"
    assert np.array_equal(lowered.failures, again.failures), "different failures"
    assert np.array_equal(lowered.hidden.matrix, again.hidden.matrix, equal_nan=True), (
        "different hidden features"
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
    """Draw `count` flat indices of a space of `size` configs, in ascending order.

    The first and the last index are always included.
    """
    indices = np.random.default_rng(0).integers(0, size, count)
    return np.unique(np.concatenate([[0, size - 1], indices]))


def _lower_sample(target: Target, workload: Workload) -> tuple[Lowered, Configs]:
    space = target.space(workload)
    flat = _sample(space.size, SAMPLE)
    configs = space.unravel(flat if space.listed is None else np.asarray(space.listed)[flat])
    return target.lower(workload, configs), configs


def _choose_few_rows(lowered: Lowered) -> NDArray[np.int64]:
    """Return the rows to measure: several that compiled, and one that did not if there is one."""
    return np.concatenate([np.flatnonzero(lowered.ok)[:MEASURED], np.flatnonzero(~lowered.ok)[:1]])


def _equal_lowered(one: Lowered, other: Lowered, when: str) -> None:
    assert np.array_equal(one.failures, other.failures), f"different failures {when}"
    assert one.hidden.columns == other.hidden.columns, f"different hidden features {when}"
    assert np.array_equal(one.hidden.matrix, other.hidden.matrix, equal_nan=True), (
        f"different hidden features {when}"
    )
    assert one.programs.keys() == other.programs.keys(), f"different programs {when}"
    for name, part in one.programs.items():
        assert np.array_equal(part.offsets, other.programs[name].offsets), f"other '{name}' {when}"
        assert np.array_equal(part.values, other.programs[name].values), f"other '{name}' {when}"


def _equal_measured(one: Measurements, other: Measurements, *, exact: bool) -> None:
    assert np.array_equal(one.valid, other.valid) or not exact, (
        "different statuses in another batch"
    )
    if exact:
        assert np.array_equal(one.status, other.status), "different statuses in another batch"
        assert np.array_equal(one.latency, other.latency, equal_nan=True), "different latencies"
        return
    for seconds in (one.seconds[one.valid], other.seconds[other.valid]):
        assert (np.isfinite(seconds) & (seconds > 0)).all(), f"latencies of {seconds}"
