"""The schedules of a finished run in the form that another tool reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from targets.capabilities import WritesAutoTvm, capability
from targets.errors import TilewrightError, WorkloadError
from targets.registry import rebuild
from targets.safe_files import read_plain
from targets.workload import parse_workload
from tuning.folders import SCHEDULES, SUMMARY

FORMATS = ("autotvm",)


class ExportError(TilewrightError):
    """A folder with nothing to export, or of no finished run."""


@dataclass(frozen=True)
class Exported:
    """The text of the file, a line a schedule, how many they are, and a sentence for each that is
    left out."""

    text: str
    schedules: int
    left_out: tuple[str, ...]


class _Target(BaseModel):
    name: str
    kind: str
    spec: dict[str, JsonValue] | None = None


class _Schedule(BaseModel):
    id: str
    workload: str
    epilogue: str
    space: str | None
    knobs: dict[str, int] | None


class _Schedules(BaseModel):
    target: _Target
    schedules: list[_Schedule]


class _Workload(BaseModel):
    id: str
    tuned_seconds: float | None


class _Summary(BaseModel):
    workloads: list[_Workload]


M = TypeVar("M", bound=BaseModel)


def export_autotvm(folder: Path, written: float) -> Exported:
    """The schedules of the stock compiler's template in a run's folder as a log of AutoTVM;
    `written` is the time they get (Unix, in seconds). Raises `ExportError` where there are none."""
    schedules, summary = _read(_Schedules, folder, SCHEDULES), _read(_Summary, folder, SUMMARY)
    writer = _writer(schedules.target, folder)
    seconds = {each.id: each.tuned_seconds for each in summary.workloads}
    lines, left_out = [], []
    for each in schedules.schedules:
        try:
            lines.append(_line(writer, each, seconds, written))
        except WorkloadError as error:
            left_out.append(str(error))
    if not lines:
        why = f": {left_out[0]}" if left_out else ""
        raise ExportError(
            f"no schedule in {folder} can be written for AutoTVM{why}; tune into another folder "
            "with --space template, or with --space stock for schedules that stock TVM builds"
        )
    return Exported("".join(f"{line}\n" for line in lines), len(lines), tuple(left_out))


def _line(
    writer: WritesAutoTvm, each: _Schedule, seconds: Mapping[str, float | None], written: float
) -> str:
    workload, latency = parse_workload(each.workload, each.epilogue), seconds.get(each.id)
    if each.space is None or each.knobs is None or latency is None:
        raise WorkloadError(f"{workload}: it has no schedule that runs")
    return writer.autotvm_record(workload, each.space, each.knobs, latency, written)


def _writer(target: _Target, folder: Path) -> WritesAutoTvm:
    """Who writes the records of the run's target. Raises `ExportError`."""
    try:
        made = None if target.spec is None else rebuild(target.kind, target.spec, "")
    except (ValueError, TilewrightError) as error:
        raise _foreign(folder, error) from None
    writer = None if made is None else capability(made, WritesAutoTvm)
    if writer is None:
        raise ExportError(
            f"{folder} was tuned for {target.name}, which stock TVM has no templates for; "
            "tune for a VTA, such as --target vta-pynq"
        )
    return writer


def _read(model: type[M], folder: Path, name: str) -> M:
    try:
        return model.model_validate_json(read_plain(folder / name))
    except FileNotFoundError:
        raise ExportError(
            f"{folder} holds no finished run: there is no {name}; give the --out folder of "
            "'tilewright tune'"
        ) from None
    except OSError as error:
        raise ExportError(f"cannot read {folder / name}: {error}; tune again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _foreign(folder, f"{name}: {where} {first['msg'].lower()}") from None


def _foreign(folder: Path, why: object) -> ExportError:
    return ExportError(
        f"{folder} was not written by this version of 'tilewright tune' ({why}); tune again"
    )
