"""Says in a line what a step of a round did, for the log of its task.

The line is made of the facts of records, so that a reused step says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, as_int, as_object
from tilewright.reports.number_format import decimal, milliseconds, plural, whole
from tilewright.search import Batch, History, model_errors
from tilewright.targets.base import Measurements
from tilewright.targets.capabilities import Latency
from tilewright.tasks.cached_task import Record

Facts = Mapping[str, Json]

ERRORS = {"P_rmse": "P {} log2", "A_rmse": "A {} log2", "V_brier": "V {} (Brier)"}
"""How the errors of `search.model_errors` are written."""


def generated(record: Record[Any]) -> str:
    """`1,500 candidates`."""
    return _count(record.facts["candidates"], "candidate")


def filtered(record: Record[Any]) -> str:
    """`kept 64 candidates, vetoed 12 with a chance of valid below 0.31`."""
    values = record.facts
    text = f"kept {_count(values['kept'], 'candidate')}, vetoed {_number(values['vetoed'])}"
    below = values.get("below")
    return text + (f" with a chance of valid below {below:.2g}" if isinstance(below, float) else "")


def lowered(record: Record[Any]) -> str:
    """`lowered 64 configs, chose 16; 7 failed to compile: 5 × accumulator exceeded, 2 × …`."""
    values = record.facts
    chosen = as_int(values["chosen"])
    every = as_int(values["lowered"]) + chosen
    text = f"lowered {_count(every, 'config')}, chose {whole(chosen)}"
    return text + _failed(values, "failed to compile")


def simulated(record: Record[Any]) -> str:
    """`16 trials, 14 valid; 2 failed: 2 × input tiles exceed the scratchpad`."""
    values = record.facts
    valid = f"{_count(values['trials'], 'trial')}, {_number(values['valid'])} valid"
    return valid + _failed(values, "failed")


def learned(record: Record[Any]) -> str:
    """`models: A, P, V`."""
    names = record.facts["models"]
    return f"models: {', '.join(map(str, names))}" if isinstance(names, list) and names else ""


def outcome(history: History, batch: Batch, measured: Measurements) -> str:
    """How right the models were on a batch, and the best before it and with it."""
    found = model_errors(batch.scores, measured)
    errors = [form.format(decimal(found[name])) for name, form in ERRORS.items() if name in found]
    latencies = [_least(history.latency), _least(measured.latency[measured.valid])]
    before, best = latencies[0], min(latencies)
    counted = bool((measured.cycles > 0).any() or (history.cycles > 0).any())
    text = "nothing valid so far"
    if np.isfinite(best):
        text = f"best so far {_written(best, counted)}"
    if np.isfinite(before):
        text += f", before {_written(before, counted)}"
    return text + (f"; models were off by {', '.join(errors)}" if errors else "")


def latency_text(latency: Latency) -> str:
    """`1,124 cycles`; `0.850 ms` where none are counted."""
    if latency.cycles > 0:
        return f"{whole(latency.cycles)} cycles"
    return f"{milliseconds(latency.seconds)} ms"


def reasons(texts: NDArray[np.object_]) -> dict[str, Json]:
    """How often each reason of a failure occurs in `texts`, (rows,), the most frequent first,
    without ""."""
    return dict(Counter(str(text) for text in texts if text).most_common())


def _failed(values: Facts, how: str) -> str:
    counts = {reason: as_int(n) for reason, n in as_object(values["failures"]).items()}
    if not counts:
        return ""
    said = ", ".join(f"{whole(n)} × {reason}" for reason, n in counts.items())
    return f"; {whole(sum(counts.values()))} {how}: {said}"


def _least(latency: NDArray[np.float64]) -> float:
    return float(np.nanmin(latency, initial=np.inf))


def _written(latency: float, counted: bool) -> str:
    return (
        latency_text(Latency(latency, int(latency))) if counted else latency_text(Latency(latency))
    )


def _number(value: Json) -> str:
    return whole(as_int(value))


def _count(value: Json, noun: str) -> str:
    return f"{_number(value)} {plural(as_int(value), noun)}"
