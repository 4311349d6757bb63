"""Prefect tasks of a run, and stages: tasks whose results Prefect keeps and finds again.

A stage computes its key from all that its result depends on. Prefect looks for the key in the
result storage. If a record is there, the run of the task ends as `Cached`, otherwise it calls the
function and stores what it returns. A record is one file:

    cache/<stage>/<key>    facts as JSON, and the result as JSON, NPZ or a ZIP of native model files

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
from functools import cached_property
from http import HTTPStatus
from typing import Any, Generic, Literal, ParamSpec, TypeVar

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
from tilewright.search.runner import Result
from tilewright.tasks.codecs import CODECS, Codec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

REUSED = "Cached"


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


class Record(Result[T]):
    """The result of a stage, as stages pass it to each other. `key` identifies it, `facts` are
    small values that a log may show without decoding the result. The value of a record that was
    read is decoded when it is first asked for."""

    def __init__(self, key: str, codec: Codec[T], value: T, facts: Mapping[str, Json]) -> None:
        super().__init__(value)
        self.key = key
        self.codec = codec
        self.facts = facts

    @classmethod
    def of_content(cls, codec: Codec[T], value: T) -> Record[T]:
        """The record of a value that no stage made; the key is the digest of its content."""
        return cls(f"{codec.name}/{digest(codec.encode(value))[:32]}", codec, value, {})

    def to_bytes(self) -> bytes:
        """The digest of the rest, then the record as JSON with the encoded value in Base64."""
        whole = {
            STAGE.key: STAGE.written,
            "key": self.key,
            "codec": self.codec.name,
            "facts": self.facts,
            "value": base64.b64encode(self.codec.encode(self.value)).decode(),
        }
        # Keys stay in order: results are written in it, whether computed or found here.
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
        return digest(text).encode() + text

    @staticmethod
    def from_bytes(data: bytes) -> Record[Any]:
        """Read what `to_bytes` wrote. Raises `DamagedRecord`."""
        said, text = data[:64], data[64:]
        if digest(text).encode() != said:
            raise DamagedRecord("a stored result is damaged")
        whole = json.loads(text)
        if not STAGE.reads(STAGE.version_in(whole)):
            raise DamagedRecord("a stored result is of another version")
        encoded = base64.b64decode(whole["value"])
        return _StoredRecord(whole["key"], CODECS[whole["codec"]], encoded, whole["facts"])


class _StoredRecord(Record[T]):
    """A record whose value is not decoded yet."""

    def __init__(
        self, key: str, codec: Codec[T], encoded: bytes, facts: Mapping[str, Json]
    ) -> None:
        self.key = key
        self.codec = codec
        self.facts = facts
        self._encoded = encoded

    @cached_property
    def value(self) -> T:  # type: ignore[override]  # a plain attribute of other results
        """The result of the stage."""
        return self.codec.decode(self._encoded)


class RecordSerializer(Serializer):  # type: ignore[type-arg]  # Prefect registers no generic ones
    """Writes and reads records for Prefect, which finds it by its type."""

    type: Literal["tilewright"] = "tilewright"

    def dumps(self, obj: Record[Any]) -> bytes:
        """Return the record as bytes of valid UTF-8, which Prefect puts into JSON."""
        return obj.to_bytes()

    def loads(self, blob: bytes) -> Record[Any]:
        """Read what `dumps` wrote. Raises `DamagedRecord`."""
        return Record.from_bytes(blob)


@dataclass(frozen=True)
class Done(Generic[T]):
    """A stage that is over; `reused` says that its result was there already. `state` is how the run
    of its task ended: what later tasks name as the one they follow."""

    stage: str
    record: Record[T]
    reused: bool
    state: State[Record[T]]


@dataclass(frozen=True)
class Made(Generic[T]):
    """The value that a stage computed, and facts about it."""

    value: T
    facts: Mapping[str, Json]


def unsearched(value: R) -> R:
    """An argument of a task that Prefect does not search for futures: a large object. The task gets
    the value itself."""
    return quote(value)  # type: ignore[return-value]  # the engine takes the annotation off


RETRIES = (2.0, 10.0)
"""Seconds before a task is tried again whose failure may pass (`passes`)."""
RunName = str | Callable[..., str]
"""What names the runs of a task: a template, or a function of `parameters`, the task's by name."""


def step(run_name: RunName, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A Prefect task called `name`, like the function if that is empty; `run_name` names its runs.
    Prefect does not keep what it returns."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return task(
            name=name or function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
            persist_result=False, **_TRIED_AGAIN,
        )(function)  # fmt: skip

    return decorate


class Stage(Generic[P, T]):
    """A task whose result Prefect keeps under a key: `stage(after, …)` runs it behind what is in
    `after`, states and results of other tasks. `function` is the stage without Prefect."""

    def __init__(
        self,
        function: Callable[P, Made[T]],
        key: Callable[P, Key],
        codec: Codec[T],
        run_name: str,
        told: Callable[[Record[T]], str],
    ) -> None:
        self.function = function
        self.key = key
        self.codec = codec
        self.run_name = run_name
        self.told = told
        self._signature = inspect.signature(function)

        def compute(key: Key, title: str, given: inspect.BoundArguments) -> Record[T]:
            made = function(*given.args, **given.kwargs)
            record = Record(key.text, codec, made.value, made.facts)
            say(told(record))
            return record

        self._task: Any = task(
            name=function.__name__, task_run_name="{title}", cache_policy=_BY_KEY,
            persist_result=True, result_serializer="tilewright", cache_result_in_memory=False,
            **_TRIED_AGAIN,
        )(_named_like(function, compute))  # fmt: skip
        self._known: Any = task(
            name=function.__name__, task_run_name="{title}", cache_policy=NO_CACHE,
            persist_result=False,
        )(_named_like(function, lambda told, title: _known(told, title)))  # fmt: skip

    def __call__(self, after: Sequence[object], *args: P.args, **kwargs: P.kwargs) -> Done[T]:
        key, given = self.key(*args, **kwargs), self._signature.bind(*args, **kwargs)
        title = self.run_name.format(**given.arguments)
        # Prefect searches what is not quoted for results of other tasks, and takes a new object at
        # the place in memory of one that is gone for that: edges that nobody meant.
        state = self._task(quote(key), title, quote(given), return_state=True, wait_for=after)
        record, reused = state.result(), state.name == REUSED
        assert isinstance(record, Record)
        if reused and (told := self.told(record)):
            say(f"{title}: {told}")
        return Done(key.stage, record, reused, state)

    def is_stored(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether running the stage with these arguments would find its result. Call it in a
        flow."""
        if get_current_settings().tasks.refresh_cache:
            return False
        store: Any = get_result_store().update_for_task(self._task)
        found: bool = store.exists(self.key(*args, **kwargs).text)
        return found

    def show_known(self, after: Sequence[object], told: str, **names: object) -> State[None]:
        """Show a run of it that has nothing to do, since what it would give is recorded: it ends as
        `Cached`. `names` fill the template of its name, `told` goes to its log."""
        title = self.run_name.format(**names)
        state: State[None] = self._known(told, title, return_state=True, wait_for=after)
        return state


def stage(
    run_name: str,
    key: Callable[P, Key],
    codec: Codec[T],
    told: Callable[[Record[T]], str] = lambda record: "",
) -> Callable[[Callable[P, Made[T]]], Stage[P, T]]:
    """Make a stage of a function that computes its result.

    Args:
        run_name: a template for the names of the task's runs, filled by its arguments.
        key: what the result depends on, from the same arguments.
        codec: how the result is stored.
        told: a line for the log of the run about a result, "" for none.
    """
    return lambda function: Stage(function, key, codec, run_name, told)


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
    function.__name__, function.__qualname__ = step.__name__, step.__qualname__
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
