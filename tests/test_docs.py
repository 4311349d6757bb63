"""Runs every command on the documentation pages, unless the page says why it cannot be run.

The outputs on the pages must match. `pytest --update-golden tests/test_docs.py` updates them; look
at the diff before committing it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main

from tests import warm
from tests.documents import (
    REASONS,
    ROOT,
    Block,
    blocks,
    differences,
    pages,
    renewed,
    strays,
    tidy,
)
from tests.examples.test_examples import installed
from tests.sharing import OURS

SECONDS = {
    "README.md": 20,
    "docs/explanation/cpu-library.md": 4,
    "docs/guides/artifact.md": 10,
    "docs/guides/codesign.md": 9,
    "docs/guides/compare-tuners.md": 9,
    "docs/guides/cpu.md": 5,
    "docs/guides/dashboard.md": 9,
    "docs/guides/own-hardware.md": 4,
    "docs/guides/own-model.md": 8,
    "docs/guides/quantise.md": 5,
    "docs/guides/read-results.md": 5,
    "docs/guides/sweep.md": 12,
    "docs/guides/tvm.md": 3,
    "docs/reference/file-formats.md": 1,
    "docs/reference/python/index.md": 5,
    "docs/reference/tuners.md": 1,
    "docs/tutorials/first-network.md": 18,
    "docs/tutorials/network-to-board.md": 6,
    "docs/tutorials/nightly-runs.md": 40,
    "docs/tutorials/write-a-target.md": 6,
    "docs/tutorials/write-a-tuner.md": 9,
}
"""Pages whose commands are run, with the seconds that this takes."""
PACKAGES = {
    "docs/tutorials/write-a-target.md": ("roofline",),
    "docs/tutorials/write-a-tuner.md": ("greedy",),
}
"""Examples that are installed for a page. The commands of the page run in a new Python process."""
NIGHTLY = {
    "README.md",
    "docs/guides/cpu.md",
    "docs/reference/python/index.md",
    "docs/guides/artifact.md",
    "docs/guides/codesign.md",
    "docs/guides/compare-tuners.md",
    "docs/guides/own-model.md",
    "docs/guides/quantise.md",
    "docs/guides/read-results.md",
    "docs/guides/sweep.md",
    "docs/tutorials/first-network.md",
    "docs/tutorials/network-to-board.md",
    "docs/tutorials/nightly-runs.md",
    "docs/tutorials/write-a-target.md",
    "docs/tutorials/write-a-tuner.md",
}
"""Slow pages that run only at night. Other, shorter tests cover their commands."""
RECORDED = {"docs/guides/dashboard.md", "docs/tutorials/nightly-runs.md"}
"""Pages with Prefect runs. Their commands use a server that is already running."""
LONG = {
    "docs/guides/codesign.md": 150,
    "docs/guides/compare-tuners.md": 700,
    "docs/guides/cpu.md": 1500,
    "docs/guides/fusion.md": 520,
    "docs/guides/gemmini.md": 200,
    "docs/guides/mlflow-and-prefect.md": 150,
    "docs/guides/transfer.md": 600,
}
"""Pages with blocks that take minutes, and the seconds of these blocks. The blocks run at night,
and their output is not compared."""
BETWEEN = "\x1e"
"""Separator between the outputs of a page's Python blocks, which run as one program."""
SHELL = re.compile(r"[|<>;&$`*]")
ALL = [block for page in pages() for block in blocks(page)]
FILES = [
    path.relative_to(ROOT).as_posix()
    for room in (
        "tilewright",
        "flows",
        "tasks",
        "models",
        "benchmarks",
        "examples",
        "deployments",
        "tests",
        "docs",
    )
    for path in (ROOT / room).rglob("*.*")
]


def _title(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- which blocks are run ----------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=_title)
def test_commands_are_run_or_say_why_not(page: Path) -> None:
    assert strays(page) == []
    assert {block.reason for block in blocks(page)} - {None} <= REASONS


def test_the_pages_that_are_run() -> None:
    assert {_title(block.page) for block in ALL if block.reason is None} == set(SECONDS)


def _unrun() -> list[Block]:
    return [block for block in ALL if block.reason and block.language == "sh"]


@pytest.mark.parametrize(
    "block", _unrun(), ids=lambda block: f"{block.page.name}: {block.text[:30]}"
)
def test_what_is_not_run_names_what_there_is(block: Block) -> None:
    """Blocks that are not run may only name existing commands, options, targets and files."""
    makefile = (ROOT / "Makefile").read_text()
    for command in block.commands:
        words = shlex.split(command)
        program = Path(words[0]).name
        if program == "tilewright":
            _check_options(words[1:])
        elif program == "make" and "-C" not in words:
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in targets)
        elif program.startswith("python") and words[1] == "-m" and words[2] != "venv":
            assert find_spec(words[2]) is not None, words[2]
        for word in words[1:]:
            if word.startswith(("deployments/", "examples/", "./examples/")):
                assert (ROOT / word).exists(), word


def _check_options(words: list[str]) -> None:
    """Raise the command line's error if the words contain an unknown option."""
    from tilewright.cli.app import app

    command = typer.main.get_command(app)
    context = click.Context(command)
    while hasattr(command, "commands"):
        result = command.commands.get(words[0])
        assert result is not None, f"no command {words[0]}"
        command, words = result, words[1:]
        context = click.Context(command, parent=context)
    known = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known, given - known


# -- running the blocks ------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Return a folder with the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            n, marks=(pytest.mark.nightly if n in NIGHTLY else pytest.mark.slow)(seconds=s)
        )
        for n, s in SECONDS.items()
    ],
)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(
    name: str, workplace: Path, request: pytest.FixtureRequest
) -> None:
    """The commands run first, and then the Python blocks, which read their results."""
    packages = [installed(item, workplace) for item in PACKAGES.get(name, ())]
    environment = _environment(workplace, packages)
    if name in RECORDED:
        environment |= request.getfixturevalue("prefect_server").settings
    mine = [block for block in ALL if _title(block.page) == name]
    printed: dict[int, str] = {}
    for k, block in enumerate(mine):
        if block.reason is None and block.language == "sh":
            outputs = [
                _output(command, workplace, environment, bool(packages))
                for command in block.commands
            ]
            printed[k] = "\n\n".join(filter(None, outputs))
    python = [k for k, block in enumerate(mine) if k not in printed and block.reason is None]
    if python:
        program = f"\nprint({BETWEEN!r}, flush=True)\n".join(mine[k].text for k in python)
        done = warm.run(["-c", program], workplace, environment, timeout=600, program=program)
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
        printed |= dict(zip(python, done.stdout.split(f"{BETWEEN}\n"), strict=True))
    if request.config.getoption("--update-golden"):
        page = ROOT / name
        page.write_text(renewed(page.read_text(), [printed.get(k) for k in range(len(mine))]))
        return
    for k, text in printed.items():
        wrong = differences(mine[k].shown or "", text)
        assert not wrong, "\n".join([mine[k].text, *wrong, "pytest --update-golden renews it"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly(seconds=s)) for n, s in LONG.items()]
)
def test_the_blocks_that_take_minutes_run(name: str, workplace: Path) -> None:
    environment = _environment(workplace, [])
    mine = [block for block in ALL if _title(block.page) == name]
    run = [block for block in mine if block.reason == "takes minutes" and block.language == "sh"]
    assert run
    image = np.zeros((1, 3, 224, 224), np.float32)
    np.savez(workplace / "image.npz", input=image)  # which docs/guides/cpu.md runs a network on
    for block in run:
        for command in block.commands:
            _output(command, workplace, environment, False, timeout=3600)


def _output(
    command: str, folder: Path, environment: dict[str, str], own_python: bool, timeout: int = 600
) -> str:
    """Return the output of a command on both streams. The command must succeed."""
    words = [] if SHELL.search(command) else shlex.split(command)
    if words[:1] == ["tilewright"] and not own_python:
        done = warm.run(words[1:], folder, environment, timeout=timeout)
    else:
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return "\n".join(tidy(f"{done.stdout}{done.stderr}".replace(f"{folder}/", "")))


def _environment(folder: Path, packages: list[Path]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    paths = [str(ROOT), *map(str, packages), kept.get("PYTHONPATH", "")]
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TILEWRIGHT_HOME": str(folder / ".tilewright"),
    }


# -- outputs and paths on the pages ------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("a  1,200 cycles\n──\n…\nin 3 s", "a 1,203 cycles\n───\nx\ny\nin 70 s\n", True),
        ("a 1,200 cycles", "a 1,400 cycles", False),
        ("best 1", "worst 1", False),
        ("a\n…\nb", "a\nb", True),
        ("a\n…\nb", "a", False),
        ("a", "… importing, for 3 s so far\na\n", True),
        ("a", "a\nb", False),
    ],
)
def test_an_output_may_differ_in_small_numbers_and_times(
    shown: str, printed: str, alike: bool
) -> None:
    assert (differences(shown, printed) == []) == alike


def test_outputs_are_put_behind_the_blocks_that_are_run() -> None:
    page = "```sh\na\n```\n\n```text\nold\n…\n```\n\n```python\nb\n```\n\n```text\nfree\n```\n"
    assert renewed(page, ["1\n2\n3\n", None]) == page.replace("old", "1")
    assert renewed("```sh\na\n```\n", ["out\n"]) == "```sh\na\n```\n\n```text\nout\n```\n"
    assert renewed("```sh\na\n```\n\n```text\nold\n```\n", [""]) == "```sh\na\n```\n"


@pytest.mark.parametrize("page", pages(), ids=_title)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|c|h|yaml|ipynb|md))`", page.read_text()))
    assert {
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in FILES)
    } == set()
