"""Types of the rows of a trial store, with the values that each column may hold.

A database may come from other people, and SQLite stores any value in any column. Therefore, every
row is checked when it is read. The module `search.run_record` additionally checks whether configs
lie in the schedule space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError, with_config
from pydantic import Json as JsonText
from typing_extensions import TypedDict

from tilewright.search.round_steps import Trial

MAX_ROW_TRIALS = 1_000_000
MAX_REASON = 20_000

Name = Annotated[str, Field(max_length=500)]
Index = Annotated[int, Field(ge=0, lt=1 << 31)]
Config = Annotated[list[Index], Field(min_length=1, max_length=1000), FailFast()]
Configs = Annotated[list[Config], Field(max_length=MAX_ROW_TRIALS), FailFast()]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Repeats = Annotated[list[Seconds | None], Field(max_length=MAX_ROW_TRIALS), FailFast()]
Knobs = dict[Name, Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]]
Errors = dict[Name, Annotated[float, Field(ge=0, le=1e9)]]
_Count = Annotated[int, Field(ge=0, le=10_000_000)]
_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


@final
@with_config(_STRICT)
class TrialRow(TypedDict):
    """Database row of a trial.

    Attributes:
        id: ID of the row.
        round: index of the round.
        slot: position of the trial within the round.
        config: knob indices.
        knobs: knob values by name.
        status: status of the measurement.
        reason: reason for a failure.
        cycles: measured cycles, or -1 if the target does not count cycles.
        seconds: measured seconds; None unless the status is `valid`.
        repeats: seconds of each repetition.
    """

    id: int
    round: _Count
    slot: _Count
    config: JsonText[Config]
    knobs: JsonText[Annotated[Knobs, Field(max_length=1000)]]
    status: Literal["valid", "compile_error", "run_error", "wrong_result", "timeout"]
    reason: Annotated[str, Field(max_length=MAX_REASON)]
    cycles: Annotated[int, Field(ge=-1, le=1 << 53)]
    seconds: Seconds | None
    repeats: JsonText[Repeats]


@final
@with_config(_STRICT)
class RoundRow(TypedDict):
    """Database row of a finished round.

    Attributes:
        round: index of the round.
        trials: number of trials of the round.
        lowered: number of configs that were lowered but not measured.
        failed: configs among `lowered` that did not compile.
        errors: errors of the predictions by the models that chose the round's configs, by name.
        compiled: configs among `lowered` that compiled and may be measured in a later round.
    """

    round: _Count
    trials: Annotated[int, Field(ge=1, le=MAX_ROW_TRIALS)]
    lowered: Index
    failed: JsonText[Configs]
    errors: JsonText[Annotated[Errors, Field(max_length=10)]]
    compiled: JsonText[Configs]


R = TypeVar("R", TrialRow, RoundRow)
Rejected = tuple[Mapping[Any, Any], str]
"""A stored row that cannot be used, and the reason."""


def check_rows(kind: type[R], rows: Sequence[Mapping[Any, Any]]) -> tuple[list[R], list[Rejected]]:
    """Parse database rows and separate valid rows from invalid ones.

    Args:
        kind: type of the rows, `TrialRow` or `RoundRow`, which defines the allowed values.
        rows: rows as they are stored.

    Returns:
        The parsed valid rows, and the rejected rows with reasons.
    """
    good: list[R] = []
    bad: list[Rejected] = []
    for row in rows:
        try:
            parsed: R = _adapter(kind).validate_python(dict(row))  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            bad.append((row, f"{where}: {first['msg']}"[:200].encode("unicode_escape").decode()))
            continue
        if reason := _contradiction(parsed):
            bad.append((row, reason))
        else:
            good.append(parsed)
    return good, bad


def trial_of(row: TrialRow) -> Trial:
    """Convert a database row to a trial.

    Args:
        row: the parsed row.
    """
    seconds, *repeats = (
        float("nan") if value is None else value for value in (row["seconds"], *row["repeats"])
    )
    return Trial(row["status"], row["reason"], row["cycles"], seconds, tuple(repeats))


def measured_columns(trial: Trial) -> dict[str, Any]:
    """Convert a trial to the columns of a database row. `trial_of` is the inverse.

    Args:
        trial: the trial.

    Returns:
        Values by column name.
    """
    # PostgreSQL rejects lone surrogates and zero bytes in text.
    reason = trial.reason[:MAX_REASON].encode("utf-8", "replace").decode().replace("\0", "?")
    seconds, *repeats = (
        value if abs(value) < float("inf") else None for value in (trial.seconds, *trial.repeats)
    )
    return {
        "status": trial.status, "reason": reason, "cycles": trial.cycles, "seconds": seconds,
        "repeats": to_json_text(repeats),
    }  # fmt: skip


def to_json_text(value: object) -> str:
    """Serialise a value as compact JSON. Equal values give equal texts."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=2)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _contradiction(row: TrialRow | RoundRow) -> str:
    """Check whether the columns of a row contradict each other.

    Returns:
        The reason, or "" if they do not contradict each other.
    """
    if "failed" in row:
        known = len(row["failed"]) + len(row["compiled"])
        return "more configs failed or compiled than were lowered" if known > row["lowered"] else ""
    if row["status"] == "valid":
        return "" if row["seconds"] and row["cycles"] else "it is valid but has no latency"
    measured = row["seconds"] is not None or row["cycles"] != -1
    return f"its status is {row['status']}, but it has a latency" if measured else ""
