"""Renders HTML pages from the Jinja2 templates in `reports/pages`.

All values are escaped, except for `Markup` objects, which hold pictures that this package drew.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tilewright.core.user_text import printable
from tilewright.reports import number_format

PAGES = Path(__file__).parent / "pages"


def render(template: str, **values: object) -> bytes:
    """Render a template to a complete HTML page.

    Args:
        template: name of a file in `reports/pages`.
        values: variables of the template, by name.

    Returns:
        The page in UTF-8.

    Raises:
        jinja2.TemplateError: the template is defective, or a variable is missing.
    """
    return _environment().get_template(template).render(values).encode()


def _escape_unprintable(value: object) -> object:
    """Escape the unprintable characters of a text that a template inserts.

    Values that are not plain text, such as pictures, are returned unchanged.
    """
    return printable(value, keep="\n\t") if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_escape_unprintable,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    for form in (
        number_format.percent,
        number_format.count,
        number_format.decimal,
        number_format.integer_text,
        number_format.count_text,
        number_format.pluralise,
        number_format.milliseconds,
    ):
        environment.filters[form.__name__] = form
    return environment
