"""Which workloads share their schedules."""

from __future__ import annotations

import pytest

from tilewright.core.errors import WorkloadError
from tilewright.targets.workload import Workload, canonical, parse_workload

SHAPE = "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1"


def of(epilogue: str) -> Workload:
    """The shape above with an epilogue."""
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
    assert step.amounts == amounts
    assert str(step) == text


@pytest.mark.parametrize("text", [">> channel 4", ">> channel 21", ">> channels", "channel"])
def test_other_shifts_a_channel_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=">> channel"):
        of(text)


def test_a_canonical_workload_is_its_own() -> None:
    once = canonical(of("bias, >> 5, min 90, max -128"))
    assert canonical(once) == once
