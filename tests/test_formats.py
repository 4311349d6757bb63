"""Checks that the table of file formats agrees with writers, readers and documentation."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

from typer.testing import CliRunner

from tilewright.cli.app import app
from tilewright.core.formats import FORMATS, NETWORK, Format

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "file-formats.md"


def test_the_version_names_all_formats() -> None:
    done = CliRunner().invoke(app, ["--version", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == ["tilewright", "python", "formats"]
    assert (document["tilewright"], document["python"]) == (
        version("tilewright"),
        platform.python_version(),
    )
    assert set(document["formats"]) == set(FORMATS)
    for name, about in document["formats"].items():
        assert list(about) == ["file", "key", "written", "read", "without_key", "otherwise"], name
    assert document["formats"]["artifact"] | {"otherwise": ""} == {
        "file": "manifest.json", "key": "version", "written": 3, "read": [2, 3],
        "without_key": None, "otherwise": "",
    }  # fmt: skip


def test_the_short_version_stays_and_json_needs_it() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout == f"tilewright {version('tilewright')}\n"
    assert runner.invoke(app, ["--json", "--version"]).stdout.startswith("{")
    lost = runner.invoke(app, ["--json", "zoo"])
    assert (lost.exit_code, lost.stdout) == (2, "")
    assert "write it after the command" in lost.stderr


def test_the_page_has_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert lines == [_row(name, format_) for name, format_ in FORMATS.items()]


def _row(name: str, each: Format) -> str:
    read = ", ".join(map(str, each.read)) or "–"
    unmarked = "–" if each.unmarked is None else str(each.unmarked)
    return (
        f"| `{name}` | `{each.file}` | `{each.key}` | {each.written} | {read} | {unmarked} "
        f"| {each.otherwise} |"
    )


def test_what_is_written_is_read_and_a_silent_version_is_the_first() -> None:
    for name, format_ in FORMATS.items():
        assert not format_.read or format_.written in format_.read, name
        assert format_.unmarked is None or not format_.read or format_.unmarked in format_.read, (
            name
        )
        assert not format_.silent or format_.written == format_.unmarked == 1, name


def test_the_runtime_on_a_board_reads_what_is_written() -> None:
    source = ROOT / "tilewright" / "targets" / "vta" / "board" / "runtime" / "tilewright.c"
    match = re.search(r"FORMAT_VERSION = (\d+)", source.read_text())
    assert match is not None
    assert int(match[1]) == NETWORK.written
