"""The pages of the site, and the commands on them.

A block of commands is fenced and named `sh`, one of Python `python`. A test runs it as it stands
there, those of a page in order in one folder, unless the line before it says why not:

    <!-- not run here: needs a board -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REASONS = {
    "changes the environment",
    "names files of yours",
    "needs PyTorch",
    "needs a board",
    "needs a cluster of your own",
    "needs a server of your own",
    "needs the network",
    "part of a program",
    "takes hours",
    "takes minutes",
}
"""Why a block may stay unrun. `tests/test_readme.py` runs what the README has."""
RUN = ("sh", "python")
_FENCE = re.compile(
    r"(?:^ *<!-- not run here: (?P<reason>[^>]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PROGRAM = r"(?:\.venv/bin/)?(?:tilewright|make|pip|prefect|mlflow|docker|curl|python3?)"
_UNFENCED = re.compile(
    rf"^(?: {{4,}}|\t)(?:\$ )?(?:sudo )?(?:{_PROGRAM} \S|export \w+=)", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """Commands of a page. `reason` is why they are not run, if they are not."""

    page: Path
    language: str
    text: str
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """Lines, those that go on in the next joined, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        found = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
        return [line for line in found if line]


def pages() -> list[Path]:
    """Every text of the site but the README and the list of changes."""
    return [
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
    ]


def blocks(page: Path) -> list[Block]:
    """Those of commands, of a page, in order."""
    return [
        Block(page, found["language"], _dedented(found["text"], found["indent"]), found["reason"])
        for found in _FENCE.finditer(page.read_text())
        if found["language"] in RUN
    ]


def strays(page: Path) -> list[str]:
    """Commands of a page in no such block, but for those in a line of text."""
    text = page.read_text()
    others = _FENCE.sub(lambda found: "" if found["language"] in RUN else found["text"], text)
    wild = re.findall(
        rf"^\s*(?:\$ )?{_PROGRAM} -?\w.*$", "".join(_other_fences(text)), re.MULTILINE
    )
    return [found[0].strip() for found in _UNFENCED.finditer(others)] + wild


def _other_fences(text: str) -> list[str]:
    found = _FENCE.finditer(text)
    return [each["text"] for each in found if each["language"] not in RUN]


def _dedented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
