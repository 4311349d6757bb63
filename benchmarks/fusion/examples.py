"""Stores training examples of the fusion models as NPZ files.

The examples of a network are labelled graphs that were simulated, and its units (groups of
decisions), each with a flag that says whether it was faster fused.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import read_plain, write_atomically
from tilewright.fusion.learned.graph_model import ModelError
from tilewright.fusion.model_features import GraphTable
from tilewright.targets.features import Features

_ARRAYS = ("nodes", "prior", "edges", "links", "stream")


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples of one network on one target.

    Holds labelled graphs, and features of units (groups of decisions), one per row. `better` says
    for each unit whether it is faster fused, bool array of shape (rows,).
    """

    graphs: tuple[GraphTable, ...]
    units: Features
    better: NDArray[np.bool_]


def write_examples(path: Path, examples: Examples) -> None:
    """Write examples to an NPZ file. Raise `OSError` if it cannot be written."""
    graphs = examples.graphs
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(graph, name) for graph in graphs]) for name in _ARRAYS
    }
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        columns=np.array(graphs[0].columns),
        layers=np.array([len(graph.prior) for graph in graphs]),
        links_of=np.array([len(graph.edges) for graph in graphs]),
        units=examples.units.matrix,
        unit_columns=np.array(examples.units.names),
        better=examples.better,
        **arrays,
    )
    write_atomically(path, buffer.getvalue())


def read_examples(path: Path) -> Examples:
    """Read examples from an NPZ file.

    Raises:
        ModelError: the file contains no examples.
        OSError: the file cannot be read.
    """
    try:
        with np.load(io.BytesIO(read_plain(path)), allow_pickle=False) as held:
            columns = tuple(map(str, held["columns"]))
            ends = np.cumsum(held["layers"])[:-1], np.cumsum(held["links_of"])[:-1]
            parts = [np.split(held[name], ends[name in ("edges", "links")]) for name in _ARRAYS]
            graphs = [GraphTable(columns, *item) for item in zip(*parts, strict=True)]
            units = Features.from_names(held["units"], tuple(map(str, held["unit_columns"])))
            return Examples(tuple(graphs), units, held["better"].astype(np.bool_))
    except (ValueError, KeyError, BadZipFile) as error:
        raise ModelError(f"{path} contains no examples ({error}); create them again") from None


def graphs_of(several: Sequence[Examples]) -> list[GraphTable]:
    """Return the labelled graphs of all examples."""
    return [graph for item in several for graph in item.graphs]


def units_of_all(several: Sequence[Examples]) -> tuple[Features, NDArray[np.bool_]]:
    """Return the features of all units, and whether each is faster fused, shape (rows,)."""
    x = Features(np.concatenate([item.units.matrix for item in several]), several[0].units.columns)
    return x, np.concatenate([item.better for item in several])
