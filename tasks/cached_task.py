"""Prefect tasks of a run, and stages: tasks whose results Prefect stores and reuses.

A stage computes a key from everything that its result depends on. Prefect looks up the key in the
result storage. If there is a record, the task run ends as `Cached`. Otherwise Prefect calls the
step and stores its result in one file:

    cache/<stage>/<key>    the result as JSON, NPZ or a ZIP of native model files (`tasks.codecs`)

The result storage is the `cache` folder of the workspace, unless
`PREFECT_DEFAULT_RESULT_STORAGE_BLOCK` names another one, which may be remote. An incomplete or
damaged record does not match its digest, and Prefect computes the result again.
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
    """A stored result is damaged. Prefect treats it as missing."""


@dataclass(frozen=True)
class Key:
    """Key of a stage's result: everything that the result depends on.

    Attributes:
        stage: name of the stage.
        version: version of the stage's own schema.
        fingerprint: fingerprint of hardware, space, compiler and simulator; "" if the target does
            not matter.
        inputs: digests of the input data, and the options.
        reusable: whether the result may be stored and reused. It is False if computing it again
            gives a different result.
    """

    stage: str
    version: int
    fingerprint: str
    inputs: Mapping[str, Json]
    reusable: bool = True

    @cached_property
    def text(self) -> str:
        """Key of the record in the result storage: the stage, and a digest of all other fields."""
        whole: dict[str, Json] = {
            "stage": self.stage,
            "version": self.version,
            "target": self.fingerprint,
            "inputs": dict(self.inputs),
        }
        return f"{self.stage}/{digest(canonical(whole))[:32]}"


class Record(Generic[T]):
    """Wrapper that hides a stage's result from Prefect's inspection.

    Prefect inspects plain values and would draw an edge from each task that returned a value equal
    to a part of the arguments.
    """

    def __init__(self, value: T) -> None:
        self.value = value


class RecordSerializer(Serializer):  # Prefect registers no generic ones
    """Prefect serializer of stage results.

    The format is a digest of the rest, followed by JSON with the encoded result in Base64. Prefect
    finds the serializer by its `type`.
    """

    type: Literal["tilewright"] = "tilewright"

    def dumps(self, obj: Record[Any]) -> bytes:
        """Serialise a result as valid UTF-8, which Prefect embeds into JSON."""
        codec, encoded = codecs.encode(obj.value)
        value = base64.b64encode(encoded).decode()
        whole = {STAGE.key: STAGE.written, "codec": codec.name, "value": value}
        text = json.dumps(whole, separators=(",", ":")).encode()
        return digest(text).encode() + text

    def loads(self, blob: bytes) -> Record[Any]:
        """Read what `dumps` wrote.

        Raises:
            DamagedRecord: the data is damaged or of an unsupported version.
        """
        said, text = blob[:_DIGEST_LENGTH], blob[_DIGEST_LENGTH:]
        if digest(text).encode() != said:
            raise DamagedRecord("a stored result is damaged")
        whole = json.loads(text)
        if not STAGE.can_read(STAGE.version_in(whole)):
            raise DamagedRecord("a stored result has another format version")
        return Record(codecs.decode(whole["codec"], base64.b64decode(whole["value"])))


@dataclass(frozen=True)
class Done(Generic[T]):
    """A finished stage: its result, and how it was obtained.

    Attributes:
        key: key under which the result is stored.
        value: the result.
        reused: whether the result was already stored, so that the step was not executed.
        state: final state of the task run. Later tasks name it as their predecessor.
    """

    key: Key
    value: T
    reused: bool
    state: State[Record[T]]


def wrap_unsearched(value: R) -> R:
    """Wrap a large argument of a task, so that Prefect does not search it for futures.

    The task receives the argument itself, without the wrapper.
    """
    return quote(value)  # type: ignore[return-value]  # the engine takes the annotation off


RETRIES = (2.0, 10.0)
"""Waiting times in seconds before a task is retried after a temporary failure (`passes`)."""
RunName = str | Callable[..., str]
"""Name of a task's runs: a template, or a function of the task's arguments by name."""


def step(run_name: RunName, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a Prefect task of a function, with arguments that Prefect does not inspect.

    Prefect would search the arguments for results of other tasks and flows. Its pages cannot list a
    task that takes the result of a flow, nor other tasks of the same list. The predecessors of a
    task are given by `wait_for` instead. Prefect does not store the task's result.

    Args:
        run_name: name of the task's runs.
        name: name of the task; by default the name of the function.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        shown: Any = task(
            name=name or function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
            persist_result=False, **_TRIED_AGAIN,
        )(function)  # fmt: skip

        @wraps(function)
        def perform(*given: Any, wait_for: Sequence[object] = ()) -> Any:
            return shown(*map(wrap_unsearched, given), wait_for=wait_for)

        return cast(Callable[P, R], perform)

    return decorate


class Stage(Generic[P, T]):
    """A step as a Prefect task whose result is stored under a key.

    Args:
        step: computes the result.
        run_name: template for the names of the task's runs, filled with the arguments of the step
            and with names that the runner knows.
        key: computes the key from the arguments of the step.
        told: returns a log line about a result, from the result and the arguments of the step.
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
            write_log(told(value, *given))
            return Record(value)

        self._task: Any = task(
            name=step.__name__, task_run_name="{title}", cache_policy=_BY_KEY,
            persist_result=True, result_serializer="tilewright", cache_result_in_memory=False,
            **_TRIED_AGAIN,
        )(_named_like(step, compute))  # fmt: skip
        self._known: Any = task(
            name=step.__name__, task_run_name="{title}", cache_policy=NO_CACHE,
            persist_result=False,
        )(_named_like(step, lambda told, title: _known_state(told, title)))  # fmt: skip

    def run(self, after: Sequence[object], names: Mapping[str, object], *given: Any) -> Done[T]:
        """Run the stage as a Prefect task, or take its result from the storage.

        Args:
            after: states and results of the tasks that this task follows in Prefect's graph.
            names: further values for the template of the task run's name.
            *given: arguments of the step.
        """
        key = self.key(*given)
        title = self.run_name.format(**names, **self._signature.bind(*given).arguments)
        # Prefect searches what is not quoted for results of other tasks, and takes a new object at
        # the place in memory of one that is gone for that: edges that nobody meant.
        state = self._task(quote(key), title, quote(given), return_state=True, wait_for=after)
        value, reused = state.result().value, state.name == REUSED
        if reused and (told := self.told(value, *given)):
            write_log(f"{title}: {told}")
        return Done(key, value, reused, state)

    def is_stored(self, *given: Any) -> bool:
        """Return whether the result for these arguments is stored. Must be called in a flow."""
        if get_current_settings().tasks.refresh_cache:
            return False
        store: Any = get_result_store().update_for_task(self._task)
        result: bool = store.exists(self.key(*given).text)
        return result

    def show_known(self, after: Sequence[object], told: str, title: str) -> State[None]:
        """Create a task run that ends as `Cached` at once, for a step that need not be executed.

        This is for rounds that were read from the trial store, so that Prefect's graph shows them
        too.

        Args:
            after: states and results of the tasks that this task follows in Prefect's graph.
            told: line for the log of the task.
            title: name of the task run.
        """
        state: State[None] = self._known(told, title, return_state=True, wait_for=after)
        return state


def write_log(text: str) -> None:
    """Write a line to the log of the current task or flow, if there is one."""
    if text and (TaskRunContext.get() or FlowRunContext.get()) is not None:
        get_run_logger().info(text)


def passes(_: object, __: object, state: State[Any]) -> bool:
    """Return whether a failure may be temporary, so that Prefect retries the task.

    Temporary failures are a server or worker that did not answer, and a record that another command
    was just writing. Bad input, wrong numbers and a full disk are permanent.
    """
    error = state.data
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, ConnectionError | TimeoutError | RequestException | DamagedRecord)


def _named_like(step: Callable[..., object], function: Callable[P, R]) -> Callable[P, R]:
    """Give a function the name of a step, because Prefect distinguishes tasks by name."""
    for name in ("__name__", "__qualname__"):
        setattr(function, name, getattr(step, name))
    return function


def _known_state(told: str, title: str) -> State[None]:
    write_log(told)
    return Completed(name=REUSED, message="restored from an earlier run")


_TRIED_AGAIN: dict[str, Any] = {
    "retries": len(RETRIES), "retry_delay_seconds": list(RETRIES), "retry_condition_fn": passes,
}  # fmt: skip
_BY_KEY = CacheKeyFnPolicy(
    cache_key_fn=lambda _, given: given["key"].text if given["key"].reusable else None
)
