"""Export of a finished run to the formats of other tools.

Schedules can be exported for AutoTVM or Gemmini. Trials can be exported as a cache file of Kernel
Tuner, from which Kernel Tuner can resume, or as a T4 file, a results format that several tuners
share.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, JsonValue

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.capabilities import (
    ExportedText,
    ExportsSchedules,
    NamedSchedule,
    capability,
)
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import parse_workload
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY
from tilewright.tuning.read_run import read_written, unreadable_message
from tilewright.tuning.run_trials import RunLayer, RunTrials

FORMATS = ("autotvm", "optuna", "kernel-tuner", "t4", "gemmini-c")


class ExportError(TilewrightError):
    """The folder contains no finished run, or nothing that can be exported."""


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


def export_schedules(folder: Path, form: str, written: float) -> ExportedText:
    """Export the best schedules of a run in the format of another tool.

    Args:
        folder: the output directory of the run.
        form: name of the format, "autotvm" or "gemmini-c".
        written: Unix time to write into the file, if the format contains a time.

    Returns:
        The exported text, with reasons for the schedules that were left out.

    Raises:
        ExportError: there are no schedules, or the target does not support the format.
    """
    result = read_written(_ExportedSchedules, folder, SCHEDULES, ExportError)
    summary = read_written(_ExportedSummary, folder, SUMMARY, ExportError)
    seconds = {workload.id: workload.tuned_seconds for workload in summary.workloads}
    exports = _exports(result.target, folder, form)
    schedules, left_out = [], []
    for schedule in result.schedules:
        try:
            workload = parse_workload(schedule.workload, schedule.epilogue)
        except WorkloadError as error:
            left_out.append(str(error))
            continue
        latency = seconds.get(schedule.id)
        if schedule.space is None or schedule.knobs is None or latency is None:
            left_out.append(f"{workload}: none of its schedules runs")
            continue
        name = (schedule.names or [schedule.id])[0]
        schedules.append(NamedSchedule(name, workload, schedule.space, schedule.knobs, latency))
    exported = exports.export_schedules(schedules, written)
    left_out.extend(exported.left_out)
    if not exported.schedules:
        raise ExportError(_nothing_to_export(folder, form, left_out))
    return replace(exported, left_out=tuple(left_out))


def _exports(target: _ExportedTarget, folder: Path, form: str) -> ExportsSchedules:
    """Rebuild the target of a run, and check that it can export schedules in a format.

    Args:
        target: target entry of `schedules.json`.
        folder: output directory of the run.
        form: name of the format.

    Returns:
        The target's capability to export schedules.

    Raises:
        ExportError: the target cannot export this format.
    """
    made = _target(target, folder)
    exports = None if made is None else capability(made, ExportsSchedules)
    if exports is None or exports.export_format != form:
        needed = {
            "autotvm": (
                "for which stock TVM has no templates; tune for a VTA, such as --target vta-pynq"
            ),
            "gemmini-c": (
                "which the format gemmini-c does not support; tune for a Gemmini, such as "
                "--target gemmini"
            ),
        }
        raise ExportError(f"{folder} was tuned for {target.name}, {needed[form]}")
    return exports


def _nothing_to_export(folder: Path, form: str, left_out: Sequence[str]) -> str:
    if form != "autotvm":
        return f"none of the schedules in {folder} runs; tune again with more --trials"
    why = f": {left_out[0]}" if left_out else ""
    return (
        f"none of the schedules in {folder} can be exported to AutoTVM{why}; tune into "
        "another folder with --space template, or with --space stock to get only schedules "
        "that stock TVM can build"
    )


def _target(target: _ExportedTarget, folder: Path) -> Target | None:
    """Rebuild the target of a run.

    Args:
        target: target entry of `schedules.json`.
        folder: output directory of the run, for error messages.

    Returns:
        The target, or None if its specification was not stored.

    Raises:
        ExportError: the specification is invalid.
    """
    try:
        return None if target.spec is None else rebuild(target.kind, target.spec, "")
    except (ValueError, TilewrightError) as error:
        raise ExportError(unreadable_message(folder, error)) from None


T4_VERSION = "1.0.0"
_INVALIDITY = {
    "valid": "correct", "compile_error": "compile", "run_error": "runtime",
    "wrong_result": "correctness", "timeout": "timeout",
}  # fmt: skip
_ERRORS = {"compile_error": "CompilationFailedConfig"}
"""Text that replaces the time of a failed trial in a Kernel Tuner cache, by status. Statuses that
are not listed become `RuntimeFailedConfig`."""


def kernel_tuner_cache(run: RunTrials, layer: RunLayer) -> str:
    """Export the trials of a workload as the text of a Kernel Tuner cache file.

    The file is JSON, and times are in ms. For each knob, it lists the values that occur in the
    trials.

    Args:
        run: the trials of the run.
        layer: the workload to export.
    """
    trials = _rows(run.trials_of_workload(layer.id))
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
    """Export the trials of a workload as the text of a T4 file, a format of several tuners.

    The file is JSON, and times are in ms. Cycles are included if the target counts them.

    Args:
        run: the trials of the run.
        layer: the workload to export.
    """
    results: list[Json] = []
    for row, values in _rows(run.trials_of_workload(layer.id)):
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
    """Convert a table of trials to pairs of a row and its knob values by name."""
    return [(row, json.loads(str(row["knobs"]))) for row in trials.to_dict("records")]


def _time(row: Mapping[Hashable, object]) -> dict[str, Json]:
    if row["status"] != "valid":
        return {"time": _ERRORS.get(str(row["status"]), "RuntimeFailedConfig")}
    milliseconds = 1e3 * float(str(row["seconds"]))
    return {"time": milliseconds, "times": [milliseconds]}
