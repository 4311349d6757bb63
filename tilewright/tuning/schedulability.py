"""Check, before a search, that a target has a schedule for each workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Enumerates, capability
from tilewright.targets.workload import Workload

MOST_TRIED = 1 << 20
"""Maximum number of configs that are tried before a search. If all of them fail and the space is
larger, the space is searched anyway."""
_FIRST, _CHUNK = 64, 1 << 14


class NothingFits(TilewrightError):
    """No config of the schedule space compiles for the target."""


def check_fits(target: Target, workloads: Sequence[Workload]) -> list[str]:
    """Return an error message for each workload for which no config compiles.

    A few configs are tried first. If they all fail, all configs of a small space are tried. Only
    targets that compile quickly (with the capability `Enumerates`) are checked.

    Args:
        target: the target.
        workloads: the workloads to tune.

    Raises:
        NothingFits: no workload has a config that compiles.
    """
    if capability(target, Enumerates) is None:
        return []
    results = [why_nothing_fits(target, workload) for workload in workloads]
    reasons = [reason for reason in results if reason]
    if reasons and len(reasons) == len(results):
        raise NothingFits(f"{reasons[0]}; correct the specification, or choose another --space")
    return reasons


def why_nothing_fits(target: Target, workload: Workload) -> str:
    """Return the most common reason why the configs of a workload fail, if all of them fail.

    Args:
        target: the target.
        workload: the workload.

    Returns:
        A message with the reason, or "" if a config compiles or the space is too large to try all
        configs.

    Raises:
        WorkloadError: the target has no schedule space for the workload.
    """
    space, reasons = target.space(workload), Counter[str]()
    for flat in _places(space.size):
        lowered = target.lower(workload, space.unravel(flat))
        if lowered.ok.any():
            return ""
        reasons.update(lowered.reasons.tolist())
    if space.size > MOST_TRIED:
        return ""
    ((reason, _),) = reasons.most_common(1)
    return (
        f"no schedule of {workload} in the space {space.name} fits {target.name}: all "
        f"{space.size:,} schedules fail, most of them because '{reason}'"
    )


def _places(size: int) -> Iterator[NDArray[np.int64]]:
    """Yield arrays of flat indices to try: a few from the whole space, then all in order.

    At most `MOST_TRIED` indices are yielded in order.

    Args:
        size: number of configs of the space.
    """
    yield np.unique(np.linspace(0, size - 1, _FIRST).astype(np.int64))
    for begin in range(0, min(size, MOST_TRIED), _CHUNK):
        yield np.arange(begin, min(begin + _CHUNK, size))
