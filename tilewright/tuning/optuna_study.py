"""Conversion of a run's trials to Optuna studies, for Optuna's tools and for knob importance.

There is one study per workload. Its parameters are the knobs, with the values that were tried. Its
objective is the latency in seconds. A trial that is not valid becomes a failed trial of the study,
with the reason as a user attribute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from tilewright.core.lazy_module import lazy_module
from tilewright.tuning.run_trials import RunTrials

if TYPE_CHECKING:
    import optuna
else:
    optuna = lazy_module("optuna")


class _Journal:
    """Optuna journal in memory. Optuna's own file writer would sync the disk after each line."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += logs


FEWEST = 8
"""Minimum number of valid trials for computing the importance of knobs."""
_NAMES = ("workload", "cycles", "round", "status", "reason")


def optuna_journal(run: RunTrials) -> str:
    """Convert the trials of a run to an Optuna journal with one study per workload.

    Optuna's `JournalStorage` and the Optuna dashboard can open a file with this content.

    Args:
        run: the trials of the run.

    Returns:
        The journal as JSON lines.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal, title = _Journal(), "{network} on {target}, {tuner}, seed {seed}".format(**run.about)
    storage = optuna.storages.JournalStorage(journal)  # type: ignore[arg-type]
    for layer in run.layers:
        study = optuna.create_study(storage=storage, study_name=f"{title}: {layer.name}")
        for name, value in (dict(run.about) | {"workload": layer.text}).items():
            study.set_user_attr(name, value)
        add_trials(study, run.trials_of_workload(layer.id))
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in journal.lines)


def add_trials(study: optuna.Study, table: pd.DataFrame) -> None:
    """Add the trials of one workload to a study.

    Args:
        study: the study.
        table: trials with the columns `search.trial_store.COLUMNS`.
    """
    knobs = [json.loads(text) for text in table["knobs"]]
    spread = {
        name: optuna.distributions.IntDistribution(min(values), max(values))
        for name in dict.fromkeys(name for knob in knobs for name in knob)
        if (values := [knob[name] for knob in knobs if name in knob])
    }
    states = optuna.trial.TrialState
    for row, values in zip(table.to_dict("records"), knobs, strict=True):
        valid = row["status"] == "valid"
        study.add_trial(
            optuna.trial.create_trial(
                state=states.COMPLETE if valid else states.FAIL,
                value=float(row["seconds"]) if valid else None,
                params=values,
                distributions={name: spread[name] for name in values},
                user_attrs={name: row[name] for name in _NAMES},
            )
        )


def knob_importance(table: pd.DataFrame) -> Mapping[str, float]:
    """Compute the importance of each knob for the log latency of a workload with fANOVA.

    An importance is a fraction of the variance among the valid trials (Hutter et al., ICML 2014).

    Args:
        table: trials of the workload.

    Returns:
        Importance by knob name, largest first. Empty if there are fewer than `FEWEST` valid trials,
        or if all of them have the same latency.
    """
    valid = table[table["status"] == "valid"]
    if len(valid) < FEWEST or valid["seconds"].nunique() < 2:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    add_trials(study, valid)
    importances: Mapping[str, float] = optuna.importance.get_param_importances(
        study,
        evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
        target=lambda trial: math.log(trial.value or math.inf),
    )
    return importances
