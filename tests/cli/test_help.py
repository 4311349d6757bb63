"""Tests the help texts: commands and options are grouped, ordered and complete."""

from __future__ import annotations

import re

import typer
from typer.testing import CliRunner

from tilewright.cli.app import app
from tilewright.cli.help import GroupedCommands
from tilewright.tuning.options import USUAL, TrackingOptions, TuningOptions

TITLE = re.compile(r"^([A-Z][^\n]*):\n", re.MULTILINE)


def _sections(*words: str) -> dict[str, str]:
    """Return the sections of a help text by title."""
    shown = CliRunner().invoke(app, [*words, "--help"]).stdout
    _, *parts = TITLE.split(shown.partition("\n\n")[2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _names(section: str) -> list[str]:
    return re.findall(r"^  ([\w-]+)", section, re.MULTILINE)


def test_the_first_commands_are_those_of_a_first_session() -> None:
    sections = _sections()
    assert list(sections)[:2] == ["Options", "First steps"]
    assert _names(sections["First steps"]) == ["tune", "build", "run", "ui"]


def test_each_command_is_in_one_group() -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, GroupedCommands)
    visible = [name for name, item in command.commands.items() if not item.hidden]
    shown = [name for title, text in _sections().items() if title != "Options"
             for name in _names(text)]  # fmt: skip
    assert sorted(shown) == sorted(visible)


def test_the_usual_options_of_tune_come_first_and_none_is_left_out() -> None:
    sections = _sections("tune")
    assert list(sections)[:2] == ["Arguments", USUAL]
    assert {"--target", "--tuner", "--trials", "--out", "--seed", "--bare"} <= set(
        _names(sections[USUAL])
    )
    shown = {name for text in sections.values() for name in _names(text)}
    fields = {*TuningOptions.model_fields, *TrackingOptions.model_fields}
    assert len(shown) == len(fields) + len({"bare", "help"})


def test_the_groups_of_options_name_fields() -> None:
    named = [name for names in TuningOptions.option_groups.values() for name in names]
    assert set(named) <= set(TuningOptions.model_fields)
    assert len(named) == len(set(named))
