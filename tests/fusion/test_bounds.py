"""Checks that no fusion labelling runs faster than its lower bound, whatever its schedules."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fusion.bounds import Needed, Sums, bound, changes, least_bound
from benchmarks.fusion.stream_bound import Needs, stream_bound
from benchmarks.fusion.tuned_pairs import make_problem
from tests.fusion.nets import problem
from tilewright.flows.build import tuned_picks
from tilewright.fusion.evaluator import Evaluator, FusionSchedules
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import traits_of
from tilewright.targets.workload import Workload

DRAWN = 32
"""Number of random configs among which a valid schedule is sought."""


def drawn(own: FusionProblem, count: int, rng: np.random.Generator) -> list[Labelling]:
    """Return the named labellings and `count` random ones with increasingly many fusions."""
    some = [
        tuple((rng.random(len(own)) < share).tolist()) for share in np.linspace(0.2, 0.95, count)
    ]
    return [own.none, own.all, own.tvm, *some]


def any_schedule(workload: Workload, target: Target, rng: np.random.Generator) -> Pick:
    """Draw a random schedule that lowers to a program."""
    space = target.space(workload)
    knobs = [rng.integers(0, len(knob.values), DRAWN) for knob in space.knobs]
    configs: NDArray[np.int32] = np.stack(knobs, axis=1).astype(np.int32)
    good = np.flatnonzero(target.lower(workload, configs).ok)
    if not len(good):
        return tuned_picks([workload], target, 0)[0]
    return Pick(space.name, tuple(configs[int(good[0])].tolist()))


def check(own: FusionProblem, labellings: int, schedules: int) -> float:
    """Check that streams take at least their bound, with estimated-best and random schedules.

    Returns:
        The smallest ratio of a stream's cycles to its bound.
    """
    rng, needed = np.random.default_rng(0), Needed(own.target)
    least, closest = least_bound(own, needed), np.inf
    for turn in range(schedules):

        def tune(some: object, best: bool = turn == 0) -> object:
            if best:
                return tuned_picks(some, own.target, 0)  # type: ignore[arg-type]
            return [any_schedule(item, own.target, rng) for item in some]  # type: ignore[attr-defined]

        timed = Evaluator(own, FusionSchedules(traits_of(own.target).blocks, tune))  # type: ignore[arg-type]
        for labels in drawn(own, labellings, rng):
            known = bound(own, labels, needed)
            assert least <= known <= timed(labels).cycles
            closest = min(closest, timed(labels).cycles / known)
    return float(closest)


@pytest.mark.slow(seconds=0.6)
@pytest.mark.parametrize("net", ["pooled", "projecting"])
@pytest.mark.parametrize("target", ["vta-pynq", "huge"])
def test_small_networks_take_as_long_as_they_have_to(target: str, net: str) -> None:
    check(problem(target, net), 4, 3)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("target", ["vta-pynq", "huge"])
def test_the_digits_take_as_long_as_they_have_to(target: str) -> None:
    check(make_problem("digits_cnn", target), 4, 4)


@pytest.mark.nightly(seconds=7)
@pytest.mark.parametrize("target", ["vta-pynq", "huge"])
def test_resnet18_takes_as_long_as_it_has_to(target: str) -> None:
    assert check(make_problem("resnet18", target), 8, 3) < 1.25


def test_the_bound_of_a_layer_alone_does_not_hold_in_a_stream() -> None:
    """Streams need their own bound: weights of a layer load while the layer before computes."""
    layers = [Needs(100, 20, 0), Needs(50, 90, 60)]
    assert sum(max(layer.busy, layer.read) for layer in layers) == 190
    assert stream_bound(layers) == 150  # 60 of the second's reads overlap with compute


def test_a_stream_s_bound_is_the_least_over_all_ways_to_divide_early_reads() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        figures = rng.integers(0, 8, (4, 2)).tolist()
        layers = [Needs(busy, read, int(rng.integers(0, read + 1))) for busy, read in figures]
        ways = product(*(range(layer.early + 1) for layer in layers[1:]))
        spans = []
        for way in ways:
            early = [0, *way, 0]
            spans.append(
                sum(
                    max(layer.busy, layer.read - own + behind)
                    for layer, (own, behind) in zip(layers, pairwise(early), strict=True)
                )
            )
        assert stream_bound(layers) == min(spans)


@pytest.mark.parametrize("net", ["pooled", "projecting"])
def test_the_labels_of_a_segment_change_their_own_part_of_the_sums(net: str) -> None:
    own = problem("vta-pynq", net)
    needed, rng = Needed(own.target), np.random.default_rng(1)
    base = needed.sums(own.workloads(own.tvm))
    for labels in drawn(own, 6, rng):
        least, read = base
        for places in own.segments:
            alone = list(own.tvm)
            for place in places:
                alone[place] = labels[place]
            with_these = needed.sums(own.workloads(tuple(alone)))
            least, read = least + with_these.least - base.least, read + with_these.read - base.read
        assert Sums(least, read) == needed.sums(own.workloads(labels))


@pytest.mark.parametrize("net", ["pooled", "projecting"])
def test_no_labelling_has_a_bound_below_that_of_all(net: str) -> None:
    own = problem("huge", net)
    needed = Needed(own.target)
    every = [bound(own, labels, needed) for labels in product((False, True), repeat=len(own))]
    assert 0.8 * min(every) < least_bound(own, needed) <= min(every)


def test_a_segment_that_cannot_be_gone_through_is_refused() -> None:
    own = problem()
    with pytest.raises(
        ValueError, match="13 decisions depend on each other, but at most 12 are supported"
    ):
        changes(own, range(13), Needed(own.target))
