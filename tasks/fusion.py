"""Prefect stage that decides which operators of a network are fused.

The decision is cached under everything that it depends on. The curves of the search are recorded in
MLflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.core.files import Json
from tilewright.fusion import decide_fusion as decide_fusion_now
from tilewright.tasks import tracking
from tilewright.tasks.cached_task import Done, Key, Stage
from tilewright.tuning.fusion_interface import Decided, ToDecide

if TYPE_CHECKING:
    from tilewright.fusion.evaluator import Evaluation

VERSION = 2
EVERY = "fusion/evaluations"
"""Metric that is logged at every step of the curves."""


def decide_fusion(
    after: Sequence[object], asked: ToDecide, model: str, run_id: str
) -> Done[Decided]:
    """Decide which operators are fused, or reuse a stored decision that had the same inputs.

    Args:
        after: tasks that precede this task in Prefect's graph.
        asked: the network, the target, the options and the tuned workloads of a run.
        model: key of the imported network, as `Key.text` of its import stage.
        run_id: MLflow run of the network, which gets the curves of the search.

    Returns:
        The finished stage with the decision.

    Raises the errors of `tilewright.fusion.decide_fusion`.
    """
    key = _key(asked, model)
    decided = None
    if not _DECISION.is_stored(asked.network, key, None):
        decided = _decide_fusion(asked, run_id)
    return _DECISION.run(after, {}, asked.network, key, decided)


def decision_metrics(decided: Decided) -> dict[str, float]:
    """Return the results of a fusion decision as metrics of the network's MLflow run, by name.

    They are the cycles and DRAM bytes of the whole network for each set of decisions that was
    evaluated, such as `fusion/none_cycles`; the number of decisions; and how many of them fuse
    operators.
    """
    said = decided.summary
    figures = {f"fusion/{name}_cycles": float(n) for name, n in said["cycles"].items()}
    figures |= {f"fusion/{name}_dram_bytes": float(n) for name, n in said["dram_bytes"].items()}
    fused = sum(row["fused"] for row in said["decisions"])
    return figures | {
        "fusion/decisions": float(len(said["decisions"])),
        "fusion/fused": float(fused),
    }


def keep_decision(network: str, key: Key, decided: Decided | None) -> Decided:
    """Return `decided`, so that Prefect stores it as the result of this task.

    `decide_fusion` makes the decision before it starts this task. If a decision is stored under the
    same key, Prefect returns that one and does not call this function.

    Args:
        network: name of the network, for the name of the task run.
        key: key of the decision.
        decided: the decision; None if a stored decision will be used.
    """
    assert decided is not None, "what the cache has is not decided again"
    return decided


def _given_key(network: str, key: Key, decided: Decided | None) -> Key:
    return key


_DECISION = Stage(keep_decision, "fusion decisions of {network}", _given_key)


def _decide_fusion(asked: ToDecide, run_id: str) -> Decided:
    best = float("inf")
    with tracking.StepLog(run_id, every=EVERY) as log:

        def heard(found: Evaluation, count: int) -> None:
            nonlocal best
            best = min(best, found.cycles)
            log.add(
                count,
                {
                    EVERY: float(count), "fusion/cycles": float(found.cycles),
                    "fusion/best_cycles": best, "fusion/dram_bytes": float(found.dram_bytes),
                },
            )  # fmt: skip

        return decide_fusion_now(asked, heard)


def _key(asked: ToDecide, model: str) -> Key:
    """Return the key under which a fusion decision is stored.

    It covers the tuned schedules, the settings and starting states (`starts`) with which further
    workloads are tuned, and the learned models that guide the search.

    Args:
        asked: the network, the target, the options and the tuned workloads of a run.
        model: key of the imported network.
    """
    options = asked.options
    schedules: list[Json] = [
        [result.workload.id, result.chosen.space, list(result.chosen.config)]
        for result in asked.tuned if result.chosen is not None
    ]  # fmt: skip
    about: dict[str, Json] = {
        "model": model,
        "mode": options.fusion,
        "epilogue": options.epilogue,
        "seed": options.seed,
        "trials": options.trials,
        "stop_gain": options.stop_gain,
        "batch": options.batch,
        "tuner": options.tuner,
        "tuner_options": dict(options.tuner_options),
        "space": options.space,
        "starts": list[Json]([workload_result.task.start for workload_result in asked.tuned]),
        "models": _models(options.fusion),
        "schedules": schedules,
    }
    return Key("decide_fusion", VERSION, asked.target.fingerprint, about)


def _models(mode: str) -> str:
    """Return the digest of the shipped models that guide the mode "learned"; "" for other modes."""
    if mode != "learned":
        return ""
    from tilewright.fusion.learned.pretrained import shipped_digest  # loads TVM

    return shipped_digest()
