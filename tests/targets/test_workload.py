"""Which workloads share their schedules."""

from __future__ import annotations

import pytest

from targets.workload import Workload, canonical, parse_workload

SHAPE = "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1"


def of(epilogue: str) -> Workload:
    """The shape above with an epilogue."""
    return parse_workload(SHAPE, epilogue)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bias, >> 5, min 127, max -128", "bias, >> 9, min 90, max 0"),
        ("<< 3, min 127, max 0", ">> 4, min 127, max 0"),
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
    ],
)
def test_the_kinds_of_steps_and_their_order_do(one: str, other: str) -> None:
    assert canonical(of(one)) != canonical(of(other))


def test_a_canonical_workload_is_its_own() -> None:
    once = canonical(of("bias, >> 5, min 90, max -128"))
    assert canonical(once) == once
