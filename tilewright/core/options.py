"""Options of a command, declared once as the fields of a pydantic model.

A field holds the type, the limits, the default and the help text of an option. `CliOption` adds its
spelling on the command line. Four interfaces are derived from the model:

- the options of the command (`cli.options`),
- the parameters of the Prefect flow (`flows.forms`),
- the signature of the library function (`takes_options`),
- the tables of the reference pages (`docs/hooks.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, Self, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import printable, split_names
from tilewright.core.working_folder import as_typed

P = ParamSpec("P")
R = TypeVar("R")
OptionValue = str | int | float | bool
"""Value of an option of a tuner, a fusion method or a type of model."""


OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: value or None)]
"""A path that may be omitted. An empty text, as a form sends it, becomes None."""


class OptionsError(TilewrightError):
    """An option has an invalid value."""


@dataclass(frozen=True)
class CliOption:
    """Spelling of an option on the command line: metadata in the `Annotated` type of its field.

    Attributes:
        flag: name of the option; by default the name of the field with hyphens.
        aliases: other names of the option.
        positional: whether the value is an argument without a flag.
        metavar: placeholder of the value in the help text; by default its type.
        default: description of a default that depends on other options, or "" to show no default.
            If this description is set, the command line passes the value on only if the user gives
            the option.
        value: type of the value, such as a model or a path. It determines how file names are
            resolved relative to the user's working folder.
        split: function that splits one text into several values; by default at commas. Its
            arguments are the text and the flag.
        repeated: whether several values are given by repeating the option, instead of separating
            them by commas.
        pair: example of a NAME=VALUE pair, for an option that is a table of numbers.
        separator: text between the numbers in such a pair.
        shows_limits: whether the help text shows the limits of a number, and the command line
            checks them.
        offered: whether commands offer the option. The web form and the library function always
            offer it.
    """

    flag: str = ""
    aliases: tuple[str, ...] = ()
    positional: bool = False
    metavar: str | None = None
    default: str | None = None
    value: Literal["text", "model", "target", "path", "warm start"] = "text"
    split: Callable[[str, str], tuple[str, ...]] = split_names
    repeated: bool = False
    pair: str = "NAME=VALUE"
    separator: str = "x"
    shows_limits: bool = False
    offered: bool = True


class CommandOptions(BaseModel):
    """Base class of the options of a command. Fields that are not declared are rejected.

    Attributes:
        option_groups: names of the options in each group of the help text, by the title of the
            group. Options in no group follow under "Options".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    option_groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod
    def parse(cls, **values: Any) -> Self:
        """Validate values and return them as options.

        Args:
            **values: values by field.

        Raises:
            OptionsError: a value is invalid. The message names the option by its command-line flag.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            problem = _uncapitalised(first["msg"].removeprefix("Value error, "))
            if not first["loc"]:
                raise OptionsError(problem) from None
            name = str(first["loc"][0])
            field = cls.model_fields.get(name)
            flag = flag_of(name, field) if field else f"--{name.replace('_', '-')}"
            hint = f" ({_first_clause(field.description)})" if field and field.description else ""
            value = printable(_text(values.get(name)))
            raise OptionsError(f"{flag} {value}: {problem}{hint}") from None

    def default_value(self, name: str) -> Any:
        """Return the value that a field has if the user does not set it.

        Subclasses override this method for a default that depends on other options.

        Args:
            name: name of the field.
        """
        return default_of(type(self).model_fields[name])

    def command_line(self, command: str) -> str:
        """Return the command line that gives these options.

        Options with their default value are omitted. Paths are written as the user typed them.
        `fresh` is also omitted: the command line is shown to users, who may repeat it, and
        `--fresh` would delete the results.

        Args:
            command: name of the command, such as "model train".
        """
        arguments, words = list[str](), list[str]()
        for name, field in type(self).model_fields.items():
            value, option = getattr(self, name), cli_option(field)
            if option.positional:
                arguments += [as_typed(item) for item in _as_tuple(value) if item]
            elif name != "fresh" and as_typed(_text(value)) != _text(self.default_value(name)):
                words += _option_words(flag_of(name, field), value, option.separator)
        return shlex.join(["tilewright", *command.split(), *arguments, *words])


def takes_options(
    model: Callable[P, CommandOptions],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a function `f(**options)` the signature of an options model.

    Type checkers and `help()` show the fields of the model as keyword arguments.

    Args:
        model: the options model.
    """
    shows = shows_options(cast("type[CommandOptions]", model))

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        return shows(function)

    return decorate


def shows_options(
    model: type[CommandOptions], *positional: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that shows the fields of an options model as parameters of a function.

    Only `help()` and `inspect.signature` show these parameters. Type checkers see the function's
    own signature.

    Args:
        model: the options model.
        positional: names of the fields that may also be passed by position, in this order.
    """
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name in positional else Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.is_required() else default_of(field),
            annotation=field.annotation,
        )
        for name, field in model.model_fields.items()
    ]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        returns = function.__annotations__.get("return", Signature.empty)
        signature = Signature(parameters, return_annotation=returns)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


def cli_option(field: FieldInfo) -> CliOption:
    """Return the `CliOption` of a field, or the default one if the field has none."""
    metadata = [annotation for annotation in field.metadata if isinstance(annotation, CliOption)]
    return metadata[-1] if metadata else CliOption()


def flag_of(name: str, field: FieldInfo) -> str:
    """Return the command-line flag of a field, such as `--stop-gain`."""
    return cli_option(field).flag or f"--{name.replace('_', '-')}"


def default_of(field: FieldInfo) -> Any:
    """Return the default value of a field. A default factory is called."""
    return field.get_default(call_default_factory=True)


def _option_words(flag: str, value: object, separator: str) -> list[str]:
    """Return the words of a command line that give an option. A table becomes one flag per entry.

    Args:
        flag: flag of the option.
        value: value of the option.
        separator: text between the numbers in an entry of a table.
    """
    if isinstance(value, Mapping):
        return [word for pair in _pairs(value, separator) for word in (flag, pair)]
    return [flag] if isinstance(value, bool) else [flag, as_typed(_text(value))]


def _pairs(table: Mapping[str, object], separator: str = "x") -> list[str]:
    return [
        f"{name}={separator.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in table.items()
    ]


def _as_tuple(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


def _text(value: object) -> str:
    """Return the value of an option as the user would type it after the flag.

    Elements of lists and tables are separated by commas.
    """
    if isinstance(value, Mapping):
        return ",".join(_pairs(value))
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _first_clause(description: str) -> str:
    """Return the first sentence of a help text in lower case, for use within a message."""
    return _uncapitalised(description.partition(". ")[0].rstrip("."))


def _uncapitalised(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
