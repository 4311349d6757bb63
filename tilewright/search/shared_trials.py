"""Transfer of trials from finished workloads to the models of later workloads.

A network has many similar layers. The properties that determine whether a program compiles and
runs, and the cost of each counted operation, depend more on the hardware than on the layer. Models
V and A of a layer therefore also learn from the trials of other layers, which were tuned in the
same run or in an earlier one. The trials are stored as plain arrays in the state that a tuner
starts with (`ExplorerState.arrays`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import read_json
from tilewright.search.explorer import ExplorerState
from tilewright.targets.features import Features, Meaning, read_columns

_PREFIX = "others"
_BUS = "bus_bytes"  # property of hardware: bytes that the memory port moves per cycle
_SCRATCHPADS = {
    "log2_inp_volume": "log2_inp_depth",
    "log2_wgt_volume": "log2_wgt_depth",
    "log2_out_volume": "log2_acc_depth",
}
"""Names of Model V's tile-size columns, each with the property of the hardware that is the size of
the scratchpad for this tile. Both values are log2."""
_MOVED: tuple[Meaning, ...] = ("bytes", "waiting")  # meanings of counters that count bytes
_PARTS = (
    "visible",
    "columns",
    "compiled",
    "hidden",
    "counters",
    "valid",
    "log_latency",
    "estimate",
)


@dataclass(frozen=True)
class SharedTrials:
    """Trials of another workload, as training data of the shared models.

    Attributes:
        visible: features, known before compilation, of all configs that were lowered, shape (m,
            columns). The n trials come first, followed by unmeasured configs.
        compiled: whether each of these configs compiled, shape (m,).
        hidden: hidden features of the trials, shape (n, counters); NaN where compilation failed.
        valid: whether each trial is valid, shape (n,).
        log_latency: log2 latency of the trials, shape (n,); NaN where a trial is not valid.
        estimate: estimated log2 latency of the trials, shape (n,); NaN if there is no estimate.
    """

    visible: Features
    compiled: NDArray[np.bool_]
    hidden: Features
    valid: NDArray[np.bool_]
    log_latency: NDArray[np.float64]
    estimate: NDArray[np.float64]


def with_trials(state: ExplorerState, trials: SharedTrials) -> ExplorerState:
    """Add the trials of one more workload to a tuner's state.

    Args:
        state: state that earlier workloads have shared.
        trials: trials of the finished workload.

    Returns:
        The new state.
    """
    values = (
        trials.visible.matrix, _column_descriptions(trials.visible), trials.compiled,
        trials.hidden.matrix, _column_descriptions(trials.hidden), trials.valid,
        trials.log_latency, trials.estimate,
    )  # fmt: skip
    number = len(trials_in(state))
    named = {_name(number, part): value for part, value in zip(_PARTS, values, strict=True)}
    return replace(state, arrays={**state.arrays, **named})


def trials_in(state: ExplorerState) -> list[SharedTrials]:
    """Read the trials of earlier workloads from a tuner's state.

    Args:
        state: state to which `with_trials` added workloads.

    Returns:
        Trials of each workload, in the order of addition.
    """
    shared: list[SharedTrials] = []
    while _name(len(shared), _PARTS[0]) in state.arrays:
        visible, columns, compiled, hidden, counters, valid, log_latency, estimate = (
            state.arrays[_name(len(shared), part)] for part in _PARTS
        )
        shared.append(
            SharedTrials(
                _features(visible, columns),
                compiled.astype(np.bool_),
                _features(hidden, counters),
                valid.astype(np.bool_),
                log_latency.astype(np.float64),
                estimate.astype(np.float64),
            )
        )
    return shared


def scale_to_hardware(
    trials: SharedTrials, there: Mapping[str, float], here: Mapping[str, float]
) -> SharedTrials:
    """Scale the features of trials on other hardware, so that models of this hardware can use them.

    - Model A predicts the cost of a program. Byte counts are multiplied by the ratio of the bus
      widths, so that one counted byte takes the same time on both machines.
    - Model V predicts whether tiles fit the scratchpads. Tile sizes are multiplied by the ratio of
      the scratchpad sizes. If the scratchpad sizes of either machine are unknown, the features of
      Model V are removed.

    Args:
        trials: trials that were measured on the other hardware.
        there: properties of the other hardware by name, as in `Problem.hardware`.
        here: the same properties of this hardware.

    Returns:
        The trials with scaled features.
    """
    counters, columns = trials.hidden.columns, trials.visible.columns
    hidden, visible = trials.hidden.matrix.copy(), trials.visible.matrix.copy()
    if _BUS in there and _BUS in here:
        counts_bytes = [column.meaning in _MOVED for column in counters]
        hidden[:, counts_bytes] *= here[_BUS] / there[_BUS]
    if {*_SCRATCHPADS.values()} <= there.keys() & here.keys():
        for place, column in enumerate(columns):
            if (size := _SCRATCHPADS.get(column.name)) is not None:
                visible[:, place] += here[size] - there[size]  # both are logarithms
    else:
        visible, columns = visible[:, :0], ()
    return replace(trials, hidden=Features(hidden, counters), visible=Features(visible, columns))


def _column_descriptions(features: Features) -> NDArray[np.str_]:
    """Serialise the descriptions of the columns as a JSON string in an array of shape (1,)."""
    return np.array([json.dumps([asdict(column) for column in features.columns])], dtype=np.str_)


def _features(matrix: NDArray[np.generic], columns: NDArray[np.generic]) -> Features:
    return Features(matrix.astype(np.float64), read_columns(read_json(str(columns[0]))))


def _name(number: int, part: str) -> str:
    return f"{_PREFIX} {number} {part}"
