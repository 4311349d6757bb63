"""Help texts that list commands and options in groups.

Typer would draw groups ("panels") in boxes of Rich. The help texts here are plain, because they are
also read in pipes, by screen readers and in narrow terminals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from typer.core import TyperCommand, TyperGroup

Rows = list[tuple[str, str]]


class Formatter(Protocol):
    """The methods of Typer's help formatter that are used here. Typer does not export its class."""

    width: int

    def section(self, name: str) -> AbstractContextManager[None]:
        """Return a context that prints a title and indents the lines within the context."""

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write rows of two columns."""


class GroupedCommand(TyperCommand):
    """A command that lists its options in groups with titles."""

    def format_options(self, ctx: Any, formatter: Formatter) -> None:
        """Write the arguments, then one section per group of options.

        The groups appear in the order in which the command's options first name them. Options
        without a group come last.
        """
        arguments, options = Rows(), Rows()
        groups: dict[str, Rows] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            group: str | None = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                arguments.append(record)
            elif group is None:
                options.append(record)
            else:
                groups.setdefault(group, []).append(record)
        _write(formatter, {"Arguments": arguments, **groups, "Options": options})


class GroupedCommands(TyperGroup):
    """A group of commands whose help text lists the commands in groups with titles."""

    def format_commands(self, ctx: Any, formatter: Formatter) -> None:
        """Write one section per group of commands.

        The groups appear in the order in which the commands first name them.
        """
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in shown if not command.hidden]
        width = formatter.width - 6 - max(len(name) for name, _ in shown)
        groups: dict[str, Rows] = {}
        for name, command in shown:
            title: str | None = getattr(command, "rich_help_panel", None)
            row = name, command.get_short_help_str(width)
            groups.setdefault(title or "Commands", []).append(row)
        _write(formatter, groups)


def _write(formatter: Formatter, sections: Mapping[str, Rows]) -> None:
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
