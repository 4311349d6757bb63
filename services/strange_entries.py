"""What has no business in a folder of records: links, which lead elsewhere, pipes and devices."""

from __future__ import annotations

import os
from pathlib import Path


def strange_entry(*folders: Path) -> str | None:
    """Says of the first link, pipe or device in these folders what it is; None if there is none.
    Folders that are not there hold none. Raises `OSError`."""
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        return f"{entry.path} is a link"
                    if not entry.is_dir() and not entry.is_file():
                        return f"{entry.path} is neither a file nor a folder"
        except FileNotFoundError:
            continue
    return None
