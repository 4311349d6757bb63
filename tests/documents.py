"""Reads the documentation pages, the commands on them, and the outputs that they show.

Commands are in fenced blocks named `sh`, Python code in blocks named `python`. A test runs the
blocks of a page in order, in one folder. A comment on the line before a block says why it is not
run:

    <!-- not run here: needs a board -->

A block named `text` directly after an executed block shows its output. A line `…` in the output
stands for any number of lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
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
"""The allowed reasons for not running a block."""
RUN = ("sh", "python")
CUT = "…"
"""Line that stands for the lines that a page leaves out of an output."""
TOLERANCE = 0.1
"""Allowed relative difference of a number in an output, because float sums are rounded differently
on different CPUs. Words must be equal."""
OF_ERRORS = 0.2
"""Allowed relative difference of the error of an int8 network on one sample. The error is 0.054
with AVX2 and 0.064 with AVX-512, because single values are rounded to other integers."""
_FENCE = re.compile(
    r"(?:^ *<!-- not run here: (?P<reason>[^>]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$"
    r"(?P<output>\n\n(?P=indent)```text\n(?P<shown>.*?)^(?P=indent)```$)?",
    re.MULTILINE | re.DOTALL,
)
_PROGRAM = r"(?:\.venv/bin/)?(?:tilewright|make|pip|prefect|mlflow|docker|curl|python3?)"
_UNFENCED = re.compile(
    rf"^(?: {{4,}}|\t)(?:\$ )?(?:sudo )?(?:{_PROGRAM} \S|export \w+=)", re.MULTILINE
)
_VOLATILE = re.compile(r"https?://\S+|\d[\d.,]* ?(?:s|ms|min|a second)\b")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of commands on a documentation page.

    `reason` says why the block is not run, or is None. `shown` is the output that the page shows.
    """

    page: Path
    language: str
    text: str
    reason: str | None
    shown: str | None

    @property
    def commands(self) -> list[str]:
        """The command lines without comments. Continued lines are joined.

        A block with a here-document is one command.
        """
        text = self.text.replace("\\\n", " ")
        if "<<" in text:
            return [text]
        results = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
        return [line for line in results if line]


def pages() -> list[Path]:
    """Return all documentation pages except the changelog."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
    ]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of commands of a page in order."""
    return [
        Block(
            page, match["language"], _dedented(match["text"], match["indent"]), match["reason"],
            None if match["shown"] is None else _dedented(match["shown"], match["indent"]),
        )
        for match in _FENCE.finditer(page.read_text())
        if match["language"] in RUN
    ]  # fmt: skip


def strays(page: Path) -> list[str]:
    """Return commands of a page that are outside such blocks, except those inside a paragraph."""
    text = page.read_text()
    others = _FENCE.sub(lambda result: "" if result["language"] in RUN else result["text"], text)
    wild = re.findall(
        rf"^\s*(?:\$ )?{_PROGRAM} -?\w.*$", "".join(_other_fences(text)), re.MULTILINE
    )
    return [match[0].strip() for match in _UNFENCED.finditer(others)] + wild


def _other_fences(text: str) -> list[str]:
    finditer = _FENCE.finditer(text)
    return [item["text"] for item in finditer if item["language"] not in RUN]


def _dedented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


# -- outputs -----------------------------------------------------------------------------------


def tidy(printed: str) -> list[str]:
    """Return the lines of an output without progress messages, which only a slow machine prints."""
    lines = [line.rstrip() for line in printed.splitlines()]
    lines = [line for line in lines if not line.startswith(f"{CUT} ")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def differences(shown: str, printed: str) -> list[str]:
    """Compare the output on a page with the printed one. Return differing lines as a diff."""
    expected, result = tidy(shown), tidy(printed)
    if CUT in expected:
        first = expected.index(CUT)
        rest = len(expected) - first - 1
        if len(result) < first + rest:
            return [f"- {line}" for line in expected] + [f"+ {line}" for line in result]
        del expected[first]
        result = [*result[:first], *result[len(result) - rest :]]
    wrong = []
    for one, other in zip_longest(expected, result, fillvalue=""):
        if not _alike(one, other):
            wrong += [f"- {one}", f"+ {other}"]
    return wrong


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    one, other = (_VOLATILE.sub("", line) for line in (one, other))
    words, others = (re.sub(r"─+|█+", "─", _NUMBER.sub("0", line)).split() for line in (one, other))
    return words == others and all(
        abs(a - b) <= (OF_ERRORS if "relative error" in one else TOLERANCE) * max(a, b)
        for a, b in zip(_numbers(one), _numbers(other), strict=True)
    )


def _numbers(line: str) -> list[float]:
    return [float(match.replace(",", "")) for match in _NUMBER.findall(line)]


def renewed(page: str, printed: list[str | None]) -> str:
    """Return the page's text with new outputs for its blocks; None means a block is not run.

    An output that still matches is left unchanged, and a block without output shows none. If the
    page shortens an output, as many lines before and after the cut are kept.
    """
    outputs = iter(printed)

    def block(found: re.Match[str]) -> str:
        if found["language"] not in RUN or (output := next(outputs)) is None:
            return found[0]
        whole = found[0][: -len(found["output"])] if found["output"] else found[0]
        shown = _dedented(found["shown"] or "", found["indent"])
        if not differences(shown, output):
            return found[0]
        lines, before = tidy(output), tidy(shown)
        if CUT in before:
            first = before.index(CUT)
            lines = [*lines[:first], CUT, *lines[len(lines) - (len(before) - first - 1) :]]
        if not lines:
            return whole
        text = "".join(f"{found['indent']}{line}".rstrip() + "\n" for line in lines)
        return f"{whole}\n\n{found['indent']}```text\n{text}{found['indent']}```"

    return _FENCE.sub(block, page)
