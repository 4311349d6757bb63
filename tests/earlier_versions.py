"""Unpacks files of earlier releases, and makes copies that claim a future format version."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.reliability.artifact_formats import sealed_text, signed_network
from tests.reliability.mutants import checked_line
from tests.trial_tables import rows
from tilewright.core.files import canonical, digest, pack_files, unpack_files
from tilewright.core.formats import FORMATS
from tilewright.search import open_store

PACKED = Path(__file__).parent / "data" / "earlier_versions"
RELEASES = ("0.1", "0.2")
FUTURE = 999


def unpack(release: str, folder: Path) -> Path:
    """Extract the files of a release into the folder. Return the folder."""
    with zipfile.ZipFile(PACKED / f"{release}.zip") as packed:
        packed.extractall(folder)
    return folder


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


def future_parquet(path: Path) -> None:
    """Set the format version of a Parquet file to one of the future.

    The formats of trials and of datasets use the same metadata key.
    """
    table = pq.read_table(path)
    about = {**(table.schema.metadata or {}), FORMATS["trials"].key: str(FUTURE)}
    pq.write_table(table.replace_schema_metadata(about), path)


def future_ledger(path: Path) -> None:
    path.write_bytes(
        checked_line(canonical({"kind": "ledger", "version": FUTURE})) + path.read_bytes()
    )


def future_store(folder: Path) -> None:
    """Import a ledger into a database and set the database's version to one of the future."""
    with open_store(folder):
        pass
    (folder / "ledger.jsonl").unlink()
    rows(folder, "update trial_store set value = ? where name = 'version'", str(FUTURE))


def future_artifact(folder: Path) -> None:
    """Set the version in an artifact's manifest to one of the future, with a correct digest."""
    manifest = json.loads((folder / "manifest.json").read_bytes()) | {"version": FUTURE}
    manifest.pop("sha256")
    (folder / "manifest.json").write_bytes(sealed_text(json.dumps(manifest).encode()))


def future_network(folder: Path) -> None:
    """Set the version in `network.bin` to one of the future, with correct digests."""
    network = bytearray((folder / "network.bin").read_bytes())
    network[8:12] = FUTURE.to_bytes(4, "little")
    data = signed_network(bytes(network))
    (folder / "network.bin").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest.pop("sha256")
    said = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["network.bin"] = said
    (folder / "manifest.json").write_bytes(sealed_text(json.dumps(manifest).encode()))


def future_program(data: bytes) -> bytes:
    """Return a module's program with a version of the future."""
    files = unpack_files(data)
    about = json.loads(files["program.json"]) | {"version": FUTURE}
    return pack_files({**files, "program.json": json.dumps(about).encode()})


def future_rows(path: Path) -> None:
    lines = [json.loads(line) | {"version": FUTURE} for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(canonical(line) + b"\n" for line in lines))


def future_state(data: bytes) -> bytes:
    """Return the stored state of a tuner with a version of the future."""
    files = unpack_files(data)
    about = json.loads(files["state.json"]) | {"version": FUTURE}
    return pack_files({**files, "state.json": json.dumps(about).encode()})


def future_record(data: bytes) -> bytes:
    """Return the stored result of a stage with a version of the future and a correct digest."""
    text = json.dumps(json.loads(data[64:]) | {"version": FUTURE}).encode()
    return digest(text).encode() + text


def future_champion(folder: Path) -> None:
    """Set the version in `MLmodel` to one of the future. MLflow writes this file beside a model."""
    text = (folder / "MLmodel").read_text()
    assert "  tilewright:\n" in text
    text = text.replace("  tilewright:\n", f"  tilewright:\n    version: {FUTURE}\n", 1)
    (folder / "MLmodel").write_text(text)
