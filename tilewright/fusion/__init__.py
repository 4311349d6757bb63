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
    """Decide which operators of a network run together.

    Args:
        asked: the network, the target, the options and the tuned workloads of a run.
        heard: called with each labelling that is simulated, and with how many there were.

    Returns:
        The summary of the decision, and the content of `fusion.json`.

    Raises:
        FusionError: the target runs no programs of ours.
        TilewrightError: the network cannot be quantised, or tuning fails.
    """
    from tilewright.fusion.decision import decide  # loads TVM, which most runs do without

    return decide(asked, heard)
