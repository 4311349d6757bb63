"""Reads trials from wherever they are: an output directory, or what a tuner of TVM left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tilewright.search import read_store
from tilewright.tuning.foreign_trials import (
    RECORDS,
    ForeignTrials,
    ForeignTrialsError,
    read_autotvm_log,
    read_metaschedule_database,
)
from tilewright.tuning.output_dir import STORE


def read_trials(source: Path) -> ForeignTrials:
    """The trials in an output directory, also of a run that goes on or died; in a folder with
    MetaSchedule's database; in a log of AutoTVM. Raises `ForeignTrialsError` where there are none,
    `TrialStoreError`, `UnsafeFile` and `OSError`."""
    if source.is_file():
        return read_autotvm_log(source)
    with suppress(FileNotFoundError), read_store(source) as store:
        return ForeignTrials(store.frame(), store.problems)
    if (source / RECORDS).exists():
        return read_metaschedule_database(source)
    raise ForeignTrialsError(
        f"there is no {STORE} in {source}; give the folder named with --out, or "
        "tuned/<model>-<target>; of other tuners, a log of AutoTVM or the folder with "
        f"MetaSchedule's {RECORDS}"
    )
