"""Options for comparing a run with the previous run, such as the tolerated slowdown.

The comparison itself is in `tasks.regression_check`. The options are defined in this package, so
that they are checked before a run starts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tilewright.core.options import CliOption, CommandOptions

OFF, FLAG, FAIL = "off", "flag", "fail"


class WatchOptions(CommandOptions):
    """Options for comparing a run with the last comparable run."""

    when_worse: Annotated[Literal["off", "flag", "fail"], CliOption(metavar="flag|fail|off")] = (
        Field(
            default="flag",
            description="What to do if this run is worse than the previous run of the same "
            "kind: 'flag' it, 'fail', or 'off' to compare nothing.",
        )
    )
    tolerance_percent: Annotated[float, CliOption(flag="--tolerance", metavar="PERCENT")] = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="Tolerated increase of the latency in percent (see 'tilewright diff').",
    )
