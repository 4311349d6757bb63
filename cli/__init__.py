"""The command line: one module a group of commands; heavy imports wait until a command runs."""

from cli.app import command, main

__all__ = ["command", "main"]
