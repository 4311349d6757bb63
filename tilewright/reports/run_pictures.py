"""Draws the pictures of an output directory: `convergence.png`, and `fusion.html` where fusion was
decided."""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.reports.convergence import network_convergence
from tilewright.reports.fusion import fusion_page
from tilewright.tuning.output_dir import CONVERGENCE, FUSION_PAGE
from tilewright.tuning.outputs import TunedNetwork, trials_of


def draw_run(folder: Path, found: TunedNetwork) -> list[Path]:
    """Draw the pictures of a run into its output directory; returns their paths. Raises
    `OSError`."""
    trials = trials_of(folder, found.workloads)
    picture = network_convergence(found.summary["network"], found.workloads, trials)
    write_atomically(folder / CONVERGENCE, picture)
    return [folder / CONVERGENCE, *write_fusion_page(folder, found)]


def write_fusion_page(folder: Path, found: TunedNetwork) -> list[Path]:
    """Write `fusion.html` of a run that decided what is fused; returns its path. Raises
    `OSError`."""
    if found.decided is None:
        return []
    page = fusion_page(
        found.summary["network"], found.summary["target"], found.decided.summary,
        found.decided.file,
    )  # fmt: skip
    write_atomically(folder / FUSION_PAGE, page)
    return [folder / FUSION_PAGE]
