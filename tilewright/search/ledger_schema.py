"""Encodes one entry of a ledger as one line: `{"check":"<16 hex>","record":{…}}`.

A ledger of another version than 1 begins with `{"kind":"ledger","version":N}` as such an entry. The
check is BLAKE2b-64 of the entry's bytes. Anyone can compute a check, so every field has bounds,
too: a value outside of them is set aside like damage. `search.run_ledger` checks what depends on
the space of a workload.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal, NotRequired, TypeAlias, cast

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from tilewright.core.files import Json
from tilewright.core.formats import LEDGER

MAX_LINE_BYTES = 16 << 20
MAX_TRIALS = 1_000_000
"""In a round; a hundred times what a command may ask for."""
MAX_ROUNDS = 10_000_000
MAX_SECONDS = 1e9
MAX_REASON = 20_000
MAX_FIELDS = 100
MAX_ERRORS = 10

HEADING = "ledger"
"""The kind of the record that says the version."""
Name = Annotated[str, Field(max_length=500)]
Index = Annotated[int, Field(ge=0, lt=1 << 31)]
Row = Annotated[list[Index], Field(min_length=1, max_length=1000), FailFast()]
Rows = Annotated[list[Row], Field(max_length=MAX_TRIALS), FailFast()]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
ModelError = Annotated[float, Field(ge=0, le=1e9)]
Moment = Annotated[float, Field(ge=-1e12, le=1e12)]
_Round = Annotated[int, Field(ge=0, le=MAX_ROUNDS)]
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@with_config(_STRICT)
class Filed(TypedDict):
    """What every entry is filed under."""

    run: Name
    workload: Name
    target: Name


@with_config(_STRICT)
class MeasuredEntry(Filed):
    """What measuring gave: `cycles` is -1 where none were counted, `seconds` null where the status
    is not `valid`; `repeats` are those of every repetition."""

    slot: Annotated[int, Field(ge=0, lt=MAX_TRIALS)]
    config: Row
    status: Literal["valid", "compile_error", "run_error", "wrong_result", "timeout"]
    reason: Annotated[str, Field(max_length=MAX_REASON)]
    cycles: Annotated[int, Field(ge=-1, le=1 << 53)]
    seconds: Seconds | None
    repeats: NotRequired[Annotated[list[Seconds | None], Field(max_length=MAX_TRIALS), FailFast()]]


@with_config(_STRICT)
class TrialEntry(MeasuredEntry):
    """A measured config: its knob indices, and its knobs by name."""

    kind: Literal["trial"]
    round: _Round
    knobs: dict[Name, Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]]


@with_config(_STRICT)
class ValidationEntry(MeasuredEntry):
    """A measurement beside the trials, made to choose among them or to say what the chosen one
    takes (`search.validation_records`). `choice` says among what; a config whose `source` is no
    trial may be of another space. `took` are seconds."""

    kind: Literal["fresh"]
    choice: Name
    block: _Round
    turn: _Round
    source: Name
    took: Annotated[float, Field(ge=0, le=MAX_SECONDS)]


@with_config(_STRICT)
class RoundEntry(Filed):
    """Closes a round of so many trials; `failed` are configs lowered beyond them that did not
    compile, `lowered` counts all lowered beyond them. `errors` say how wrong the models were that
    chose it (`search.round_steps.model_errors`), where there were any."""

    kind: Literal["round"]
    round: _Round
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)]
    lowered: Annotated[int, Field(ge=0, lt=1 << 31)]
    failed: Rows
    errors: NotRequired[Annotated[dict[Name, ModelError], Field(max_length=MAX_ERRORS)]]


@with_config(ConfigDict(strict=True, extra="allow", allow_inf_nan=False))
class ClaimEntry(Filed):
    """Configs that a process is measuring; the rest is its stamp (`search.file_lock`)."""

    kind: Literal["claim"]
    claim: Name
    configs: Rows
    pid: NotRequired[Annotated[int, Field(ge=1, lt=1 << 31)]]
    host: NotRequired[Name]
    seconds: NotRequired[Annotated[float, Field(ge=0, le=MAX_SECONDS)]]
    ends: NotRequired[Moment]
    boot: NotRequired[Name]
    boot_ends: NotRequired[Moment]


@with_config(_STRICT)
class SettledEntry(Filed):
    """Ends a claim, of which so many trials were kept."""

    kind: Literal["settled"]
    claim: Name
    kept: Annotated[int, Field(ge=0, le=MAX_TRIALS)]


Entry: TypeAlias = TrialEntry | ValidationEntry | RoundEntry | ClaimEntry | SettledEntry

_HEAD, _MIDDLE, _TAIL = b'{"check":"', b'","record":', b"}"
_START = len(_HEAD) + 16 + len(_MIDDLE)


class Unusable(ValueError):
    """A line, or a part of one, that holds no entry; the text says why."""


class _Heading(Unusable):
    """A line that says which version the ledger is of."""

    def __init__(self, version: Json) -> None:
        super().__init__("not the first line")
        self.version = version


@dataclass(frozen=True)
class Decoded:
    """What a line holds; `problem` says why not all of it could be used. `version` is that of the
    ledger, if the line says it."""

    entries: list[Entry] = field(default_factory=list)
    problem: str = ""
    version: Json = LEDGER.unmarked


def encode(entry: Entry) -> bytes:
    """One line, with its newline."""
    body = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD + _check(body) + _MIDDLE + body + _TAIL + b"\n"


def decode(line: bytes) -> Decoded:
    """The usable entries in a line. A damaged newline leaves two entries in a line; both are
    found."""
    try:
        return Decoded([_entry(line)])
    except _Heading as heading:
        return Decoded(version=heading.version)
    except Unusable as error:
        problem = str(error)
    pieces = line.split(_HEAD)[1:]
    if len(pieces) < 2 and line.startswith(_HEAD) and line.endswith(_TAIL):
        return Decoded(problem=problem)
    found = []
    for piece in pieces:
        whole = _HEAD + piece
        try:
            found.append(_entry(whole[: whole.rfind(_TAIL) + 1]))
        except Unusable:
            continue
    return Decoded(found, problem)


def _entry(line: bytes) -> Entry:
    if len(line) > MAX_LINE_BYTES:
        raise Unusable(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    body = line[_START : -len(_TAIL)]
    if line != _HEAD + _check(body) + _MIDDLE + body + _TAIL:
        raise Unusable("damaged")
    try:
        found = json.loads(body)
        if isinstance(found, dict) and found.get("kind") == HEADING:
            raise _Heading(found.get(LEDGER.key))
        if any(isinstance(part, dict) and len(part) > MAX_FIELDS for part in _parts(found)):
            raise Unusable(f"more than {MAX_FIELDS} fields")  # each would be an error of its own
        _adapter().validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Unusable(_printable(f"{where}: {first['msg']}".removeprefix(": "))) from None
    except Unusable:
        raise
    except (ValueError, RecursionError):
        raise Unusable("damaged") from None
    entry = cast(Entry, found)
    if why := _contradiction(entry):
        raise Unusable(why)
    return entry


def _parts(found: object) -> tuple[object, ...]:
    return (found, found.get("knobs"), found.get("errors")) if isinstance(found, dict) else ()


def _contradiction(entry: Entry) -> str:
    """What of an entry cannot be true beside the rest of it; empty if all can."""
    if entry["kind"] == "trial" or entry["kind"] == "fresh":
        if entry["status"] == "valid":
            if entry["seconds"] is None or entry["cycles"] == 0:
                return f"{entry['kind']}: valid, and took no time"
        elif entry["seconds"] is not None or entry["cycles"] != -1:
            return f"{entry['kind']}: {entry['status']}, and has a latency"
    elif entry["kind"] == "claim":
        if not all(_plain(value) for name, value in entry.items() if name != "configs"):
            return "claim: expected a stamp"
    elif entry["kind"] == "round" and len(entry["failed"]) > entry["lowered"]:
        return "round: more failed than were lowered"
    return ""


def _plain(value: object) -> bool:
    """Whether a value of a stamp, also one of a later version, can be written down again."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int | str) and len(str(value)) <= 500)


def _printable(text: str) -> str:
    """A message that may quote what a stranger wrote."""
    return text.encode("unicode_escape").decode("ascii")[:200]


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Entry]:
    return TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()
