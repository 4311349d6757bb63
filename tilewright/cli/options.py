"""Creates the options of commands from the fields of options models (`core.options`).

    @with_options
    def tune(options: TuningOptions, tracking: TrackingOptions, bare: Bare = False) -> None: ...

This command has one option per field of both models, in the order of the fields. To offer only some
of the fields, name them:

    options: Annotated[TuningOptions, OfferedFields("model", "target")]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import wraps
from inspect import Parameter, isclass, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tilewright.cli.paths import model_text, target_text, warm_start_text
from tilewright.core.errors import TilewrightError
from tilewright.core.options import CliOption, CommandOptions, cli_option, default_of, flag_of
from tilewright.core.working_folder import as_typed
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.options import TuningOptions

R = TypeVar("R")
_NAMES = {"model": model_text, "target": target_text, "warm start": warm_start_text}
"""Functions that convert the value of an option, by `CliOption.value`. They make a relative path of
a file absolute and return other names unchanged."""


class OfferedFields:
    """Selection of the fields of an options model that a command offers.

    Args:
        *names: names of the fields, in the order of the help text.
        required: fields that the user must give.
        changed: spelling of an option for this command, by field, if it differs from the model's.
        described: help text for this command, by field, if it differs from the model's.
    """

    def __init__(
        self,
        *names: str,
        required: Sequence[str] = (),
        changed: Mapping[str, CliOption] | None = None,
        described: Mapping[str, str] | None = None,
    ) -> None:
        self.names = names
        self.required = required
        self.changed = changed or {}
        self.described = described or {}


def with_options(command: Callable[..., R]) -> Callable[..., R]:
    """Make a Typer command of a function that takes options models.

    Each parameter whose type is an options model is replaced by one parameter per field. The
    command raises `OptionsError` if the model rejects a value.

    Args:
        command: the function.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    models: dict[str, tuple[type[CommandOptions], dict[str, FieldInfo]]] = {}
    for parameter in signature(command).parameters.values():
        annotation = hints[parameter.name]
        model = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        if isclass(model) and issubclass(model, CommandOptions):
            fields = _offered_fields(model, getattr(annotation, "__metadata__", ()))
            models[parameter.name] = model, fields
            parameters += [_parameter(name, field, model) for name, field in fields.items()]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=annotation))

    @wraps(command)
    def called(**given: Any) -> R:
        for parameter, (model, fields) in models.items():
            values = {name: _read(name, field, given.pop(name)) for name, field in fields.items()}
            given[parameter] = model.parse(
                **{name: value for name, value in values.items() if value is not None}
            )
        return command(**given)

    del called.__wrapped__  # Typer reads the signature below
    called.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def help_of(field: str, model: type[CommandOptions] = TuningOptions) -> str:
    """Return the help text of a field, for a command that declares the option itself.

    Args:
        field: name of the field.
        model: options model with the field.
    """
    return _help(model.model_fields[field], cli_option(model.model_fields[field]))


def _help(field: FieldInfo, option: CliOption) -> str:
    default = f"  [default: {option.default}]" if option.default else ""
    return f"{field.description}{default}"


# Options that commands declare themselves, with the help texts of the options models.
Target = Annotated[str, typer.Option(help=help_of("target"), callback=target_text)]
Space = Annotated[str, typer.Option(help=help_of("space"))]
Cluster = Annotated[str, typer.Option(metavar="tls://HOST:PORT|local:N", help=help_of("cluster"))]
MaxWaste = Annotated[float, typer.Option(help=help_of("max_waste"))]
ReadCode = Annotated[bool, typer.Option("--allow-code", help=help_of("allow_code", BuildOptions))]


def _offered_fields(model: type[CommandOptions], metadata: tuple[Any, ...]) -> dict[str, FieldInfo]:
    """Return the fields that a command offers, with the command's spellings and help texts.

    Args:
        model: the options model.
        metadata: metadata of the parameter's `Annotated` type. It may contain `OfferedFields`.
    """
    chosen = next(
        (annotation for annotation in metadata if isinstance(annotation, OfferedFields)), None
    )
    if chosen is None:
        return {n: field for n, field in model.model_fields.items() if cli_option(field).offered}
    fields = {}
    for name in chosen.names:
        field = copy(model.model_fields[name])
        if name in chosen.changed:
            field.metadata = [*field.metadata, chosen.changed[name]]
        if name in chosen.described:
            field.description = chosen.described[name]
        if name in chosen.required:
            field.default = PydanticUndefined
        fields[name] = field
    return fields


def _parameter(name: str, field: FieldInfo, model: type[CommandOptions]) -> Parameter:
    """Convert a field of an options model to a parameter of a Typer command.

    Args:
        name: name of the field.
        field: definition of the field.
        model: options model with the field, which assigns options to groups of the help text.
    """
    groups = model.option_groups.items()
    group = next((title for title, names in groups if name in names), None)
    option, kind = cli_option(field), _type_of(field)
    help_text = _help(field, option)
    limits: dict[str, Any] = {}
    if option.shows_limits:
        limits = {"min": _limit(field, "ge"), "max": _limit(field, "le")}
    if option.positional:
        info: object = typer.Argument(metavar=option.metavar, help=help_text)
    else:
        info = typer.Option(
            flag_of(name, field), *option.aliases, metavar=option.metavar, help=help_text,
            rich_help_panel=group, **limits,
        )  # fmt: skip
    annotated = cast(Any, Annotated)  # the type is known when this runs
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if field.is_required() else _default(field, option),
        annotation=annotated[(kind, info)],
    )


def _type_of(field: FieldInfo) -> Any:
    """Return the type to which Typer converts the text of an option."""
    option, kind = cli_option(field), field.annotation
    optional = not field.is_required() and _default(field, option) is None
    if get_origin(kind) is dict or (_is_list(field) and (option.repeated or option.positional)):
        base: Any = list[str]
    elif option.value == "path":
        base = Path
    elif kind in (bool, int, float):
        base = kind
    elif isinstance(kind, UnionType):
        base = get_args(kind)[0]
    else:
        base = str
    return base | None if optional else base


def _limit(field: FieldInfo, name: str) -> float | None:
    return next(
        (getattr(annotation, name) for annotation in field.metadata if hasattr(annotation, name)),
        None,
    )


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


def _default(field: FieldInfo, option: CliOption) -> Any:
    """Return the default value of an option for Typer's help text.

    The result is None if the default depends on other options or is empty. The field is then set
    only if the user gives the option.

    Args:
        field: definition of the field.
        option: spelling of the option.
    """
    value = default_of(field)
    if option.default is not None or value in ((), {}):
        return None
    if _is_list(field):
        return ",".join(value)
    if option.value == "path":
        return Path(value) if value else None
    return value


def _read(name: str, field: FieldInfo, given: Any) -> Any:
    """Convert the value of an option to the value of its field.

    Args:
        name: name of the field.
        field: definition of the field.
        given: value from Typer; None if the option is not given.

    Returns:
        The value of the field; None if the option is not given.
    """
    option, flag = cli_option(field), flag_of(name, field)
    if given is None:
        return None
    if get_origin(field.annotation) is dict:
        return _read_table(field, flag, option, given)
    if isinstance(given, Path):
        return str(given)  # already absolute (`cli.paths.count_paths_from_start`)
    resolve = _NAMES.get(option.value, str)
    if _is_list(field):
        names = given if isinstance(given, list) else option.split(given, flag)
        return tuple(resolve(item) for item in names)
    return resolve(given) if isinstance(given, str) else given


def _read_table(field: FieldInfo, flag: str, option: CliOption, texts: list[str]) -> Any:
    """Parse the NAME=VALUE pairs of a repeated option to a dictionary.

    Args:
        field: definition of the field.
        flag: name of the option, for error messages.
        option: spelling of the option.
        texts: the given pairs.

    Raises:
        TilewrightError: a pair is malformed, or two pairs give a name different values.
    """
    if get_origin(get_args(field.annotation)[1]) is not tuple:
        return dict(read_pair(text, flag) for text in texts)
    table: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, numbers = read_pair(text, flag)
        try:
            value = tuple(int(number) for number in numbers.split(option.separator))
        except ValueError:
            raise TilewrightError(
                f"{flag} {text} has the wrong form; write {option.pair}"
            ) from None
        if table.get(name, value) != value:
            first, second = (option.separator.join(map(str, item)) for item in (table[name], value))
            raise TilewrightError(
                f"{flag} gives {name} two values, {first} and {second}; give it once"
            )
        table[name] = value
    return table


def say_remarks(target: str) -> None:
    """Print remarks about a target to standard error, such as assumptions of its model.

    Raises the errors of `check_target`.

    Args:
        target: name of the target.
    """
    from tilewright.targets.registry import target_remarks

    for remark in target_remarks(target):
        typer.echo(f"note: {as_typed(remark)}", err=True)


def read_pair(text: str, flag: str) -> tuple[str, str]:
    """Split a text such as `NAME=VALUE` into the name and the value.

    Args:
        text: the pair.
        flag: name of the option, for the error message.

    Returns:
        The name and the value.

    Raises:
        TilewrightError: the text has another form.
    """
    name, _, value = text.rpartition("=")
    if not (name and value):
        raise TilewrightError(f"{flag} {text} has the wrong form; write NAME=VALUE")
    return name, value
