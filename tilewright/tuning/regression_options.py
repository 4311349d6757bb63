"""Defines what a run that is watched is asked: how much worse than the last one it may be, and what
then.

Who watches is above this room (`tasks.regression_check`); what is asked for is asked before
anything starts.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.user_text import printable
from tilewright.tuning.options import OptionsError

OFF, FLAG, FAIL = "off", "flag", "fail"


class WatchOptions(BaseModel):
    """Whether a run is compared with the last one like it, and what counts as worse."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    when_worse: Literal["off", "flag", "fail"] = Field(
        default="flag",
        description="'flag': say so by an artifact, a tag and the event tilewright.regression; "
        "'fail': also end the run as failed; 'off': do not compare",
    )
    tolerance_percent: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="by how much latency may grow, and by how many points valid trials may fall",
    )


def parse_watch(when_worse: str, tolerance_percent: float) -> WatchOptions:
    """Raises `OptionsError`."""
    try:
        return WatchOptions.model_validate(
            {"when_worse": when_worse, "tolerance_percent": tolerance_percent}
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = {"when_worse": "--when-worse", "tolerance_percent": "--tolerance"}[
            str(first["loc"][0])
        ]
        given = printable(str(first["input"]))
        raise OptionsError(f"{flag} {given}: {first['msg'].lower()}") from None
