"""Converts the fields of options models to the parameters of a Prefect flow.

Prefect's pages show the parameters as a form. A parameter has the type, limits, choices and help
text of its field (`core.options`). Prefect's server checks them before it creates a run. Conditions
that involve several fields are checked when the run begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed
from pydantic import BaseModel, ValidationError, WithJsonSchema

from tilewright.core.errors import TilewrightError
from tilewright.core.options import cli_option, default_of
from tilewright.tuning.output_dir import OUTPUT_ROOT, below_root

R = TypeVar("R")
Form = type[BaseModel]


class FormError(TilewrightError):
    """A parameter is invalid, or parameters contradict each other."""


def flat(
    *forms: Form, first: Sequence[str] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., R]], Callable[..., R | State[Any]]]:
    """Return a decorator that replaces a function's options models by one parameter per field.

    Prefect then shows one form field per option. If the function raises a `TilewrightError`, the
    flow run ends as failed with the message of the error, without a traceback.

    Args:
        *forms: options models, in the order of the function's parameters.
        first: names of fields that the form shows first, in this order, because they are used most.
        without: names of fields that the form leaves out; they keep their defaults.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R | State[Any]]:
        def call(*args: Any, **named: Any) -> R | State[Any]:
            given = signature.bind(*args, **named).arguments
            try:
                return function(*(fill_form(form, given) for form in forms))
            except TilewrightError as error:
                return Failed(data=error, message=str(error))

        fields = [
            (form, name) for form in forms for name in form.model_fields if name not in without
        ]
        ranks = {name: rank for rank, name in enumerate(first)}
        # Parameters without a default come first, as Python requires.
        parameters = sorted(
            (_parameter(form, name) for form, name in fields),
            key=lambda item: (
                item.default is not Parameter.empty,
                ranks.get(item.name, len(ranks)),
            ),
        )
        signature = Signature(
            parameters,
            return_annotation=function.__annotations__.get("return", Signature.empty),
        )
        call.__name__, call.__qualname__ = function.__name__, function.__qualname__
        call.__doc__, call.__module__ = function.__doc__, function.__module__
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return call

    return decorate


def fill_form(form: Form, given: dict[str, Any]) -> Any:
    """Build an options model from the parameters of a flow run.

    Prefect sends a value for every field of its form. A value that equals the default is therefore
    treated as not given.

    Args:
        form: the options model.
        given: values by name of the parameter. Parameters that are not fields of the model are
            ignored.

    Returns:
        The options.

    Raises:
        FormError: a value is invalid.
    """
    asked = {
        name: given[name]
        for name, field in form.model_fields.items()
        if name in given and (field.is_required() or given[name] != default_of(field))
    }
    try:
        return form.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FormError(f"{place}: {first['msg']}".removeprefix(": ")) from None


def fields_of(*given: BaseModel) -> dict[str, Any]:
    """Return the parameters of a flow run that has the given options.

    Args:
        *given: options models.

    Returns:
        JSON values by name of the parameter.
    """
    return {k: v for item in given for k, v in item.model_dump(mode="json").items()}


def make_run_namer(form: Form, template: str) -> Callable[[], str]:
    """Return a function that computes the name of the current flow run from its parameters.

    Args:
        form: options model, to which the parameters are converted.
        template: format string for the name, such as `{options.subject}`.
    """

    def name() -> str:
        try:
            return template.format(options=fill_form(form, flow_run.parameters))
        except TilewrightError:  # the run itself fails with this message
            return form.__name__

    return name


def confine_path(out: str | Path) -> Path:
    """Return the path of an output folder below the deployment's root folder.

    If no root folder is set, the path is returned unchanged.

    Args:
        out: the folder; a relative path starts at the root folder.

    Raises:
        OutputError: the folder lies outside of the root folder.
    """
    return below_root(Path(out), os.environ.get(OUTPUT_ROOT, ""))


def _parameter(form: Form, name: str) -> Parameter:
    """Return the Prefect parameter for a field of an options model.

    Prefect would generate the schema of the parameter from its type alone, without help text and
    choices. The schema that pydantic generates for the field is therefore attached to the type.

    Args:
        form: the options model.
        name: name of the field.
    """
    field, schema = form.model_fields[name], form.model_json_schema()["properties"][name]
    shown = {k: v for k, v in schema.items() if k not in ("default", "title")}
    if usual := cli_option(field).default:
        shown["description"] = f"{field.description} [default: {usual}]"
    default = Parameter.empty if field.is_required() else default_of(field)
    annotated = cast(Any, Annotated)  # the type is known only at run time
    annotation = annotated[(field.annotation, *field.metadata, WithJsonSchema(shown))]
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
