"""Display of what `tilewright clean` removes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tilewright.cli.views.terminal import print_line
from tilewright.reports.number_format import count_text
from tilewright.services.retention import UnusedCache
from tilewright.services.workspace import Workspace


def show_removable(
    console: Console, workspace: Workspace, cache: UnusedCache, runs: int, freed: int | None,
    compacted: Mapping[Path, int | None],
) -> None:  # fmt: skip
    """Show what `tilewright clean` can remove or has removed.

    Args:
        console: the terminal.
        workspace: the workspace.
        cache: cached stages that no command used recently.
        runs: number of Prefect's records of ended runs.
        freed: number of freed bytes; None if nothing was removed.
        compacted: number of bytes that each database returned to the file system; None if another
            process uses the database.
    """
    done = freed is not None
    size = cache.size if freed is None else freed
    files = count_text(len(cache.files), "file")
    print_line(console, f"cached results {_mb(size)} in {files}, of {_mb(cache.whole)}")
    print_line(console, f"Prefect        {count_text(runs, 'run')} that ended")
    for path in (workspace.prefect_database, workspace.mlflow_database):
        given = compacted.get(path)
        now = f"{_mb(path.stat().st_size)} on disk" if path.is_file() else "nothing on disk"
        note = ""
        if done:
            note = ", in use: not compacted" if given is None else f", {_mb(given)} given back"
        print_line(console, f"{path.name:14} {now}{note}")
    if not done:
        print_line(
            console, "nothing was removed; repeat the command with --yes to remove the files"
        )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
