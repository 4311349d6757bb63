"""Checks that every notebook runs from first to last cell, and is committed without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.examples.test_examples import EXAMPLES
from tests.sharing import OURS

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


PRINTED = {
    "add_a_target": ["round 3:"],
    "ask_logged_models": [
        "Model V: validity, predicts probability of being valid",
        "as a multiple",
        "24 trials",
    ],
    "tune_a_layer": ["round 3:"],
}
"""Texts that the output of each notebook must contain."""


def test_there_is_one_for_each_of_these() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PRINTED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.nightly(seconds=8)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    # connect by socket files, because every user of the machine could connect to a port
    manager = AsyncKernelManager(
        kernel_name="python3", transport="ipc", ip=str(tmp_path / "kernel")
    )
    client = NotebookClient(
        notebook, km=manager, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    )
    assert all(text in printed for text in PRINTED[path.stem]), printed
    tracked = path.stem == "ask_logged_models"  # others need no server
    assert bool(list(tmp_path.glob(".tilewright"))) == tracked
