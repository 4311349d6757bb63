"""Writes and opens the regions of an artifact: groups of operators that onnxruntime runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.core.thread_pools import PerProcess
from tilewright.networks.artifact.manifest import read_manifest
from tilewright.networks.errors import ArtifactError
from tilewright.networks.partition.region_session import RegionCalls, RegionSession

if TYPE_CHECKING:
    from tilewright.networks.partition.region_models import RegionModel

Array = NDArray[Any]
PREFIX, SUFFIX = "region", ".onnx"


def write_regions(
    inner: Iterable[RegionModel], last: Iterable[RegionModel], files: dict[str, bytes]
) -> list[Json]:
    """Add the models of regions, which onnxruntime runs, to the files of an artifact.

    Args:
        inner: regions that compiled code calls, in the order of their numbers.
        last: regions that run after all compiled code.
        files: the artifact's files by name, to which the models are added.

    Returns:
        One row for the manifest per region.
    """
    rows: list[Json] = []
    for is_last, regions in ((False, inner), (True, last)):
        for region in regions:
            file = f"{PREFIX}{len(rows)}{SUFFIX}"
            files[file] = region.model.SerializeToString()
            rows.append({
                "file": file,
                "last": is_last,
                "inputs": list(region.inputs),
                "outputs": list(region.outputs),
                "macs": region.macs,
                "operators": [{"name": n, "operator": kind} for n, kind in region.operators],
                "causes": [
                    {"name": cause.name, "operator": cause.operator, "reason": cause.reason}
                    for cause in region.causes
                ],
            })  # fmt: skip
    return rows


def refuse_regions(folder: Path) -> None:
    """Check that an artifact needs no onnxruntime, so that a C program can run it.

    Args:
        folder: folder of the artifact.

    Raises:
        ArtifactError: onnxruntime runs some operators of the artifact.
    """
    operators = [
        f"'{as_text(row['name'])}' ({as_text(row['operator'])})"
        for region in map(as_object, as_list(read_manifest(folder).get("regions", [])))
        for row in map(as_object, as_list(region["operators"]))
    ]
    if operators:
        raise ArtifactError(
            f"C programs cannot run {folder}, because onnxruntime runs {len(operators)} of "
            f"its operators: {', '.join(operators)}; export the model without these "
            "operators, or run it with Python"
        )


class ArtifactRegions:
    """The regions of an artifact: groups of operators that onnxruntime runs.

    Args:
        rows: rows of the regions in the manifest.
        files: files of the artifact by name, which include the models of the regions.
    """

    def __init__(self, rows: Json, files: Mapping[str, bytes | NDArray[np.uint8]]) -> None:
        self._rows = [as_object(row) for row in as_list(rows)]
        self._models = [files[as_text(row["file"])] for row in self._rows]
        self._opening = PerProcess(threading.Lock)
        self._last: list[RegionSession] | None = None
        self._calls: RegionCalls | None = None

    def __bool__(self) -> bool:
        return bool(self._rows)

    def open(self, threads: int) -> RegionCalls | None:
        """Create one onnxruntime session per region. Later calls reuse the sessions.

        Args:
            threads: number of threads of each session.

        Returns:
            The functions through which compiled code calls regions, or None if it calls no region.

        Raises:
            ImportFailedError: onnxruntime does not accept a model.
        """
        with self._opening.get():
            if self._last is None:
                inner, last = list[RegionSession](), list[RegionSession]()
                for row, model in zip(self._rows, self._models, strict=True):
                    (last if row["last"] is True else inner).append(
                        RegionSession(model, _names(row["inputs"]), _names(row["outputs"]), threads)
                    )
                self._calls = RegionCalls(inner) if inner else None
                self._last = last
            return self._calls

    @property
    def are_open(self) -> bool:
        """True if the sessions were created."""
        return self._last is not None

    def run_last(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Run the regions that come after all compiled code. The sessions must be open.

        Args:
            known: inputs of the network and outputs of the compiled code, arrays by name.

        Returns:
            The outputs of the regions by name.

        Raises:
            InputError: onnxruntime rejects the inputs.
        """
        sessions = self._last or ()
        if len(sessions) == 1:  # avoid copying dicts, since an inference may take microseconds
            return sessions[0].run(known)
        made: dict[str, Array] = {}
        for session in sessions:
            made |= session.run({**known, **made})
        return made

    def time_last(self, known: Mapping[str, Array], times: int) -> float:
        """Return the median duration in seconds of the onnxruntime regions after all compiled code.

        Args:
            known: inputs of the network and outputs of the compiled code, arrays by name.
            times: number of runs.
        """
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            self.run_last(known)
            taken.append(time.perf_counter() - begun)
        return float(np.median(taken))


def _names(value: Json) -> Sequence[str]:
    return list(map(as_text, as_list(value)))
