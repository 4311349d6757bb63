"""Decides which operators of a network run together on the accelerator.

A labelling says of each thing that may be fused whether it is. `problem` lists what may be fused
and applies labels, `evaluator` times labelled networks exactly, `learned` searches labellings, and
`decision` decides for a tuned network.
"""

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
    from tilewright.fusion.decision import decide  # loads TVM, which most runs do without

    return decide(asked, heard)
