"""Measures what a one-thread model of this processor saves when other layers use all threads.

    python -m benchmarks.transfer_cpu --json built/transfer-cpu.json

Builds a dataset of `cpu:threads=1`, once with each width of vectors, and trains on it, below
`--folder`. Then every layer is tuned without and with the model. Single measurements flatter who
made more of them: so the best program after each of some numbers of trials is measured again, all
of a layer and seed in turns, and a run has come where another ends when its fresh figure is within
2 %, which is what a measurement is sure to.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import again, workload_of
from tilewright.core.files import write_atomically
from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.evaluation.datasets.metadata import read_about
from tilewright.evaluation.datasets.plan import DatasetOptions
from tilewright.flows.dataset import build_dataset
from tilewright.flows.tuning import tune_round
from tilewright.models import make_explorer
from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.prior import prior_from
from tilewright.models.transfer.registry import load_model, make_model
from tilewright.search import LocalRunner, Session
from tilewright.search.task import GivenTask, problem_of
from tilewright.targets.base import Configs, Target
from tilewright.targets.cpu.spec import LANES, this_machine
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

LAYERS = (
    "resnet18 3x3 128", "mobilenet_v2 1x1 192-64", "mobilenet_v2 dw/2 96", "vit_tiny mlp",
    "resnet18 7x7/2", "mobilenet_v2 1x1 960-320",
)  # fmt: skip
LOOKED_AT = (4, 8, 12, 16, 24, 32, 48, 64)
AS_FAST = 1.02


def main() -> None:
    """Measure what the file lacks, write it after each layer and seed, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("built/transfer-cpu"))
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", default="", help="names, separated by commas")
    options = parser.parse_args()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    if options.json.exists():
        rows = json.loads(options.json.read_text())["layers"]
    dataset, model = _learned(options.folder, options.rows)
    target = make_target("cpu")
    known = {_shape(Workload.from_json(each)) for each in read_about(dataset).workloads}
    for seed in range(options.seeds):
        for name in options.layers.split(",") if options.layers else LAYERS:
            seen = _shape(workload_of(name)) in known
            if seen or any((row["layer"], row["seed"]) == (name, seed) for row in rows):
                continue
            rows.append({"layer": name, "seed": seed, **_runs(target, name, seed, model)})
            write_atomically(options.json, (json.dumps({"layers": rows}, indent=1)).encode())
    print(summary(rows))


def _learned(folder: Path, rows: int) -> tuple[Path, Transferred]:
    """The dataset and the model, made if they are not there."""
    lanes = [each for each in LANES if each <= this_machine().lanes]
    names = tuple(f"cpu:threads=1,lanes={each}" for each in lanes)
    dataset = folder / f"dataset-{rows}"
    build_dataset(LocalRunner(), dataset, DatasetOptions(0, rows, targets=names))
    path = folder / f"xgboost-{digest_of(dataset)[:8]}"
    if not path.exists():
        model = make_model("xgboost", 0, {"minutes": 5.0})
        model.fit(read_table(dataset))
        model.save(path)
    return dataset, load_model(path)


def _shape(workload: Workload) -> Workload:
    return workload.with_steps(())


def _runs(target: Target, name: str, seed: int, model: Transferred) -> dict[str, Any]:
    """Fresh seconds of the best program after each of `LOOKED_AT` trials."""
    workload = workload_of(name)
    found: dict[str, dict[str, Any]] = {}
    best: dict[str, list[Configs]] = {}
    for tuner, explorer, warm in (
        ("blind", "default-blind", False), ("default", "default", False),
        ("warm", "default-blind", True),
    ):  # fmt: skip
        begin = time.perf_counter()
        problem = problem_of(target, workload, seed)
        if warm:
            problem = replace(problem, transferred=prior_from(model, problem))
        task = GivenTask(target, make_explorer(explorer, {}), problem)
        session = Session.start(task)
        while len(session.history) < LOOKED_AT[-1] and (
            done := tune_round(LocalRunner(), task, session, 4)
        ):
            session = done
        best[tuner] = _leaders(session)
        found[tuner] = {
            "wall_seconds": time.perf_counter() - begin,
            "invalid": int((~session.history.valid).sum()),
        }
    fresh = again(
        target,
        workload,
        [target.lower(workload, each[None]) for run in best.values() for each in run],
    )
    for place, tuner in enumerate(best):
        begin_at = place * len(LOOKED_AT)
        found[tuner]["fresh_seconds"] = fresh[begin_at : begin_at + len(LOOKED_AT)]
    return found


def _leaders(session: Session) -> list[Configs]:
    latency = np.nan_to_num(session.history.latency, nan=np.inf)
    return [session.history.configs[int(np.argmin(latency[:trials]))] for trials in LOOKED_AT]


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a tuner: trials until it is as fast as `blind` after all of them, and latency beside
    that one's after some numbers of trials, geometric means over layers and seeds."""
    if not rows:
        return "all of these layers are in the dataset"
    lines = []
    for tuner in ("blind", "default", "warm"):
        ratios = np.array(
            [
                np.array(row[tuner]["fresh_seconds"]) / row["blind"]["fresh_seconds"][-1]
                for row in rows
            ]
        )
        came = [
            LOOKED_AT[int(np.argmax(run <= AS_FAST))] if (run <= AS_FAST).any() else np.inf
            for run in ratios
        ]
        share = np.median(came) / LOOKED_AT[-1]
        means = np.exp(np.log(ratios).mean(axis=0))
        told = ", ".join(f"{m:.2f} x after {n}" for n, m in zip(LOOKED_AT, means, strict=True))
        lines.append(
            f"{tuner:8} as fast after {share:.0%} of the trials (median of {len(rows)}, "
            f"{int(np.isfinite(came).sum())} came there); {told}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
