"""Closed-form estimates of a schedule: cycles, traffic and scratchpad use without compiling it.

Nothing here knows whether a schedule can be compiled: a share above 1 only says that it is
unlikely.
"""

from targets.vta.estimates.columns import CYCLES, ESTIMATES
from targets.vta.estimates.extended import estimate_extended
from targets.vta.estimates.pool import estimate_pool
from targets.vta.estimates.template import estimate_template
from targets.vta.estimates.unchecked import estimate_unchecked

OF_SPACE = {
    "template": estimate_template,
    "extended": estimate_extended,
    "unchecked": estimate_unchecked,
}

__all__ = [
    "CYCLES",
    "ESTIMATES",
    "OF_SPACE",
    "estimate_extended",
    "estimate_pool",
    "estimate_template",
    "estimate_unchecked",
]
