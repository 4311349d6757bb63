"""Says in a line what a step did, for the log of its task.

The line is made of the result, so that a step whose result was cached says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilewright.reports.number_format import decimal, milliseconds, percent, plural, whole
from tilewright.search import Batch, Candidates, ExplorerState, Round, Session
from tilewright.search.explorer import veto_threshold
from tilewright.targets.base import Measurements
from tilewright.targets.capabilities import Latency
from tilewright.tuning.network import Extracted, Model
from tilewright.tuning.results import Baselines
from tilewright.tuning.tuning_task import TuningTask

ERRORS = {"P_rmse": "P {} log2", "A_rmse": "A {} log2", "V_brier": "V {} (Brier)"}
"""How the errors of `search.model_errors` are written."""


def model(found: Model, *_: object) -> str:
    """`digits_cnn, content 2c26b46b68ff`."""
    return f"{found.name}, content {found.digest[:12]}"


def extracted(found: Extracted, *_: object) -> str:
    """`12 workloads, 99.9 % of the network's 1,814,073,344 multiply-accumulates`."""
    share = found.macs["offloaded"] / max(found.macs["total"], 1)
    return (
        f"{_count(len(found.subgraphs), 'workload')}, {percent(share)} of the network's "
        f"{whole(found.macs['total'])} multiply-accumulates"
    )


def baselines(found: Baselines, *_: object) -> str:
    """`baseline 1,124 cycles, fallback 12,049 cycles`."""
    parts = []
    if found.baseline is not None:
        parts.append(f"baseline {latency_text(found.baseline.latency)}")
    if found.fallback is not None:
        parts.append(f"fallback {latency_text(found.fallback)}")
    return ", ".join(parts) or "the target has no baseline"


def mismatches(count: int | None, *_: object) -> str:
    """`0 of its outputs differ from the integer reference`."""
    if count is None:
        return "the target cannot run a schedule on data"
    return f"{count} of its outputs differ from the integer reference"


def generated(candidates: Candidates, *_: object) -> str:
    """`1,500 candidates`."""
    return _count(len(candidates), "candidate")


def filtered(kept: Candidates, task: TuningTask, session: Session, *_: object) -> str:
    """`kept 64 candidates, vetoed 12 with a chance of valid below 0.31`."""
    text = f"kept {_count(len(kept), 'candidate')}, vetoed {whole(kept.vetoed)}"
    if not kept.vetoed:
        return text
    below = veto_threshold(task.explorer, session.models)
    return f"{text} with a chance of valid below {below:.2g}"


def lowered(batch: Batch, *_: object) -> str:
    """`lowered 64 configs, chose 16; 7 failed to compile: 5 × accumulator exceeded, 2 × …`."""
    chosen = len(batch.rows)
    text = f"lowered {_count(batch.unmeasured_count + chosen, 'config')}, chose {whole(chosen)}"
    return text + _failed(batch.reasons, "failed to compile")


def simulated(measured: Measurements, *_: object) -> str:
    """`16 trials, 14 valid; 2 failed: 2 × input tiles exceed the scratchpad`."""
    valid = f"{_count(len(measured), 'trial')}, {whole(int(measured.valid.sum()))} valid"
    return valid + _failed(map(str, measured.reason[~measured.valid]), "failed")


def learned(models: ExplorerState, *_: object) -> str:
    """`models: A, P, V`."""
    return f"models: {', '.join(sorted(models.models))}" if models.models else ""


def outcome(done: Round) -> str:
    """The best so far, and how right the models were about a round."""
    found = done.model_errors
    errors = [form.format(decimal(found[name])) for name, form in ERRORS.items() if name in found]
    text = "nothing valid so far"
    if done.best is not None:
        text = f"best so far {latency_text(done.best)}"
    return text + (f"; models were off by {', '.join(errors)}" if errors else "")


def latency_text(latency: Latency) -> str:
    """`1,124 cycles`; `0.850 ms` where none are counted."""
    if latency.cycles > 0:
        return f"{whole(latency.cycles)} cycles"
    return f"{milliseconds(latency.seconds)} ms"


def _failed(reasons: Iterable[str], how: str) -> str:
    """How often each reason occurs, the most frequent first; those that are "" do not count."""
    counts = Counter(reason for reason in reasons if reason)
    if not counts:
        return ""
    said = ", ".join(f"{whole(n)} × {reason}" for reason, n in counts.most_common())
    return f"; {whole(counts.total())} {how}: {said}"


def _count(count: int, noun: str) -> str:
    return f"{whole(count)} {plural(count, noun)}"
