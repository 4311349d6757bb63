"""Wrappers that run the steps of a flow as Prefect tasks, with or without a cache of their results.

A `Stage` is a task whose result Prefect stores. Before a stage is executed, it computes a key from
everything that its result depends on, and Prefect looks up this key in the result storage. If a
result is stored under the key, the task run ends as `Cached`. Otherwise Prefect executes the step
and stores its result in one file:

    cache/<stage>/<key>    the result as JSON, NPZ or a ZIP of native model files (`tasks.codecs`)

The result storage is the folder `cache` of the workspace, unless
`PREFECT_DEFAULT_RESULT_STORAGE_BLOCK` names another storage, which may be remote. A stored result
that is incomplete or damaged does not match its digest. Prefect then computes the result again.
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
        version: version of the stage. It is increased when a change of the code makes stored
            results invalid.
        fingerprint: fingerprint of the target, which covers hardware, space, compiler and
            simulator; "" if the result does not depend on a target.
        inputs: digests of the input data, and the options.
        reusable: whether the result may be stored and reused. It is False if computing the result
            again gives different numbers.
    """

    stage: str
    version: int
    fingerprint: str
    inputs: Mapping[str, Json]
    reusable: bool = True

    @cached_property
    def text(self) -> str:
        """Key under which Prefect stores the result: `<stage>/<digest>`.

        The digest covers the stage's name and version, the fingerprint and the inputs.
        """
        whole: dict[str, Json] = {
            "stage": self.stage,
            "version": self.version,
            "target": self.fingerprint,
            "inputs": dict(self.inputs),
        }
        return f"{self.stage}/{digest(canonical(whole))[:32]}"


class Record(Generic[T]):
    """Wrapper that hides a stage's result from Prefect's search for results of other tasks.

    Prefect compares plain values in the arguments of a task with the results of earlier tasks. If
    two values were equal by coincidence, Prefect would draw an edge between the two tasks.
    """

    def __init__(self, value: T) -> None:
        self.value = value


class RecordSerializer(Serializer):  # not generic, because Prefect could not register it
    """Prefect serializer of stage results.

    A serialised result is JSON that contains the encoded result in Base64, preceded by a digest of
    the JSON. Prefect finds the serializer by its `type`.
    """

    type: Literal["tilewright"] = "tilewright"

    def dumps(self, obj: Record[Any]) -> bytes:
        """Serialise a result as valid UTF-8, because Prefect embeds it into JSON."""
        codec, encoded = codecs.encode(obj.value)
        value = base64.b64encode(encoded).decode()
        whole = {STAGE.key: STAGE.written, "codec": codec.name, "value": value}
        text = json.dumps(whole, separators=(",", ":")).encode()
        return digest(text).encode() + text

    def loads(self, blob: bytes) -> Record[Any]:
        """Deserialise a result that `dumps` serialised.

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
    """A finished stage: its result, and whether the result came from the storage.

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
    """Wrap a large argument of a task, so that Prefect does not search it for other tasks' results.

    The task receives the argument itself, without the wrapper.
    """
    return quote(value)  # type: ignore[return-value]  # Prefect's engine removes the wrapper


RETRIES = (2.0, 10.0)
"""Seconds to wait before the first and the second retry of a task that failed temporarily
(`passes`)."""
RunName = str | Callable[..., str]
"""Name of a task's runs: a template, or a function of the task's arguments by name."""


def step(run_name: RunName, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that turns a function into a Prefect task without a cached result.

    The function is called with a further keyword argument, `wait_for`, which lists the tasks that
    precede it. Prefect does not inspect the other arguments. It would search them for results of
    other tasks and flows; and if it found the result of a flow, its web pages could show neither
    the task nor the other tasks in the same list.

    Args:
        run_name: name of the task's runs: a template, or a function of the arguments by name.
        name: name of the task; by default the name of the function.

    Returns:
        The decorator.
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
        step: function that computes the result.
        run_name: template for the names of the task's runs, filled with the arguments of the step
            and with the names that are passed to `run`.
        key: function that computes the key of the result from the arguments of the step.
        told: function that returns a line for the log from the result and the arguments of the
            step. If it returns "", nothing is logged.
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
            after: states and results of the tasks that precede this task in Prefect's graph.
            names: further values for the template of the task run's name.
            *given: arguments of the step.

        Returns:
            The result, its key, and whether the result was taken from the storage.
        """
        key = self.key(*given)
        title = self.run_name.format(**names, **self._signature.bind(*given).arguments)
        # Prefect searches arguments that are not quoted for results of other tasks. It recognises a
        # result by its address in memory, so a new object at the address of a deleted result would
        # add a wrong edge to the graph.
        state = self._task(quote(key), title, quote(given), return_state=True, wait_for=after)
        value, reused = state.result().value, state.name == REUSED
        if reused and (told := self.told(value, *given)):
            write_log(f"{title}: {told}")
        return Done(key, value, reused, state)

    def is_stored(self, *given: Any) -> bool:
        """Return whether the result for these arguments is stored. Call this method within a flow.

        Args:
            *given: arguments of the step.
        """
        if get_current_settings().tasks.refresh_cache:
            return False
        store: Any = get_result_store().update_for_task(self._task)
        result: bool = store.exists(self.key(*given).text)
        return result

    def show_known(self, after: Sequence[object], told: str, title: str) -> State[None]:
        """Create a task run that ends as `Cached` at once, without executing the step.

        Prefect's graph shows the steps of a round in this form if the trials of the round were read
        from the trial store.

        Args:
            after: states and results of the tasks that precede this task in Prefect's graph.
            told: line for the log of the task; "" for none.
            title: name of the task run.

        Returns:
            The final state of the task run, which later tasks name as their predecessor.
        """
        state: State[None] = self._known(told, title, return_state=True, wait_for=after)
        return state


def write_log(text: str) -> None:
    """Write a line to the log of the current task or flow, if there is one."""
    if text and (TaskRunContext.get() or FlowRunContext.get()) is not None:
        get_run_logger().info(text)


def passes(_: object, __: object, state: State[Any]) -> bool:
    """Return whether Prefect should retry a failed task, because the failure may be temporary.

    Prefect calls this function with the task, the task run and the final state. A failure may be
    temporary if a server or worker did not answer, or if a stored result was damaged, for example
    because another command was just writing it. Bad input, wrong numbers and a full disk are
    permanent.

    Args:
        _: the task; ignored.
        __: the task run; ignored.
        state: final state of the failed task; its data is the exception.
    """
    error = state.data
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, ConnectionError | TimeoutError | RequestException | DamagedRecord)


def _named_like(step: Callable[..., object], function: Callable[P, R]) -> Callable[P, R]:
    """Give `function` the name of `step`, and return it.

    Prefect distinguishes tasks by their names. Without this call, all stages would be the same
    task.
    """
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
