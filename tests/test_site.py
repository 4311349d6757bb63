"""Tests what the site generator adds to pages: rewritten links, command references, examples."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import typer.main

from tests.documents import ROOT
from tilewright.cli.app import app
from tilewright.tuning.options import TuningOptions


def _of_the_site(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


hooks = _of_the_site("hooks")
doctests = _of_the_site("doctests")


def test_links_lead_to_pages_and_files_without_a_page_are_text() -> None:
    assert hooks.turned("[a](docs/guides/cpu.md#x)", "README.md") == "[a](guides/cpu.md#x)"
    assert hooks.turned("[a](docs/decisions)", "README.md") == "[a](decisions/README.md)"
    assert hooks.turned("[a](flows/tuning.py), [b](gone.md)", "README.md") == "a, [b](gone.md)"
    text = "[a](../../README.md), [b](../reference/glossary.md)"
    turned = hooks.turned(text, "docs/guides/cpu.md")
    assert turned == "[a](../index.md), [b](../reference/glossary.md)"


def _commands(command: Any, name: str) -> Iterator[str]:
    yield name
    for item, result in getattr(command, "commands", {}).items():
        yield from _commands(result, f"{name} {item}")


def test_the_reference_has_every_command_and_its_options() -> None:
    text = hooks.commands()
    for name in list(_commands(typer.main.get_command(app), "tilewright"))[1:]:
        assert f"# `{name}`\n" in text
    assert "* `--stop-gain SHARE`: " in text
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert page.count(hooks.COMMANDS) == 1


def test_a_table_of_options_has_every_field() -> None:
    text = hooks.options_table("tilewright.tuning.options", "TuningOptions")
    assert len(text.splitlines()) == 2 + len(TuningOptions.model_fields)
    assert "| `trials` | `int` | `64` | Measurements per workload. |" in text
    pages = (ROOT / "docs" / "reference").rglob("*.md")
    assert sum(len(hooks.OPTIONS.findall(page.read_text())) for page in pages) >= 2


def test_examples_of_docstrings_are_code() -> None:
    result = doctests.fenced("Add.\n\n>>> f(1)\n2\n\nMore.")
    assert result == "Add.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."
