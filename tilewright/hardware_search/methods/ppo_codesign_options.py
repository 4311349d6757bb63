"""PPO options of the co-design methods CHAMELEON and DCOC.

The options of the tuner CHAMELEON are in `search.tuners.chameleon`, and the algorithm is in
`search.ppo`.
"""

from __future__ import annotations

from pydantic import Field

from tilewright.hardware_search.methods.published_method import PublishedOptions
from tilewright.search.ppo import PPOOptions


class CodesignPpoOptions(PublishedOptions, PPOOptions):
    """Options of a PPO agent that moves through the points of a co-design search space.

    A point is a machine with a schedule for every layer. The defaults are those of CHAMELEON's code
    or paper, except where the description of an option says otherwise.
    """

    starts: int = Field(128, ge=1, description="number of points from which walks start")
    steps: int = Field(
        100, ge=1, description="largest number of steps of an episode (paper: 500; here each step "
            "needs predictions for every layer of the networks)",
    )  # fmt: skip
    episodes: int = Field(
        1, ge=1, description="episodes between two fits (not given in the papers)"
    )
