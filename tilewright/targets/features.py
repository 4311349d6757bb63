"""Feature matrices whose columns have names and meanings.

A target states the meaning of each column, for example "bytes moved". Models select columns by
these meanings, and therefore do not depend on the column names of a particular target.
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

# imported lazily to save 4 MB in processes that only run libraries
pydantic = lazy_module("pydantic")

Meaning = Literal[
    "",
    "latency",  # an estimate of what is measured, in the same unit
    "bytes",  # bytes moved to or from memory
    "waiting",  # bytes moved while no other unit can work
    "work",  # operations executed
    "last work",  # operations executed after the last transfer
    "padding",  # written elements that no operation needs
    "instructions",  # length of the program
    "share",  # fraction of a scratchpad or cache, 1 if it is full
]
Unit = Literal["", "load", "compute", "store"]


@dataclass(frozen=True)
class Feature:
    """Description of one column of a feature matrix.

    Attributes:
        name: name of the column.
        meaning: category of the column, by which models select it; empty if it fits no category.
        unit: functional unit of the machine that the counted work occupies. Units work in parallel.
            An empty unit means that the work cannot overlap with the work of any unit.
        text: explanation of the counted quantity for users, with the unit of measurement.
    """

    name: str
    meaning: Meaning = ""
    unit: Unit = ""
    text: str = ""


@dataclass(frozen=True)
class Features:
    """Feature matrix with described columns.

    Attributes:
        matrix: float64 array of shape (rows, columns).
        columns: one description per column.
    """

    matrix: NDArray[np.float64]
    columns: tuple[Feature, ...]

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[1] != len(self.columns):
            raise ValueError(
                f"the matrix has the shape {self.matrix.shape}, but there are "
                f"{len(self.columns)} columns"
            )

    @classmethod
    def from_names(cls, matrix: NDArray[np.float64], names: Sequence[str]) -> Features:
        """Build features whose columns have names, but no meanings.

        Args:
            matrix: float64 array of shape (rows, columns).
            names: one name per column.
        """
        return cls(matrix, _unknown_features(tuple(names)))

    @classmethod
    def empty(cls, rows: int) -> Features:
        """Return a matrix without columns, shape (rows, 0)."""
        return cls(np.empty((rows, 0)), ())

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def rows(self, which: NDArray[Any]) -> Features:
        """Return the feature matrix with only some of its rows.

        Args:
            which: indices of the rows, shape (n,), or a boolean mask of shape (rows,).
        """
        return Features(self.matrix[which], self.columns)

    def append_columns(self, *others: Features) -> Features:
        """Return the features with the columns of other feature matrices appended.

        Args:
            *others: features with the same number of rows, in the same order.
        """
        parts = (self, *others)
        return Features(
            np.concatenate([part.matrix for part in parts], axis=1),
            tuple(column for part in parts for column in part.columns),
        )

    def with_prefix(self, prefix: str) -> Features:
        """Return the same features with a prefix and a space before each name.

        For example, the prefix `hidden` changes the name `uops` to `hidden uops`.
        """
        return Features(self.matrix, _prefixed_columns(self.columns, prefix))

    def column_indices(self, *meanings: Meaning) -> NDArray[np.int64]:
        """Return the indices of the columns that have one of the given meanings.

        Args:
            *meanings: categories of columns, such as `bytes`.
        """
        indices = [k for k, column in enumerate(self.columns) if column.meaning in meanings]
        return np.array(indices, dtype=np.int64)

    def of_meaning(self, *meanings: Meaning) -> NDArray[np.float64]:
        """Return the columns with one of the given meanings, shape (rows, selected columns)."""
        return self.matrix[:, self.column_indices(*meanings)]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Mask of the rows that fit into every memory, shape (rows,).

        A row fits if none of its columns with the meaning `share` exceeds 1.
        """
        return np.asarray(self.of_meaning("share").max(axis=1, initial=0.0) <= 1)

    def total(self, *meanings: Meaning) -> NDArray[np.float64]:
        """Return the sum of the columns that have one of the given meanings, shape (rows,).

        NaN counts as 0. The sum is 0 if no column has one of the meanings.
        """
        return np.asarray(np.nan_to_num(self.of_meaning(*meanings)).sum(axis=1))


@lru_cache(maxsize=512)
def _unknown_features(names: tuple[str, ...]) -> tuple[Feature, ...]:
    return tuple(Feature(name) for name in names)


@lru_cache(maxsize=512)
def _prefixed_columns(columns: tuple[Feature, ...], prefix: str) -> tuple[Feature, ...]:
    return tuple(replace(column, name=f"{prefix} {column.name}") for column in columns)


def write_columns(columns: Sequence[Feature]) -> list[Json]:
    """Convert column descriptions to JSON."""
    return [asdict(column) for column in columns]


def read_columns(value: Json) -> tuple[Feature, ...]:
    """Read the column descriptions that `write_columns` wrote.

    Raises:
        ValueError: the JSON is invalid.
    """
    return _columns().validate_python(value)


@cache
def _columns() -> TypeAdapter[tuple[Feature, ...]]:
    adapter: TypeAdapter[tuple[Feature, ...]] = pydantic.TypeAdapter(tuple[Feature, ...])
    return adapter
