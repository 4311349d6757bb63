"""Checks that the fusion evaluator times networks as they are built, each labelling once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.fusion.nets import NETS, evaluator, problem
from tilewright.fusion.decision import drop_unscheduled_labels
from tilewright.fusion.evaluator import Evaluator, FusionError, FusionSchedules, NoSchedule
from tilewright.fusion.model_features import KINDS, LAYER, Figures, list_units, unit_features
from tilewright.fusion.problem import FusionProblem
from tilewright.networks.artifact.build import layer_graph
from tilewright.targets.capabilities import Blocks, Builds, capability
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.registry import make_target


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("target", ["vta-pynq", "large"])
def test_what_is_timed_is_what_is_built(target: str, net: str) -> None:
    own, timed = problem(target, net), evaluator(target, net)
    builds = capability(own.target, Builds)
    assert builds is not None
    rng = np.random.default_rng(0)
    drawn = [tuple((rng.random(len(own)) < 0.5).tolist()) for _ in range(4)]
    for labels in (own.none, own.all, own.greedy, own.tvm, *drawn):
        result = timed(labels)
        built = builds.build(layer_graph(own.labelled(labels)), result.picks)
        assert result.cycles == built.stream_cycles
        assert [layer.cycles for layer in result.layers] == [row["cycles"] for row in built.layers]
        alone = [row["stream_cycles"] for row in built.layers]
        assert [layer.stream_cycles for layer in result.layers] == alone
        assert sum(alone) == built.stream_cycles


def test_each_labelling_is_simulated_once_and_heard_of() -> None:
    timed, heard = evaluator(), list[int]()
    timed.heard = lambda result, count: heard.append(count)
    none, every = timed(timed.problem.none), timed(timed.problem.all)
    assert (timed(timed.problem.none), timed(timed.problem.all)) == (none, every)
    assert timed.count == 2
    assert heard == [1, 2]
    assert every.cycles < none.cycles
    assert every.dram_bytes < none.dram_bytes
    assert timed.reevaluate(timed.problem.all) == every
    assert timed.count == 2


def test_a_sibling_alone_makes_no_other_graph() -> None:
    timed = evaluator()
    own = timed.problem
    ((one, other),) = own.groups
    neither = own.flip_labels(own.all, [one, other])
    alone = own.flip_labels(own.all, [other])
    assert timed(neither).cycles == timed(alone).cycles
    assert timed(alone).labels == alone
    assert timed.count == 1


def test_workloads_are_tuned_when_they_are_first_needed() -> None:
    timed = evaluator()
    missing = timed.untuned_workloads(timed.problem.none)
    assert missing
    timed(timed.problem.none)
    assert timed.schedules.tuned == len(missing)
    assert timed.untuned_workloads(timed.problem.none) == []
    more = timed.untuned_workloads(timed.problem.all)
    timed(timed.problem.all)
    assert timed.schedules.tuned == len(missing) + len(more)


def test_what_no_schedule_runs_is_not_fused() -> None:
    """If siblings joined into one layer have no schedule, `all` fuses everything but them."""
    timed = evaluator()
    own = timed.problem
    apart = tuple(label and choice.kind != "siblings" for choice, label in
                  zip(own.offered, own.all, strict=True))  # fmt: skip
    (joined,) = set(own.workloads(own.all)) - set(own.workloads(apart))
    able = timed.schedules.tune
    timed.schedules.tune = lambda some: [
        None if item == joined else able([item])[0] for item in some
    ]
    with pytest.raises(NoSchedule, match="none of the schedules that were tried runs"):
        timed(own.all)
    labels = drop_unscheduled_labels(timed, own.all)
    assert timed(labels).cycles > 0
    assert joined not in own.workloads(labels)
    assert all(label for choice, label in zip(own.offered, labels, strict=True)
               if choice.kind == "pool")  # fmt: skip


def test_what_is_offered_and_what_has_to_do_with_it() -> None:
    own = problem()
    kinds = [choice.kind for choice in own.offered]
    assert Counter(kinds) == {"activation": 5, "pool": 1, "average": 2, "siblings": 2}
    assert sorted(map(len, own.segments)) == [1, 1, 2, 6]
    assert [len(places) for places in own.groups] == [2]
    assert own.tvm == tuple(kind == "activation" for kind in kinds)
    assert sorted(place for places in own.segments for place in places) == list(range(len(own)))


def test_shortcuts_are_decided_like_pools() -> None:
    own, timed = problem(net="projecting"), evaluator(net="projecting")
    places = [k for k, choice in enumerate(own.offered) if choice.kind == "shortcut"]
    assert [own.offered[k].name for k in places] == ["one.beside", "two.beside"]
    assert not any(own.tvm[k] or own.no_shortcuts[k] for k in places)
    assert all(own.all[k] for k in places)
    apart, together = timed(own.no_shortcuts), timed(own.all)
    assert len(apart.layers) == len(together.layers) + len(places)
    for place in places:  # by estimates of the changed layers
        other = own.flip_labels(own.greedy, [place])
        here, there = own.estimate(own.greedy), own.estimate(other)
        assert here is not None
        assert there is not None
        assert here <= there


@pytest.mark.parametrize("target", ["vta-pynq", "huge"])
@pytest.mark.parametrize("net", ["pooled", "projecting"])
def test_an_average_in_the_accumulators_makes_the_network_faster(net: str, target: str) -> None:
    own, timed = problem(target, net), evaluator(target, net)
    places = [k for k, choice in enumerate(own.offered) if choice.kind == "average"]
    # one average per joined input; on `huge`, the CPU joins inputs of partly filled blocks
    parts = ["global of one", "global of two"] if target == "vta-pynq" else []
    assert [own.offered[k].name for k in places] == (["global"] if net == "projecting" else parts)
    for place in places:
        apart, together = timed(own.flip_labels(own.all, [place])), timed(own.all)
        assert together.cycles < apart.cycles
        assert together.dram_bytes < apart.dram_bytes
        assert own.greedy[place]
        assert not own.tvm[place]
        last = together.workloads[-2]
        assert last.average is not None
        assert (last.shortcut is not None) == (net == "projecting")


def test_a_policy_has_a_column_of_each_kind() -> None:
    timed = evaluator(net="projecting")
    own = timed.problem
    (row,) = (k for k, unit in enumerate(list_units(own)) if unit.kind == "average")
    table = unit_features(own, Figures(own, timed), own.tvm)
    assert table.matrix[row, table.names.index("average")] == 1
    assert table.matrix[:, : len(KINDS)].sum(axis=1).tolist() == [1.0] * len(table)


def test_a_shortcut_that_no_schedule_runs_stays_a_layer() -> None:
    timed = evaluator(net="projecting")
    own = timed.problem
    first = next(w for w in own.workloads(own.all) if w.shortcut is not None)
    able = timed.schedules.tune
    timed.schedules.tune = lambda some: [None if w == first else able([w])[0] for w in some]
    labels = drop_unscheduled_labels(timed, own.all)
    left = [choice.name for choice, label in zip(own.offered, labels, strict=True) if not label]
    assert left == ["one.beside"]
    assert timed(labels).cycles > 0


def test_the_figures_of_a_shortcut_are_among_its_layer_s() -> None:
    timed = evaluator(net="projecting")
    own = timed.problem
    summed = next(w for w in own.workloads(own.all) if w.shortcut is not None)
    figures = Figures(own, timed)
    alone = summed.remove_pattern(Shortcut)
    beside = summed.of_shortcut
    assert beside is not None
    for name in ("data", "weight"):
        column = LAYER.index(f"log2 {name} bytes")
        sizes = [2 ** figures.layer_figures(w).row[column] for w in (summed, alone, beside)]
        assert sizes[0] == pytest.approx(sizes[1] + sizes[2])


def test_a_target_that_builds_nothing_is_refused() -> None:
    target = make_target("cpu")
    own = FusionProblem(problem().graph, target)
    with pytest.raises(FusionError, match="nothing to decide about fusion; choose a VTA"):
        Evaluator(own, FusionSchedules(Blocks(), lambda some: []))
