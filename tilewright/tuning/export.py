"""Writes the schedules of a finished run in the form that another tool reads, and its trials as
Kernel Tuner does: as its cache, from which it resumes, and as a T4 file, the results format that it
shares with other tuners.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, JsonValue

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.capabilities import NamedSchedule, WritesAutoTvm, WritesC, capability
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import parse_workload
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY
from tilewright.tuning.read_run import foreign, read_written
from tilewright.tuning.run_trials import RunLayer, RunTrials

FORMATS = ("autotvm", "optuna", "kernel-tuner", "t4", "gemmini-c")


class ExportError(TilewrightError):
    """A folder with nothing to export, or of no finished run."""


@dataclass(frozen=True)
class Exported:
    """The text of the file, a line a schedule, how many they are, and a sentence for each that is
    left out."""

    text: str
    schedules: int
    left_out: tuple[str, ...]


class _ExportedTarget(BaseModel):
    name: str
    kind: str
    spec: dict[str, JsonValue] | None = None


class _ExportedSchedule(BaseModel):
    id: str
    workload: str
    epilogue: str
    space: str | None
    knobs: dict[str, int] | None
    names: list[str] = []


class _ExportedSchedules(BaseModel):
    target: _ExportedTarget
    schedules: list[_ExportedSchedule]


class _ExportedWorkload(BaseModel):
    id: str
    tuned_seconds: float | None


class _ExportedSummary(BaseModel):
    workloads: list[_ExportedWorkload]


def export_autotvm(folder: Path, written: float) -> Exported:
    """The schedules of the stock compiler's template in a run's folder as a log of AutoTVM;
    `written` is the time they get (Unix, in seconds). Raises `ExportError` where there are none."""
    schedules = read_written(_ExportedSchedules, folder, SCHEDULES, ExportError)
    summary = read_written(_ExportedSummary, folder, SUMMARY, ExportError)
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


def export_c(folder: Path, form: str) -> Exported:
    """The programs of the best schedules in a run's folder as a C file of that form, a function a
    workload. Raises `ExportError` where there are none."""
    found = read_written(_ExportedSchedules, folder, SCHEDULES, ExportError)
    target = _target(found.target, folder)
    writer = None if target is None else capability(target, WritesC)
    if writer is None or writer.c_format != form:
        raise ExportError(
            f"{folder} was tuned for {found.target.name}, and no {form} is written for it; "
            "tune for a Gemmini, such as --target gemmini"
        )
    kept = [
        NamedSchedule(
            (each.names or [each.id])[0], parse_workload(each.workload, each.epilogue), each.space,
            each.knobs,
        )
        for each in found.schedules
        if each.space is not None and each.knobs is not None
    ]  # fmt: skip
    left_out = tuple(
        f"{each.workload}: it has no schedule that runs"
        for each in found.schedules
        if each.space is None or each.knobs is None
    )
    if not kept:
        raise ExportError(f"no schedule in {folder} runs; tune with more --trials")
    return Exported(writer.c_source(kept), len(kept), left_out)


def _line(
    writer: WritesAutoTvm,
    each: _ExportedSchedule,
    seconds: Mapping[str, float | None],
    written: float,
) -> str:
    workload, latency = parse_workload(each.workload, each.epilogue), seconds.get(each.id)
    if each.space is None or each.knobs is None or latency is None:
        raise WorkloadError(f"{workload}: it has no schedule that runs")
    return writer.autotvm_record(workload, each.space, each.knobs, latency, written)


def _writer(target: _ExportedTarget, folder: Path) -> WritesAutoTvm:
    """Who writes the records of the run's target. Raises `ExportError`."""
    made = _target(target, folder)
    writer = None if made is None else capability(made, WritesAutoTvm)
    if writer is None:
        raise ExportError(
            f"{folder} was tuned for {target.name}, which stock TVM has no templates for; "
            "tune for a VTA, such as --target vta-pynq"
        )
    return writer


def _target(target: _ExportedTarget, folder: Path) -> Target | None:
    """The run's target; None where it was not written down. Raises `ExportError`."""
    try:
        return None if target.spec is None else rebuild(target.kind, target.spec, "")
    except (ValueError, TilewrightError) as error:
        raise ExportError(foreign(folder, error)) from None


T4_VERSION = "1.0.0"
_INVALIDITY = {
    "valid": "correct", "compile_error": "compile", "run_error": "runtime",
    "wrong_result": "correctness", "timeout": "timeout",
}  # fmt: skip
_ERRORS = {"compile_error": "CompilationFailedConfig"}
"""What the cache has in the place of a time; `RuntimeFailedConfig` for all others."""


def kernel_tuner_cache(run: RunTrials, layer: RunLayer) -> str:
    """Kernel Tuner's cache of a workload: milliseconds by the values of the knobs, which are those
    that were tried."""
    trials = _rows(run.of(layer.id))
    knobs = list(trials[0][1]) if trials else []
    cache: dict[str, Json] = {}
    for row, values in trials:
        key = ",".join(str(values[name]) for name in knobs)
        cache[key] = {**values, **_time(row)}
    document: dict[str, Json] = {
        "device_name": run.about["target"],
        "kernel_name": layer.names[0] if layer.names else layer.id,
        "tune_params_keys": knobs,
        "tune_params": {name: sorted({values[name] for _, values in trials}) for name in knobs},
        "objective": "time",
        "cache": cache,
    }
    return json.dumps(document, indent="")


def t4_results(run: RunTrials, layer: RunLayer) -> str:
    """A T4 file of a workload: milliseconds, and cycles where the target counts them."""
    results: list[Json] = []
    for row, values in _rows(run.of(layer.id)):
        valid, time = row["status"] == "valid", 1e3 * float(str(row["seconds"]))
        measured = [("time", time, "ms"), ("cycles", int(str(row["cycles"])), "cycles")]
        results.append({
            "configuration": values,
            "times": {"runtimes": [time] if valid else []},
            "invalidity": _INVALIDITY[str(row["status"])],
            "correctness": int(valid),
            "measurements": [
                {"name": name, "value": value, "unit": unit}
                for name, value, unit in measured
                if valid and value >= 0
            ],
            "objectives": ["time"],
        })  # fmt: skip
    return json.dumps({"results": results, "schema_version": T4_VERSION}, indent=1)


def _rows(trials: pd.DataFrame) -> list[tuple[Mapping[Hashable, object], dict[str, int]]]:
    """Each trial with its knobs by name."""
    return [(row, json.loads(str(row["knobs"]))) for row in trials.to_dict("records")]


def _time(row: Mapping[Hashable, object]) -> dict[str, Json]:
    if row["status"] != "valid":
        return {"time": _ERRORS.get(str(row["status"]), "RuntimeFailedConfig")}
    milliseconds = 1e3 * float(str(row["seconds"]))
    return {"time": milliseconds, "times": [milliseconds]}
