"""Stores finished runs of a comparison, so that a stopped command resumes.

`runs.jsonl` in the output directory has a line a run. Its key covers all a run depends on: tuner,
options, table, seed, budget, and the code. A line that cannot be read is a run to repeat.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tilewright import models, search, targets
from tilewright.core.files import Json, append, canonical, digest, remove
from tilewright.core.safe_files import read_plain
from tilewright.evaluation.compare.plan import ComparisonJob, ComparisonPlan
from tilewright.evaluation.compare.runs import TunerRun

RUNS = "runs.jsonl"
_LIBRARIES = ("numpy", "scipy", "xgboost-cpu", "lightgbm", "scikit-learn")


class KeptRuns:
    """The runs in a folder that are still those this code would give. With `fresh` none are."""

    def __init__(self, folder: Path, plan: ComparisonPlan, fresh: bool = False) -> None:
        self.path = folder / RUNS
        self.plan = plan
        if fresh:
            remove(self.path)
        data = _read(self.path)
        self._torn = not data.endswith(b"\n") and bool(data)  # a crash cut the last line off
        self._runs = _runs_in(data)

    def find(self, job: ComparisonJob) -> TunerRun | None:
        """The run this job came to, or None if it is still to be done."""
        entry = self._runs.get(self._key(job))
        if entry is None:
            return None
        # Settings can be written in more than one way, workloads named anew.
        return replace(entry, tuner=job.tuner_config.label, workload=job.workload)

    def add(self, run: TunerRun) -> None:
        """Write a run to disk, synced. Raises `UnsafeFile` and `OSError`."""
        label = {tuner_config.label: tuner_config for tuner_config in self.plan.tuner_configs}
        job = ComparisonJob(label[run.tuner], run.workload, run.seed)
        line = canonical({"key": self._key(job), "run": asdict(run)}) + b"\n"
        append(self.path, b"\n" + line if self._torn else line)
        self._torn = False

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


class _Line(BaseModel):
    """A line of the file."""

    key: str
    run: TunerRun


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        return b""


def _runs_in(data: bytes) -> dict[str, TunerRun]:
    found = {}
    for line in data.splitlines():
        with suppress(ValidationError):
            entry = _Line.model_validate_json(line)
            found[entry.key] = entry.run
    return found
