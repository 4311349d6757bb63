"""What is tuned, by whom, on what: small enough for JSON, enough to rebuild everything from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

from models import make_explorer
from search import Explorer, Problem, problem_of, run_id
from targets import make_target
from targets.files import Json, digest
from targets.rpc_process import Limits
from targets.vta.isolated import IsolatedVta
from targets.vta.lowering.batch import SpaceName
from targets.vta.target import VtaTarget
from targets.workload import Workload
from tasks.session import isolation_wanted


@dataclass(frozen=True)
class Study:
    """One workload on one target with one tuner and seed. `options` are sorted pairs; `start`
    identifies the memory the tuner begins with, if it is not empty."""

    workload: Workload
    target_name: str
    space_name: SpaceName
    tuner: str
    seed: int
    batch: int
    options: tuple[tuple[str, str | int | float | bool], ...] = ()
    start: str = ""

    @property
    def target(self) -> VtaTarget:
        return _target(self.target_name, self.space_name, isolation_wanted())

    @property
    def explorer(self) -> Explorer:
        return _explorer(self.tuner, self.options)

    @property
    def problem(self) -> Problem:
        return _problem(self)

    @property
    def run_id(self) -> str:
        """The ledger's name of this run."""
        cold = run_id(self.explorer, self.seed, self.batch)
        return digest(f"{cold} {self.start}".encode())[:12] if self.start else cold

    @property
    def ledger_key(self) -> tuple[str, str, str]:
        """What the ledger files this run's records under: workload, target, run."""
        return self.workload.id, self.target.fingerprint, self.run_id

    def describe(self) -> dict[str, Json]:
        """What a stage that asks the explorer depends on, beside its inputs."""
        return {
            "workload": asdict(self.workload),
            "tuner": self.tuner,
            "options": self.explorer.options.model_dump(mode="json"),
            "seed": self.seed,
            "batch": self.batch,
        }


@lru_cache(maxsize=8)
def _target(name: str, space: SpaceName, isolation: float) -> VtaTarget:
    if isolation:
        return IsolatedVta(name, space, Limits(isolation))
    return make_target(name, space=space)


@lru_cache(maxsize=8)
def _explorer(name: str, options: tuple[tuple[str, str | int | float | bool], ...]) -> Explorer:
    return make_explorer(name, dict(options))


@lru_cache(maxsize=64)
def _problem(study: Study) -> Problem:
    return problem_of(study.target, study.workload, study.seed)
