"""Extends mkdocs beyond its configuration (`mkdocs.yml`).

- Texts at the top of the repository are pages of the site, too. Their links lead to pages there,
  and to files in a viewer of the repository.
- `<!-- generated: commands -->` becomes the reference of all commands, made from the command line
  itself; `<!-- generated: options MODULE:CLASS -->` a table of the fields of an options model.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import click
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

ROOT = Path(__file__).parents[1]
TEXTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Files of the repository by the page each is."""
COMMANDS = "<!-- generated: commands -->"
"""Stands on a page where the reference of all commands belongs."""
OPTIONS = re.compile(r"<!-- generated: options ([\w.]+):(\w+) -->")
"""Stands where a table of options belongs."""
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#|//)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the texts from outside of `docs/`."""
    for source, page in TEXTS.items():
        text = turned((ROOT / source).read_text(), source)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of pages in `docs/` that lead out of it, and fill in what is generated."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    markdown = OPTIONS.sub(lambda result: options_table(result[1], result[2]), markdown)
    own = page.file.abs_src_path
    if own is None or not Path(own).is_relative_to(ROOT / "docs"):
        return markdown
    return turned(markdown, str(Path(own).relative_to(ROOT)))


def commands() -> str:
    """Every command with its arguments and options, in Markdown."""
    from tilewright.cli.app import app

    command = typer.main.get_command(app)
    context = click.Context(command, info_name="tilewright")
    text = get_docs_for_click(obj=command, ctx=context, name="tilewright")
    return text[text.index("## `tilewright ") :]


def options_table(module: str, name: str) -> str:
    """Return the fields of an options model (`tilewright.core.options`) as a table in Markdown."""
    from tilewright.core.options import cli_option, default_of

    rows = ["| option | type | default | |", "|---|---|---|---|"]
    for field, about in getattr(importlib.import_module(module), name).model_fields.items():
        kind = typing_text(about.annotation)
        usual = "required" if about.is_required() else f"`{default_of(about)!r}`"
        if stands_for := cli_option(about).default:
            usual += f": {stands_for}"
        cells = (f"`{field}`", f"`{kind}`", usual, about.description or "")
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def typing_text(annotation: Any) -> str:
    """Return a type as it is written in a program."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(?:typing|pathlib)\.", "", text)


def turned(text: str, source: str) -> str:
    """Convert the links in a file of the repository to links of the site.

    A link to a file without a page becomes its text. A broken link stays, and mkdocs complains
    about it.
    """
    depth = (TEXTS.get(source) or source.removeprefix("docs/")).count("/")

    def link(result: re.Match[str]) -> str:
        label, path, anchor = result[1], result[2], result[3] or ""
        target = (ROOT / source).parent.joinpath(path).resolve()
        page = _page(target)
        if page is None:
            return label if target.exists() else result[0]
        return f"[{label}]({'../' * depth}{page}{anchor})"

    return _LINK.sub(link, text)


def _page(target: Path) -> str | None:
    """Return the page of a file, or of a folder's overview; None if there is none."""
    if not target.is_relative_to(ROOT):
        return None
    name = target.relative_to(ROOT).as_posix()
    if name in TEXTS:
        return TEXTS[name]
    if not name.startswith("docs/"):
        return None
    inside = name.removeprefix("docs/")
    return f"{inside}/README.md" if target.is_dir() else inside
