"""Ends a served flow run that cannot be with the message of its error, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect.logging import get_run_logger
from prefect.states import Failed

from tilewright.core.errors import TilewrightError

P = ParamSpec("P")
R = TypeVar("R")


def refusing(work: Callable[P, R]) -> Callable[P, R]:
    """What a flow does, for a deployment: a `TilewrightError`, which names the cause and the next
    step, is logged and becomes the message of the state `Failed`. Callers that catch such errors
    take the flow itself."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return work(*args, **kwargs)
        except TilewrightError as error:
            get_run_logger().error(str(error))
            return Failed(message=str(error))

    return call
