"""One record of a ledger as one line: `{"check":"<16 hex>","record":{…}}`, where the check is
BLAKE2b-64 of the record's bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Record = dict[str, Any]

_HEAD, _MIDDLE, _TAIL = b'{"check":"', b'","record":', b"}"
_START = len(_HEAD) + 16 + len(_MIDDLE)
_RUN = {"run": str, "workload": str, "target": str, "round": int}
FIELDS: dict[str, dict[str, Any]] = {
    "trial": _RUN
    | {"slot": int, "config": list, "knobs": dict, "status": str, "reason": str, "cycles": int}
    | {"seconds": (int, float, type(None))},
    "round": _RUN | {"trials": int, "lowered": int, "failed": list},
    "claim": {"claim": str, "configs": list},
    "settled": {"claim": str, "kept": int},
}
"""What a record of each kind must hold."""


def encode(record: Record) -> bytes:
    """One line, with its newline."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD + _check(body) + _MIDDLE + body + _TAIL + b"\n"


def decode(line: bytes) -> tuple[list[Record], bool]:
    """The intact records in a line, and whether the line was nothing but one of them. A damaged
    newline leaves two records in a line; both are found."""
    if record := _intact(line):
        return [record], True
    pieces = (_HEAD + piece for piece in line.split(_HEAD)[1:])
    ends = (piece[: piece.rfind(_TAIL) + 1] for piece in pieces)
    return [record for end in ends if (record := _intact(end))], False


def _intact(line: bytes) -> Record | None:
    body = line[_START : -len(_TAIL)]
    if line != _HEAD + _check(body) + _MIDDLE + body + _TAIL:
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if _well_formed(record) else None


def _well_formed(record: object) -> bool:
    """Whether a record has what its kind needs; a check anyone can compute proves no more."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    fields = FIELDS.get(record["kind"], {})
    if not all(isinstance(record.get(name), kinds) for name, kinds in fields.items()):
        return False
    rows = [record.get("config", []), *record.get("failed", []), *record.get("configs", [])]
    return all(
        isinstance(row, list) and all(type(i) is int and abs(i) < 1 << 31 for i in row)
        for row in rows
    )


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()
