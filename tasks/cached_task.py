"""Prefect tasks of a run, and stages: tasks whose results Prefect keeps and finds again.

A stage computes its key from all that its result depends on. Prefect looks for the key in the
result storage. If a record is there, the run of the task ends as `Cached`, otherwise Prefect calls
the step and stores what it returns, in one file:

    cache/<stage>/<key>    the result as JSON, NPZ or a ZIP of native model files (`tasks.codecs`)

The result storage is the `cache` folder of the workspace, unless
`PREFECT_DEFAULT_RESULT_STORAGE_BLOCK` names another one, which may be remote. A record that is torn
or damaged does not match its digest, and Prefect computes the result again.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from http import HTTPStatus
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from mlflow.exceptions import MlflowException
from prefect import task
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_run_logger
from prefect.results import get_result_store
from prefect.serializers import Serializer
from prefect.settings import get_current_settings
from prefect.states import Completed
from prefect.utilities.annotations import quote
from requests.exceptions import RequestException

from tilewright.core.files import Json, canonical, digest
from tilewright.core.formats import STAGE
from tilewright.tasks import codecs

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

REUSED = "Cached"
_DIGEST_LENGTH = 64


class DamagedRecord(Exception):
    """A stored result that is not what was written. Prefect takes it for a missing one."""


@dataclass(frozen=True)
class Key:
    """What the result of a stage depends on.

    `version` counts the stage's own schema. `fingerprint` covers hardware, space, compiler and
    simulator; it is "" where the target does not matter. `inputs` are digests of data and the
    options in force. A result that is not `reusable` is neither stored nor looked for, because
    computing it again gives another one.
    """

    stage: str
    version: int
    fingerprint: str
    inputs: Mapping[str, Json]
    reusable: bool = True

    @cached_property
    def text(self) -> str:
        """The key of the record in the result storage: the stage, and a digest of all the rest."""
        whole: dict[str, Json] = {
            "stage": self.stage,
            "version": self.version,
            "target": self.fingerprint,
            "inputs": dict(self.inputs),
        }
        return f"{self.stage}/{digest(canonical(whole))[:32]}"


class Record(Generic[T]):
    """Holds the result of a stage as it is returned to Prefect, which looks into plain values and
    would take a task for following each one that has returned an equal part of its arguments."""

    def __init__(self, value: T) -> None:
        self.value = value


class RecordSerializer(Serializer):  # Prefect registers no generic ones
    """Writes and reads the results of stages for Prefect, which finds it by its type: the digest of
    the rest, then JSON with the encoded result in Base64."""

    type: Literal["tilewright"] = "tilewright"

    def dumps(self, obj: Record[Any]) -> bytes:
        """Return a result as bytes of valid UTF-8, which Prefect puts into JSON."""
        codec, encoded = codecs.encode(obj.value)
        value = base64.b64encode(encoded).decode()
        whole = {STAGE.key: STAGE.written, "codec": codec.name, "value": value}
        text = json.dumps(whole, separators=(",", ":")).encode()
        return digest(text).encode() + text

    def loads(self, blob: bytes) -> Record[Any]:
        """Read what `dumps` wrote. Raises `DamagedRecord`."""
        said, text = blob[:_DIGEST_LENGTH], blob[_DIGEST_LENGTH:]
        if digest(text).encode() != said:
            raise DamagedRecord("a stored result is damaged")
        whole = json.loads(text)
        if not STAGE.reads(STAGE.version_in(whole)):
            raise DamagedRecord("a stored result is of another version")
        return Record(codecs.decode(whole["codec"], base64.b64decode(whole["value"])))


@dataclass(frozen=True)
class Done(Generic[T]):
    """A stage that is over; `reused` says that its result was there already. `state` is how the run
    of its task ended: what later tasks name as the one they follow."""

    key: Key
    value: T
    reused: bool
    state: State[Record[T]]


def unsearched(value: R) -> R:
    """An argument of a task that Prefect does not search for futures: a large object. The task gets
    the value itself."""
    return quote(value)  # type: ignore[return-value]  # the engine takes the annotation off


RETRIES = (2.0, 10.0)
"""Seconds before a task is tried again whose failure may pass (`passes`)."""
RunName = str | Callable[..., str]
"""What names the runs of a task: a template, or a function of `parameters`, the task's by name."""


def step(run_name: RunName, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a Prefect task of a function, whose arguments are plain values to Prefect.

    Prefect would search them for results of other tasks and flows. Its pages cannot list a task
    that takes the result of a flow, nor any other task of the same list. What a task follows is
    named by `wait_for`.

    Args:
        run_name: names the runs of the task.
        name: the name of the task; that of the function if it is empty.

    Returns:
        A decorator. Prefect does not keep what the task returns.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        shown: Any = task(
            name=name or function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
            persist_result=False, **_TRIED_AGAIN,
        )(function)  # fmt: skip

        @wraps(function)
        def perform(*given: Any, wait_for: Sequence[object] = ()) -> Any:
            return shown(*map(unsearched, given), wait_for=wait_for)

        return cast(Callable[P, R], perform)

    return decorate


class Stage(Generic[P, T]):
    """A step as a task whose result Prefect keeps under a key.

    Args:
        step: computes the result.
        run_name: a template for the names of the task's runs, filled by the arguments of the step
            and by names that the runner knows.
        key: what the result depends on, from the arguments of the step.
        told: a line for the log about a result, from it and the arguments of the step.
    """

    def __init__(
        self,
        step: Callable[P, T],
        run_name: str,
        key: Callable[P, Key],
        told: Callable[..., str] = lambda value, *given: "",
    ) -> None:
        self.step: Callable[..., T] = step
        self.run_name = run_name
        self.key: Callable[..., Key] = key
        self.told = told
        self._signature = inspect.signature(step)

        def compute(key: Key, title: str, given: Sequence[Any]) -> Record[T]:
            value = self.step(*given)
            say(told(value, *given))
            return Record(value)

        self._task: Any = task(
            name=step.__name__, task_run_name="{title}", cache_policy=_BY_KEY,
            persist_result=True, result_serializer="tilewright", cache_result_in_memory=False,
            **_TRIED_AGAIN,
        )(_named_like(step, compute))  # fmt: skip
        self._known: Any = task(
            name=step.__name__, task_run_name="{title}", cache_policy=NO_CACHE,
            persist_result=False,
        )(_named_like(step, lambda told, title: _known(told, title)))  # fmt: skip

    def run(self, after: Sequence[object], names: Mapping[str, object], *given: Any) -> Done[T]:
        """Run the stage behind what is in `after`, states and results of other tasks; `names` fill
        the template of its name, too."""
        key = self.key(*given)
        title = self.run_name.format(**names, **self._signature.bind(*given).arguments)
        # Prefect searches what is not quoted for results of other tasks, and takes a new object at
        # the place in memory of one that is gone for that: edges that nobody meant.
        state = self._task(quote(key), title, quote(given), return_state=True, wait_for=after)
        value, reused = state.result().value, state.name == REUSED
        if reused and (told := self.told(value, *given)):
            say(f"{title}: {told}")
        return Done(key, value, reused, state)

    def is_stored(self, *given: Any) -> bool:
        """Whether running the stage with these arguments would find its result. Call it in a
        flow."""
        if get_current_settings().tasks.refresh_cache:
            return False
        store: Any = get_result_store().update_for_task(self._task)
        found: bool = store.exists(self.key(*given).text)
        return found

    def show_known(self, after: Sequence[object], told: str, title: str) -> State[None]:
        """Show a run of it that has nothing to do, since what it would give is recorded: it ends as
        `Cached`. `told` goes to its log."""
        state: State[None] = self._known(told, title, return_state=True, wait_for=after)
        return state


def say(text: str) -> None:
    """Write a line to the log of the task or flow that this is part of, if it is part of any."""
    if text and (TaskRunContext.get() or FlowRunContext.get()) is not None:
        get_run_logger().info(text)


def passes(_: object, __: object, state: State[Any]) -> bool:
    """Whether what failed may succeed a little later: a server or a worker that did not answer, a
    record that another command was just writing. Bad input, wrong numbers and a full disk stay what
    they are."""
    error = state.data
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, ConnectionError | TimeoutError | RequestException | DamagedRecord)


def _named_like(step: Callable[..., object], function: Callable[P, R]) -> Callable[P, R]:
    """Give a function the name of a step, by which Prefect tells tasks from each other."""
    for name in ("__name__", "__qualname__"):
        setattr(function, name, getattr(step, name))
    return function


def _known(told: str, title: str) -> State[None]:
    say(told)
    return Completed(name=REUSED, message="recorded by an earlier run")


_TRIED_AGAIN: dict[str, Any] = {
    "retries": len(RETRIES), "retry_delay_seconds": list(RETRIES), "retry_condition_fn": passes,
}  # fmt: skip
_BY_KEY = CacheKeyFnPolicy(
    cache_key_fn=lambda _, given: given["key"].text if given["key"].reusable else None
)
