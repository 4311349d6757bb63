"""The command line, and the only place that knows a terminal.

commands/   a module a group of commands: their options, and the order of the work
views/      what they show: tables, progress, closing lines

Heavy imports, views among them, wait until a command runs.
"""

from cli.app import command, main

__all__ = ["command", "main"]
