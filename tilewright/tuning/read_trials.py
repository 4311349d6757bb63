"""Reader for trials from any source: an output directory, or the files of a TVM tuner."""

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
    """Read the trials of an output directory, a MetaSchedule database or an AutoTVM log.

    The run of an output directory may still be running, or may have been interrupted. If it has no
    trials yet, the result is empty.

    Args:
        source: the directory or file.

    Raises:
        ForeignTrialsError: the directory contains no trial database, or the file of another tuner
            contains no usable trial.
        TrialStoreError: the database cannot be read.
        UnsafeFile: the path is not a plain file.
        OSError: a file cannot be read.
    """
    if source.is_file():
        return read_autotvm_log(source)
    with suppress(FileNotFoundError), read_store(source) as store:
        return ForeignTrials(store.frame(), store.problems)
    if (source / RECORDS).exists():
        return read_metaschedule_database(source)
    raise ForeignTrialsError(
        f"{source} contains no {STORE}; give the output directory of a run (--out, or "
        "tuned/<model>-<target>), a log of AutoTVM, or the folder with MetaSchedule's "
        f"{RECORDS}"
    )
