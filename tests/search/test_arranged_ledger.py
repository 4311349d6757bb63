"""Checks that a ledger of parallel runs is put in the order of runs after each other."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.search import Ledger, read
from tilewright.search.ledger_schema import RoundEntry
from tilewright.search.run_ledger import RunKey

KEYS: list[RunKey] = [(f"workload{k}", "target", "run") for k in range(3)]
FOREIGN: RunKey = ("workload1", "target", "another")


def _entry(key: RunKey, index: int) -> RoundEntry:
    workload, target, run = key
    return {
        "kind": "round", "workload": workload, "target": target, "run": run, "round": index,
        "trials": 1, "lowered": 0, "failed": [],
    }  # fmt: skip


@given(
    st.lists(st.integers(0, 3), max_size=24),
)
@settings(max_examples=40, deadline=None)
def test_records_of_runs_follow_each_other(owners: list[int]) -> None:
    """`owners` are the runs whose rounds came one after the other, 3 for a run of others."""
    counts = [0, 0, 0, 0]
    entries = []
    for owner in owners:
        entries.append(_entry([*KEYS, FOREIGN][owner], counts[owner]))
        counts[owner] += 1
    ours = chain.from_iterable(
        (_entry(KEYS[k], index) for index in range(counts[k])) for k in range(3)
    )
    wanted = [
        entry if owner == 3 else next(ours) for owner, entry in zip(owners, entries, strict=True)
    ]
    with TemporaryDirectory() as folder:
        path, plain = Path(folder) / "ledger.jsonl", Path(folder) / "plain.jsonl"
        with Ledger(plain) as ledger:
            ledger.append(wanted)
        with Ledger(path) as ledger:
            ledger.append(entries)
            ledger.arrange(KEYS)
            assert ledger.records == wanted
            assert path.read_bytes() == plain.read_bytes()
            before = path.stat().st_ino
            ledger.arrange(KEYS)
            assert path.stat().st_ino == before
            ledger.append([_entry(FOREIGN, 99)])
        assert read(path).records == [*wanted, _entry(FOREIGN, 99)]
