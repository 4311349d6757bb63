"""Answers calls on a worker of `targets.cluster`, with a target that it makes once.

A call is a function of its arguments alone. A worker keeps no files, and a call that was lost with
its worker is made again on another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, Limits, plain
from tilewright.core.files import Json, as_number, as_object, as_text, read_json
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Watched, capability
from tilewright.targets.registry import rebuild
from tilewright.targets.subprocess_target import IsolatedTarget
from tilewright.targets.worker import Worker, made

UNUSABLE = "unusable"
"""Of an answer's header: why this worker cannot answer at all."""
SECONDS = "seconds"
"""Of an answer's header: how long the worker took."""
_making = threading.Lock()


def answer(
    recipe: str, fingerprint: str, header: Header, arrays: Arrays
) -> tuple[Header, dict[str, NDArray[Any]]]:
    """What a call comes to on the target of a recipe (JSON: `factory`, its `arguments`, and the
    seconds that a batch may take in a process of its own, `isolate`, 0 for none): a header and
    arrays in any shape, text in place of objects. Raises nothing: what a target raises is told in
    the header, as is that it is not the one of this `fingerprint`."""
    thread = threading.get_ident() if as_number(as_object(read_json(recipe))["isolate"]) else 0
    try:
        with _making:
            worker = _worker(recipe, thread)
            found = worker.target.fingerprint
    except Exception as error:
        return {UNUSABLE: f"{type(error).__name__}: {error}"}, {}
    if found != fingerprint:
        return {
            UNUSABLE: f"its target has the fingerprint {found}, the command's {fingerprint}: "
            "another version of tilewright, or other hardware"
        }, {}
    begin = time.perf_counter()
    try:
        reply, results = worker.answer(
            header, {k: np.require(v, None, "W") for k, v in arrays.items()}
        )
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}, {}
    seconds = time.perf_counter() - begin
    return reply | {SECONDS: seconds}, {name: plain(array) for name, array in results.items()}


def rebuilt(kind: str, specification: Mapping[str, Json], space: str) -> Target:
    """A target whose file only the command has. Raises as `targets.registry.rebuild`."""
    return rebuild(kind, specification, space)


@lru_cache(maxsize=8)
def _worker(recipe: str, thread: int) -> Worker:
    """Kept, of a thread where a process goes with it."""
    about = as_object(read_json(recipe))
    factory, keywords = as_text(about["factory"]), as_object(about["arguments"])
    seconds = as_number(about["isolate"])
    if not seconds:
        return Worker(made(factory, keywords))
    here = made(factory, keywords)
    if (watched := capability(here, Watched)) is not None:
        return Worker(watched.within(seconds))
    return Worker(IsolatedTarget(factory, keywords, Limits(seconds), beside=here))
