"""Operator fusion: decides which operators of a network run together on the accelerator.

A labelling holds one bool per possible fusion: whether that fusion is applied. The modules are:

- `problem` lists the possible fusions of a network and applies a labelling to it.
- `evaluator` computes the exact latency of the network that a labelling gives.
- `label_search` and `learned` search for labellings with a low latency.
- `decision` decides for a tuned network, and explains the decision.
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
        heard: called with each simulated labelling (one bool per possible fusion) and the number of
            simulations so far.

    Returns:
        The summary of the decision, and the content of `fusion.json`.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
        TilewrightError: the network cannot be quantised, or tuning fails.
    """
    from tilewright.fusion.decision import decide  # loads TVM, which most runs do without

    return decide(asked, heard)
