"""Tests where a build takes the schedule of each layer from."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import psutil
import pytest

from tilewright.flows.build import SchedulesFound, tuned_picks
from tilewright.search.events import Event
from tilewright.targets import make_target
from tilewright.targets.artifact_types import Pick
from tilewright.targets.workload import Workload, canonical, parse_workload
from tilewright.tuning.schedule_lookup import PickError, pick_rules, read_picks

TARGET = make_target("vta-pynq")
SHAPES = ("conv2d:c=16,h=10,w=10,o=32,k=3,p=1", "dense:n=1,c=64,o=32")
WORKLOADS = [canonical(parse_workload(text, "bias, >> 8, min 127, max 0")) for text in SHAPES]


@pytest.mark.slow(seconds=10)
def test_a_large_space_is_not_written_out_for_the_few_that_are_drawn() -> None:
    target = make_target("cpu:threads=1")
    workload = parse_workload("conv2d:c=64,h=14,w=14,o=64,k=3,p=1,dtype=float32", "bias, max 0")
    assert target.space(workload).size > 30_000_000
    tracemalloc.start()
    try:
        pick_rules([workload], target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < target.space(workload).size


def test_rules_choose_without_compiling_or_measuring() -> None:
    """A build without trials therefore gives the same result on a busy machine.

    It starts no process.
    """
    target = make_target("cpu:threads=1")
    layers = [
        parse_workload(f"{shape},dtype=float32")
        for shape in ("conv2d:c=480,h=1,w=1,o=20,k=1", "conv2d:c=96,h=56,w=56,o=96,k=7,p=3,g=96")
    ]
    before = psutil.Process().children(recursive=True)
    assert list(pick_rules(layers, target)) == layers
    assert psutil.Process().children(recursive=True) == before


def folder(place: Path, **changes: object) -> Path:
    """Write an output directory with one schedule per workload."""
    rows = [
        {"workload": str(w), "epilogue": "bias, >> 5, min 90, max 0", "space": "extended",
         "config": [0] * 11}
        for w in WORKLOADS
    ]  # fmt: skip
    whole: dict[str, object] = {
        "version": 1, "network": "some", "target": {"name": "vta-pynq"}, "schedules": rows,
    }  # fmt: skip
    (place / "schedules.json").write_text(json.dumps(whole | changes))
    return place


def latency(workload: Workload, pick: Pick) -> int:
    import numpy as np

    target = make_target("vta-pynq", pick.space)
    config = np.array([pick.config], np.int32)
    return int(target.measure(target.lower(workload, config)).cycles[0])


def test_a_tuned_folder_gives_them_whatever_their_immediates(tmp_path: Path) -> None:
    picks = read_picks(folder(tmp_path), [*WORKLOADS, WORKLOADS[0]], TARGET)
    assert picks == [Pick("extended", (0,) * 11)] * 3


@pytest.mark.parametrize("epilogue", ["bias, >> 8, min 127, max 0", "+ 128, >> 8, min 127, max 0"])
def test_what_runs_shifts_by_channel_runs_any_shift(epilogue: str, tmp_path: Path) -> None:
    """If per-channel scales do not pay, the layer gets a single scale.

    The schedule for per-channel shifts serves it too, but not the other way round.
    """
    (one, other), own = SHAPES, "bias, >> channel 8, min 127, max 0"
    rows = [
        {"workload": one, "epilogue": own, "space": "extended", "config": [0] * 11},
        {"workload": other, "epilogue": epilogue, "space": "extended", "config": [0] * 10},
    ]
    tuned = folder(tmp_path, schedules=rows)
    wanted = [canonical(parse_workload(one, item)) for item in (own, epilogue)]
    wanted.append(canonical(parse_workload(one, "bias 32, >> channel, min 127, max 0")))
    assert read_picks(tuned, wanted, TARGET) == [Pick("extended", (0,) * 11)] * 3
    assert latency(wanted[1], Pick("extended", (0,) * 11)) > 0
    with pytest.raises(PickError, match="--epilogue per-channel"):
        read_picks(tuned, [canonical(parse_workload(other, own))], TARGET)


def test_channels_count_in_whole_blocks(tmp_path: Path) -> None:
    """A tuned folder may name the padded workload or the original one."""
    texts = ("conv2d:c=9,h=10,w=10,o=20,k=3,p=1", "max_pool:c=20,h=8,w=8,k=2,s=2")
    bare = [canonical(parse_workload(text, "")) for text in texts]
    whole = ("conv2d:c=16,h=10,w=10,o=32,k=3,p=1", "max_pool:c=32,h=8,w=8,k=2,s=2")
    rows = [{"workload": text, "epilogue": "", "space": "extended", "config": [k]}
            for k, text in enumerate(whole)]  # fmt: skip
    picks = read_picks(folder(tmp_path, schedules=rows), bare, TARGET)
    assert picks == [Pick("extended", (0,)), Pick("extended", (1,))]
    for one, other in zip(bare, whole, strict=True):
        padded = parse_workload(other, "")
        assert TARGET.space(one) == TARGET.space(padded)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 7}, "version 7"),
        ({"schedules": []}, "for some and lacks schedules for 2 of the 2 workloads"),
        ({"schedules": None}, "contains no schedules"),
        ({"target": {"name": "mine", "spec": {"LOG_BATCH": 2}}}, r"for another machine \(mine\)"),
    ],
)
def test_other_folders_are_refused(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(PickError, match=said):
        read_picks(folder(tmp_path, **changes), WORKLOADS, TARGET)


def test_a_schedule_without_a_config_is_missing(tmp_path: Path) -> None:
    rows = [{"workload": str(WORKLOADS[0]), "epilogue": "", "space": None, "config": None}]
    with pytest.raises(PickError, match="lacks schedules for 2 of the 2"):
        read_picks(folder(tmp_path, schedules=rows), WORKLOADS, TARGET)


def test_no_trials_take_the_better_of_estimate_and_baseline() -> None:
    told: list[Event] = []
    picks = tuned_picks([*WORKLOADS, WORKLOADS[0]], TARGET, 0, emit=told.append)
    assert picks[0] == picks[2]
    assert told == [SchedulesFound(done, 2) for done in range(3)]
    for workload, pick in zip(WORKLOADS, picks, strict=False):
        baseline = TARGET.baseline(workload).latency.cycles  # type: ignore[attr-defined]
        assert 0 < latency(workload, pick) <= baseline


def test_trials_do_not_make_it_worse() -> None:
    for workload in WORKLOADS:
        (few,) = tuned_picks([workload], TARGET, 0)
        (more,) = tuned_picks([workload], TARGET, 8)
        assert latency(workload, more) <= latency(workload, few)
