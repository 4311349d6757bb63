"""Reader for ledgers, the files in which earlier versions stored the trials of an output directory.

A ledger has one JSON record with a checksum per line. The records are trials, ends of rounds,
validation measurements and claims (configs that a process was about to measure). Only trials and
rounds are read. Claims are obsolete, and a resumed run repeats the validation of its final choice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.core.files import as_object, read_json, read_plain
from tilewright.core.formats import LEDGER
from tilewright.search.task import RunKey
from tilewright.search.trial_rows import Rejected, RoundRow, TrialRow, check_rows

LEDGERS = ("ledger.jsonl", "trials.ledger")
MAX_LINE_BYTES = 16 << 20


@dataclass
class LedgerContents:
    """Contents of a ledger.

    The key of a run consists of the workload's ID, the target's fingerprint and the run's ID.

    Attributes:
        trials: pairs of a run's key and the database columns of a trial, by name.
        rounds: pairs of a run's key and the database columns of a round, by name.
        rejected: records that cannot be used, each with the reason.
        refusal: error message if the ledger has an unsupported version, else "".
    """

    trials: list[tuple[RunKey, dict[str, Any]]] = field(default_factory=list)
    rounds: list[tuple[RunKey, dict[str, Any]]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    refusal: str = ""


def read_ledger(path: Path) -> LedgerContents:
    """Read the trials and rounds of a ledger.

    If a record was written again after a crash, the later record replaces the earlier one. Invalid
    records do not cause an error; they are listed in the result.

    Args:
        path: the ledger file.

    Raises:
        UnsafeFile: the path is not a plain file.
        OSError: the file cannot be read.
    """
    contents = LedgerContents()
    ledger: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, record in enumerate(_records(path), start=1):
        line = f"line {number} of {path.name}"
        if isinstance(record, str):
            contents.rejected.append(({}, f"{line}: {record}"))
            continue
        kind = record.get("kind")
        key = tuple(str(record.get(name, ""))[:500] for name in ("workload", "target", "run"))
        if kind == "ledger":
            contents.refusal = LEDGER.refusal(path, record.get(LEDGER.key))
        if kind not in ("trial", "round"):
            continue
        texts = {"repeats": [], "errors": {}, "compiled": []} | record
        texts = {name: json.dumps(texts.get(name), separators=(",", ":")) for name in _JSON}
        row = {"id": number} | record | texts
        checked = check_rows(TrialRow, [row]) if kind == "trial" else check_rows(RoundRow, [row])
        contents.rejected += [(bad, f"{line}: {reason}") for bad, reason in checked[1]]
        if checked[0]:  # a record may be repeated after a crash; the later one replaces the earlier
            columns = checked[0][0].keys() - {"id"}
            ledger[kind, key, row["round"], row.get("slot")] = {name: row[name] for name in columns}
    for (kind, key, *_), row in ledger.items():
        (contents.trials if kind == "trial" else contents.rounds).append((key, row))
    return contents


_JSON = ("config", "knobs", "failed", "repeats", "errors", "compiled")


def _records(path: Path) -> Iterator[dict[str, Any] | str]:
    """Yield the parsed record of each line, or an error message if the line is invalid.

    The last line is ignored if it has no newline, because it was not written completely.
    """
    for line in read_plain(path).split(b"\n")[:-1]:
        head, middle = b'{"check":"', b'","record":'
        body = line[len(head) + 16 + len(middle) : -1]
        check = hashlib.blake2b(body, digest_size=8).hexdigest().encode()
        if len(line) > MAX_LINE_BYTES or line != head + check + middle + body + b"}":
            yield "its checksum does not match"
            continue
        try:
            yield dict(as_object(read_json(body)))
        except ValueError as error:
            yield f"{error!s:.200}"
