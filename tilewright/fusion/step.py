"""Decides what runs together, as a step of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.tuning.fusion_interface import Decided, ToDecide

if TYPE_CHECKING:
    from tilewright.fusion.evaluator import Evaluation


def decide_fusion(
    asked: ToDecide, heard: Callable[[Evaluation, int], None] | None = None
) -> Decided:
    """What is fused, by the mode that was asked for; `heard` is told of each labelling that is
    simulated. Raises `FusionError` for a target that runs no programs of ours, and what quantising
    and tuning raise."""
    from tilewright.fusion.run import decide  # loads TVM, which most runs do without

    return decide(asked, heard)
