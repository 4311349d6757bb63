"""A finished run's folder, read back: on what, by whom, and every trial in order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from evaluation.compare.plan import TunerConfig
from search import Contents, FinishedRound, read, run_id
from targets.errors import TilewrightError
from targets.files import Json
from targets.vta.lowering.batch import SpaceName
from targets.vta.spec import VtaSpec
from targets.vta.target import VtaTarget
from targets.workload import Workload, parse_workload
from tuning.outputs import LEDGER, SCHEDULES, SUMMARY


class FolderError(TilewrightError):
    """A folder that does not hold a finished run."""


@dataclass(frozen=True)
class TunedFolder:
    """What `tilewright tune` left. `recorded_on` is the target's fingerprint at that time."""

    path: Path
    network: str
    target: VtaTarget
    recorded_on: str
    workloads: tuple[Workload, ...]
    tuner_config: TunerConfig
    seed: int
    batch: int

    @property
    def changed(self) -> bool:
        """Whether lowering or simulator are not those of the run any more."""
        return self.target.fingerprint != self.recorded_on

    def rounds(self, workload: Workload) -> list[FinishedRound]:
        """The run's rounds on a workload. Raises `FolderError` if the ledger has none."""
        cold = run_id(self.tuner_config.explorer, self.seed, self.batch)
        others = {
            str(record["run"])
            for record in self._contents.records
            if (record["workload"], record["target"]) == (workload.id, self.recorded_on)
        }
        # A run that did not start cold has a name of its own.
        for name in (cold, *sorted(others - {cold})):
            found = list(self._contents.run((workload.id, self.recorded_on, name)).finished())
            if found:
                return found
        raise FolderError(f"{self.path / LEDGER} has no trial of {workload}; tune again")

    @cached_property
    def _contents(self) -> Contents:
        return read(self.path / LEDGER)


def read_folder(path: Path) -> TunedFolder:
    """Raises `FolderError`."""
    summary, schedules = _json(path / SUMMARY, path), _json(path / SCHEDULES, path)
    try:
        spec = VtaSpec.model_validate(schedules["target"]["spec"])
        options = {str(k): str(v) for k, v in summary["tuner_options"].items()}
        return TunedFolder(
            path=path,
            network=str(summary["network"]),
            target=VtaTarget(spec, cast(SpaceName, summary["space"])),
            recorded_on=str(schedules["target"]["fingerprint"]),
            workloads=tuple(
                parse_workload(entry["workload"], entry["epilogue"])
                for entry in schedules["schedules"]
            ),
            tuner_config=TunerConfig(
                summary["tuner"], summary["tuner"], tuple(sorted(options.items()))
            ),
            seed=int(summary["seed"]),
            batch=int(summary["batch"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise FolderError(
            f"{path} was not written by this version of 'tilewright tune' ({error!r}); tune again"
        ) from None


def _json(file: Path, folder: Path) -> Json:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise FolderError(
            f"{folder} holds no finished run: there is no {file.name}; give the --out folder of "
            "'tilewright tune'"
        ) from None
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {file}: {error}; tune again") from None
