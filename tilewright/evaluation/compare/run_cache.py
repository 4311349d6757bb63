"""Stores finished runs of a comparison, so that a stopped command resumes.

They are in `runs.jsonl` of the output directory. The key of a run covers all it depends on: tuner,
options, table, seed, budget, and the code.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from tilewright import models, search, targets
from tilewright.core.files import Json, canonical, digest
from tilewright.evaluation.compare.plan import ComparisonJob, ComparisonPlan
from tilewright.evaluation.compare.runs import TunerRun
from tilewright.evaluation.row_cache import RowCache

RUNS = "runs.jsonl"
_LIBRARIES = ("numpy", "scipy", "xgboost-cpu", "lightgbm", "scikit-learn")


class KeptRuns:
    """The runs in a folder that are still those this code would give. With `fresh` none are."""

    def __init__(self, folder: Path, plan: ComparisonPlan, fresh: bool = False) -> None:
        self.plan = plan
        self._rows = RowCache(folder / RUNS, TunerRun, fresh)

    def find(self, job: ComparisonJob) -> TunerRun | None:
        """The run this job came to, or None if it is still to be done."""
        entry = self._rows.find(self._key(job))
        if entry is None:
            return None
        # Settings can be written in more than one way, workloads named anew.
        return replace(entry, tuner=job.tuner_config.label, workload=job.workload)

    def add(self, run: TunerRun) -> None:
        """Write a run to disk, synced. Raises `OSError`."""
        label = {tuner_config.label: tuner_config for tuner_config in self.plan.tuner_configs}
        job = ComparisonJob(label[run.tuner], run.workload, run.seed)
        self._rows.add(self._key(job), run)

    def _key(self, job: ComparisonJob) -> str:
        plan, test_bed = self.plan, self.plan.test_bed
        about: dict[str, Json] = {
            "tuner": job.tuner_config.tuner,
            "options": job.tuner_config.explorer.options.model_dump(mode="json"),
            "workload": dict(test_bed.workloads)[job.workload].id,
            "target": test_bed.open(job.workload).fingerprint,
            "seed": job.seed,
            "trials": plan.trials,
            "batch": plan.batch,
            "enough": plan.enough,
            "code": code_digest(),
        }
        return digest(canonical(about))[:32]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Digest of the packages that a run's result depends on, and of the versions of the libraries
    they call: 16 hex digits."""
    hasher = hashlib.sha256(" ".join(map(version, _LIBRARIES)).encode())
    for package in (targets, search, models):
        for path in package.__path__:
            for file in sorted(Path(path).rglob("*.py")):
                hasher.update(file.name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()[:16]
