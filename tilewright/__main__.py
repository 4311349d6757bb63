"""Runs the command line as `python -m tilewright`."""

from tilewright.cli import command

if __name__ == "__main__":
    command()
