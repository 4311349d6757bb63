"""Kills the writing of an artifact at every file change, repeats it, and reports the outcome.

`python -m tests.reliability.killed_build FOLDER` prints JSON. Every write runs in a fork of this
process, which starts no thread.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.reliability.boundaries import NEVER, Boundaries, report_unwatched_writers
from tests.reliability.killed_everywhere import forked
from tilewright.networks.artifact import ArtifactError, in_the_way
from tilewright.networks.artifact.manifest import read_files, read_manifest, write_folder

FILES = {"a.bin": b"a" * 3000, "b.bin": b"", "cpu/c.so": b"code"}
EARLIER = {"a.bin": b"old", "old.bin": b"old", "runtime/main.c": b"old"}
MANIFEST, NOTES = "manifest.json", "notes.txt"


def write(folder: Path, kill_at: int = NEVER) -> Boundaries:
    unwatched = report_unwatched_writers([folder])
    boundaries = Boundaries([folder], kill_at)
    boundaries.install()
    write_folder(folder, FILES, {"network": "new"})
    assert not unwatched, f"written in a way the boundaries do not see: {unwatched}"
    return boundaries


def prepare(folder: Path, earlier: bool) -> None:
    """Remove the folder, or make one with an earlier artifact and a file of the user."""
    shutil.rmtree(folder, ignore_errors=True)
    if earlier:
        write_folder(folder, EARLIER, {"network": "old"})
        (folder / NOTES).write_text("mine")


def contents(folder: Path) -> dict[str, bytes]:
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip
    # The signature depends on the folder, so it differs in another one.
    pattern = rb'"(signature|sha256)": "[0-9a-f]{64}"'
    if MANIFEST in contents and b'"signature"' in contents[MANIFEST]:
        head, mark, tail = contents[MANIFEST].partition(b'"signature"')
        contents[MANIFEST] = head + re.sub(pattern, b"", mark + tail)
    return contents


def whole(folder: Path) -> str:
    """Return the network of the complete artifact in the folder, or "" if there is none."""
    try:
        manifest = read_manifest(folder)
        read_files(folder, manifest)
    except ArtifactError:
        return ""
    return str(manifest["network"])


def problem(folder: Path, earlier: bool, kill_at: int, wanted: dict[str, bytes]) -> str:
    prepare(folder, earlier)
    if forked(lambda: write(folder, kill_at)) != -signal.SIGKILL:
        return "was not killed"
    if whole(folder) == "new" and any(contents(folder).get(n) != d for n, d in FILES.items()):
        return "claims to be whole"
    if folder.exists() and (blocked := in_the_way(folder)):
        return f"is refused: {blocked}"
    if forked(lambda: write(folder)) != 0:
        return "is not written again"
    if contents(folder) != wanted:
        return f"holds {sorted(contents(folder))}"
    return ""


def main(root: Path) -> dict[str, Any]:
    report: dict[str, Any] = {}
    folder, answer = root / "art", root / "places.json"
    for name, earlier in (("empty", False), ("over another", True)):
        prepare(folder, earlier)
        assert forked(lambda: write(folder).places, answer) == 0
        places, wanted = json.loads(answer.read_text()), contents(folder)
        failures = {
            f"{kill_at}: {place}": result
            for kill_at, place in enumerate(places)
            if (result := problem(folder, earlier, kill_at, wanted))
        }
        report[name] = {"boundaries": len(places), "failures": failures, "files": sorted(wanted)}
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
