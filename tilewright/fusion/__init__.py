"""Fusion: decides which operators of a network run together on the accelerator.

A labelling states for each possible fusion whether it is applied. `problem` lists the possible
fusions and applies labellings, `evaluator` determines the exact latency of labelled networks,
`learned` searches for good labellings, and `decision` decides for a tuned network.
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
    """Decide which operators of a network run together on the accelerator.

    Args:
        asked: the network, the target, the options and the tuned workloads of a run.
        heard: called with each labelling (one decision per possible fusion) that is simulated, and
            the number of simulations so far.

    Returns:
        The summary of the decision, and the content of `fusion.json`.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
        TilewrightError: the network cannot be quantised, or tuning fails.
    """
    from tilewright.fusion.decision import decide  # loads TVM, which most runs do without

    return decide(asked, heard)
