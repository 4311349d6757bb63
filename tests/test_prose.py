"""Pages, docstrings and messages use the field's words, in sentences that a reader can follow.

- A word of `PRIVATE` stands in no page and in no source file, be it in a name, a docstring, a
  comment or a message. Words of a name count one by one (`_give_seat` has `seat`).
- Sentences on the pages are short: half of them have `MEDIAN` words at most, and `LONG_SHARE` of
  them are long at most. No page is much harder than the others (`PAGE_MEDIAN`).
- The docstring of a module begins with a verb that says what the module does. Those of the product
  have at most `MODULE_SENTENCE` words a sentence.

Exceptions, each by file and word, are those of `ALLOWED`: keys of files that earlier versions
wrote, and names that other projects chose.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.documents import ROOT, pages

PRIVATE = {
    "afresh": "again, or a validation measurement",
    "artefacts?": "artifact",
    "by hand of": "by",
    "course": "trajectory, progress",
    "crown(?:s|ed|ing)?": "register as champion",
    "deal(?:s|t|er|ing)?": "schedule, scheduler",
    "foresee(?:s|n|ing)?": "preview, predict",
    "held against": "compared with, checked against",
    "holds? (?:it|them|one|each|a run|a tuner) against": "compare with",
    "kin": "comparable",
    "likest": "closest match",
    "output folders?": "output directory",
    "seat(?:s|ed)?": "task",
    "so much": "a quantity",
    "untuned": "baseline",
    "whoever": "the caller, the reader, whichever program",
    "is none(?! of)": "expected …",
}
"""Patterns of words that only this project used, and what to say instead."""
ALLOWED = Counter(
    {
        ("tilewright/tuning/read_run.py", "afresh"): 1,
        ("tests/cli/test_diff.py", "afresh"): 4,
        ("tests/networks/test_artifact.py", "artefact"): 1,
        ("tilewright/networks/artifact/folder.py", "artefact"): 1,
    }
)
PRODUCT = ("tilewright", "tasks", "flows", "models")
SOURCES = (*PRODUCT, "benchmarks", "examples", "deployments", "tests")
LONG = 35
"""Words of a sentence; beyond these it is long."""
LONG_SHARE = 0.003
"""Of the sentences on the pages, how many are long at most: as in Exo's and Kedro's docs."""
MEDIAN = 14
"""Words of the middle sentence on all pages at most. Exo's have 12, Kedro's 13."""
PAGE_MEDIAN = 20
"""Words of the middle sentence of a page with ten sentences or more."""
MODULE_SENTENCE = 25
"""Words of a sentence in the docstring of a module of the product at most."""

_VERB_FIRST = re.compile(r"(?!(?:Does|Is|Its|This|Was)\b)[A-Z][a-z]+s\b(?! of | are | whose |:)")
_PRIVATE = re.compile(
    "|".join(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])" for word in PRIVATE).replace(" ", r"\s+"),
    re.IGNORECASE,
)
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_NO_TEXT = ("|", "#", "<", "![")
_END = re.compile(r"(?<=[.!?])(?:[*_)\"]*)\s+(?=[A-Z`*\[(\"0-9])")


def sources() -> list[Path]:
    """Files of Python but this one, which names the words."""
    found = (path for room in SOURCES for path in (ROOT / room).rglob("*.py"))
    kept = (path for path in found if path.resolve() != Path(__file__).resolve())
    return sorted(path for path in kept if "data" not in path.relative_to(ROOT).parts[1:2])


def module_docstrings(*rooms: str) -> Iterator[tuple[Path, str]]:
    """Those of the modules below some folders, this one's included."""
    for path in [*sources(), Path(__file__).resolve()]:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if docstring and path.relative_to(ROOT).parts[0] in rooms:
            yield path.relative_to(ROOT), docstring


def private_words(text: str) -> Iterator[tuple[int, str]]:
    """Line and word of each."""
    for found in _PRIVATE.finditer(text):
        word = " ".join(found[0].lower().split())
        before = text[max(0, found.start() - 3) : found.start()].lower()
        if word == "course" and before.endswith("of "):
            continue
        if word == "is none" and ("None" in found[0] or before.endswith(("re ", "ly "))):
            continue  # a comparison in Python, "there is none", "there surely is none"
        yield text.count("\n", 0, found.start()) + 1, word


def verb_first(text: str) -> bool:
    """Whether a docstring begins with a verb in the third person, as "Lowers" or "Reads"."""
    return _VERB_FIRST.match(text) is not None


def _without_listings(text: str) -> str:
    """A docstring without paragraphs that are code, columns or diagrams."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(each for each in paragraphs if not re.search(r"^    |\S   |→", each, re.M))


def sentences(text: str) -> Iterator[str]:
    """Those of paragraphs and lists; tables, headings, pictures and code are left out."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _FENCE.sub("", text)):
        lines = [
            line
            for line in block.splitlines()
            if not line.lstrip().startswith(("|", "#", "<", "!["))
        ]
        plain = re.sub(r"\]\([^)]*\)", "]", " ".join(lines))
        yield from filter(None, (part.strip() for part in _END.split(plain)))


def test_no_word_is_this_projects_alone() -> None:
    found: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], list[int]] = {}
    for path in [*sources(), *pages()]:
        name = path.relative_to(ROOT).as_posix()
        for line, word in private_words(path.read_text()):
            found[name, word] += 1
            places.setdefault((name, word), []).append(line)
    more = found - ALLOWED
    assert not more, "\n".join(
        f"{name}:{places[name, word][-1]}: '{word}'" for name, word in sorted(more)
    )
    assert found >= ALLOWED, "an exception is there for nothing"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def _give_seat(): pass  # whoever asks", ["seat", "whoever"]),
        ("if found is None: raise ValueError('a count is none')", ["is none"]),
        ("None where there is none, of course; dealers of DEAL_ALL", ["deal"]),
        ("ideal, dealloc, seattle, kind, so muchly", []),
    ],
)
def test_words_are_found_in_names_and_prose(text: str, words: list[str]) -> None:
    assert [word for _, word in private_words(text)] == words


def test_sentences_on_the_pages_are_short() -> None:
    every = [len(each.split()) for page in pages() for each in sentences(page.read_text())]
    long = sum(words > LONG for words in every)
    assert len(every) > 1000
    assert long / len(every) <= LONG_SHARE, f"{long} of {len(every)} have over {LONG} words"
    assert median(every) <= MEDIAN


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_each_page_are_short(page: Path) -> None:
    words = [len(each.split()) for each in sentences(page.read_text())]
    assert len(words) < 10 or median(words) <= PAGE_MEDIAN


def test_docstrings_of_modules_begin_with_a_verb() -> None:
    found = list(module_docstrings(*SOURCES))
    assert len(found) > 1000
    others = [f"{path}: {text.splitlines()[0]}" for path, text in found if not verb_first(text)]
    assert not others, "\n".join(others)


def test_sentences_of_module_docstrings_are_short() -> None:
    long = [
        f"{path}: {len(each.split())} words: {each}"
        for path, text in module_docstrings(*PRODUCT)
        for each in sentences(_without_listings(text))
        if len(each.split()) > MODULE_SENTENCE
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Lowers whole batches of configs.", True),
        ("Builds, loads and runs an artifact.", True),
        ("Words of a name.", False),
        ("What a tuner may propose.", False),
        ("The contract of a target.", False),
        ("Estimates: cycles and traffic.", False),
        ("`tilewright tune` as a user runs it.", False),
        ("Does a schedule compute the right numbers?", False),
    ],
)
def test_a_verb_is_told_from_a_noun(text: str, is_one: bool) -> None:
    assert verb_first(text) is is_one


def test_a_sentence_ends_where_it_does() -> None:
    text = "# Title\n\nOne is short. Another: `x.y` stays, v1.5 too!\n\n| a | b. C |\n\n- An\n- Two"
    assert list(sentences(text)) == [
        "One is short.", "Another: `x.y` stays, v1.5 too!", "- An", "- Two",
    ]  # fmt: skip
