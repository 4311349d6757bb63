"""Writes the trials of a workload as Kernel Tuner does: as its cache, and as a T4 file.

Kernel Tuner resumes from its cache and simulates tuning on it. T4 is the results format it shares
with other tuners.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping

import pandas as pd

from tilewright.core.files import Json
from tilewright.tuning.run_trials import RunLayer, RunTrials

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
