"""Defines feature matrices whose columns know their names and what they mean.

A target says what a column is about; models go by that and never by a target's own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.core.lazy_module import lazy_module

if TYPE_CHECKING:
    from pydantic import TypeAdapter

pydantic = lazy_module("pydantic")  # 4 MB that a process which only runs libraries does not need

Meaning = Literal[
    "",
    "latency",  # an estimate of what is measured, in the same unit
    "bytes",  # moved to or from memory
    "waiting",  # bytes moved while nothing else can run
    "work",  # operations executed
    "last work",  # operations executed when nothing is moved any more
    "padding",  # elements written that no operation needs
    "instructions",  # how long the program is
    "share",  # of a scratchpad or cache, 1 if it is full
]
Unit = Literal["", "load", "compute", "store"]


@dataclass(frozen=True)
class Feature:
    """A column: its name, its meaning to a model, and the unit of the machine that it keeps busy.

    Units work side by side; a column of no unit counts what none of them hides. `text` says in
    words what is counted, and in which unit of measure.
    """

    name: str
    meaning: Meaning = ""
    unit: Unit = ""
    text: str = ""


@dataclass(frozen=True)
class Features:
    """Rows of numbers, float64 of shape (rows, columns), with a `Feature` a column."""

    matrix: NDArray[np.float64]
    columns: tuple[Feature, ...]

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[1] != len(self.columns):
            raise ValueError(f"{self.matrix.shape} numbers for {len(self.columns)} columns")

    @classmethod
    def of(cls, matrix: NDArray[np.float64], names: Sequence[str]) -> Features:
        """Columns of which nothing is known but the name; `matrix` has shape (rows, names)."""
        return cls(matrix, _unknown(tuple(names)))

    @classmethod
    def none(cls, rows: int) -> Features:
        """A matrix without columns, shape (rows, 0)."""
        return cls(np.empty((rows, 0)), ())

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def rows(self, which: NDArray[Any]) -> Features:
        """The given rows, by index or mask of shape (rows,)."""
        return Features(self.matrix[which], self.columns)

    def beside(self, *others: Features) -> Features:
        """These columns and those of `others`, whose rows are the same, behind them."""
        parts = (self, *others)
        return Features(
            np.concatenate([part.matrix for part in parts], axis=1),
            tuple(column for part in parts for column in part.columns),
        )

    def named(self, prefix: str) -> Features:
        """The same columns with a word before each name: `hidden uops`."""
        return Features(self.matrix, _named(self.columns, prefix))

    def places(self, *meanings: Meaning) -> NDArray[np.int64]:
        """Which columns have one of these meanings, shape (found,)."""
        found = [k for k, column in enumerate(self.columns) if column.meaning in meanings]
        return np.array(found, dtype=np.int64)

    def of_meaning(self, *meanings: Meaning) -> NDArray[np.float64]:
        """The columns that have one of these meanings, shape (rows, found)."""
        return self.matrix[:, self.places(*meanings)]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which rows take no more of anything than there is, shape (rows,)."""
        return np.asarray(self.of_meaning("share").max(axis=1, initial=0.0) <= 1)

    def total(self, *meanings: Meaning) -> NDArray[np.float64]:
        """Their sum, shape (rows,); NaN counts as 0, and so does a meaning no column has."""
        return np.asarray(np.nan_to_num(self.of_meaning(*meanings)).sum(axis=1))


@lru_cache(maxsize=512)
def _unknown(names: tuple[str, ...]) -> tuple[Feature, ...]:
    return tuple(Feature(name) for name in names)


@lru_cache(maxsize=512)
def _named(columns: tuple[Feature, ...], prefix: str) -> tuple[Feature, ...]:
    return tuple(replace(column, name=f"{prefix} {column.name}") for column in columns)


def write_columns(columns: Sequence[Feature]) -> list[Json]:
    """Columns as JSON."""
    return [asdict(column) for column in columns]


def read_columns(value: Json) -> tuple[Feature, ...]:
    """What `write_columns` wrote. Raises `ValueError`."""
    return _columns().validate_python(value)


@cache
def _columns() -> TypeAdapter[tuple[Feature, ...]]:
    found: TypeAdapter[tuple[Feature, ...]] = pydantic.TypeAdapter(tuple[Feature, ...])
    return found
