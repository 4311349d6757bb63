"""Tests the canonical form of workloads: which workloads share their schedules."""

from __future__ import annotations

import pytest

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.patterns import PATTERNS
from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.workload import Workload, canonical, parse_workload

SHAPE = "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1"


def of(epilogue: str) -> Workload:
    """Return the common shape with an epilogue."""
    return parse_workload(SHAPE, epilogue)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bias, >> 5, min 127, max -128", "bias, >> 9, min 90, max 0"),
        ("<< 3, min 127, max 0", ">> 4, min 127, max 0"),
        ("bias, >> channel 5, min 127, max 0", "bias, >> channel 20, min 90, max -128"),
    ],
)
def test_immediates_do_not_tell_workloads_apart(one: str, other: str) -> None:
    assert canonical(of(one)) == canonical(of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bias, >> 5, min 127, max 0", ">> 5, min 127, max 0"),
        ("bias, >> 5, min 127, max 0", "bias, min 127, max 0"),
        ("min 127, max 0", "max 0, min 127"),
        ("bias, >> channel, min 127", "bias, >> 8, min 127"),
        ("bias, >> channel, min 127", "bias, >> channel 8, min 127"),
    ],
)
def test_the_kinds_of_steps_and_their_order_do(one: str, other: str) -> None:
    assert canonical(of(one)) != canonical(of(other))


@pytest.mark.parametrize(
    ("text", "amounts"),
    [(">> 9", (9, 9)), (">> channel", (0, 31)), (">> channel 5", (5, 13)),
     (">> channel 14", (14, 20))],
)  # fmt: skip
def test_a_right_shift_says_by_what(text: str, amounts: tuple[int, int]) -> None:
    (step,) = of(text).epilogue
    assert step.shift_range == amounts
    assert str(step) == text


@pytest.mark.parametrize("text", [">> channel 4", ">> channel 21", ">> channels", "channel"])
def test_other_shifts_a_channel_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=">> channel"):
        of(text)


def test_a_canonical_workload_is_its_own() -> None:
    once = canonical(of("bias, >> 5, min 90, max -128"))
    assert canonical(once) == once


BOTH = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1,xc=16,xi=16,xs=2,avg=8"
IDS = {
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1": "29cab8787af4",
    "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1,mk=3x2,ms=2x1,mp=1x0x0x1": "328a3e1c7623",
    BOTH: "ad019bed7a17",
    "dense:n=4,c=512,o=1000,dtype=float32": "0b269164e5a4",
    "max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1": "e4bce2506ea0",
}
"""Workload IDs as they are stored in existing files."""


@pytest.mark.parametrize(("text", "known"), IDS.items())
def test_ids_are_those_of_files_that_there_are(text: str, known: str) -> None:
    workload = parse_workload(text)
    assert workload.id == known
    assert Workload.from_json(workload.to_json()) == workload
    assert parse_workload(str(workload), workload.epilogue_text) == workload


def test_post_operations_are_in_the_order_they_are_computed_in() -> None:
    workload = parse_workload(BOTH)
    kinds = [type(item) for item in workload.post]
    assert kinds[0] is Shortcut
    assert kinds[-1] is Average
    assert workload.post[1:-1] == workload.epilogue
    assert workload.with_patterns(*reversed(workload.patterns)) == workload
    assert workload.remove_pattern(Average).with_steps(()).post == (workload.shortcut,)
    assert (workload.results_height, workload.out_height) == (8, 1)


def test_another_order_or_two_of_a_kind_are_refused() -> None:
    steps = parse_epilogue(">> 8")
    shape = (1, 16, 8, 8, 16)
    for post in ((*steps, Pool(2, 2)), (Average(8, 8), *steps), (Pool(2, 2), Pool(2, 2))):
        with pytest.raises(WorkloadError, match="an unsupported order"):
            Workload("conv2d", *shape, post=post)


def test_patterns_have_names_and_keys_of_their_own() -> None:
    names = [kind.name for kind in PATTERNS]
    keys = [key for kind in PATTERNS for key in kind.keys]
    assert len(set(names)) == len(names)
    assert len(set(keys)) == len(keys)
    assert not set(names) & {"epilogue", "dtype", "post"}
