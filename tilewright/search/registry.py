"""Registry of the tuners, by name.

To add a tuner, add a module to `tilewright/search/tuners/` that ends with `register("name",
MyExplorer, MyOptions)`. Other packages can add tuners, too: they name such a module in an entry
point of the group `tilewright.tuners`.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tilewright.core.errors import TilewrightError, UnknownName, closest_name
from tilewright.search.cost_model_protocols import Learners
from tilewright.search.explorer import Explorer

ENTRY_POINTS = "tilewright.tuners"


class Options(BaseModel):
    """Base class of a tuner's options. The description of each field documents the option."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MissingExtra(TilewrightError):
    """A tuner needs an optional dependency that is not installed."""


class TunerError(TilewrightError):
    """A tuner that another package provides cannot be loaded."""


class OptionError(TilewrightError):
    """A tuner does not have an option, or the option's value is invalid."""


Builder = Callable[[str, Any, Learners], Explorer]
"""Function that builds a tuner from its registered name, its options and the source of its features
and models."""


@dataclass(frozen=True)
class Registration:
    """A registered tuner.

    Attributes:
        name: name of the tuner.
        build: function that builds the tuner.
        options: class of its options.
        summary: one line for lists of tuners.
        preset: option values that differ from the defaults of `options`.
        extra: optional dependency group of Tilewright that the tuner needs, or "".
        modules: Python modules that this group installs.
        transfers: whether the tuner can use a model that was trained on other workloads or hardware
            (`Problem.transferred`).
    """

    name: str
    build: Builder
    options: type[Options]
    summary: str
    preset: Mapping[str, Any]
    extra: str = ""
    modules: tuple[str, ...] = ()
    transfers: bool = False

    @property
    def missing_modules(self) -> list[str]:
        """Modules that the tuner needs and that are not installed."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]

    @property
    def install_command(self) -> str:
        """Command that installs the tuner's missing modules; empty if no module is missing."""
        return f"pip install 'tilewright[{self.extra}]'" if self.missing_modules else ""


_REGISTRY: dict[str, Registration] = {}


def register(
    name: str, build: Builder, options: type[Options] = Options, *, summary: str = "",
    extra: str = "", modules: Sequence[str] = (), transfers: bool = False, **preset: Any,
) -> None:  # fmt: skip
    """Register a tuner under a name.

    Args:
        name: name of the tuner.
        build: function or class that builds it from its name, options and learners.
        options: class of its options.
        summary: one line for lists of tuners; by default the first line of `build`'s docstring.
        extra: optional dependency group of Tilewright that the tuner needs.
        modules: Python modules that this group installs; by default a module with the group's name.
        transfers: whether the tuner can use `Problem.transferred`.
        **preset: option values that replace the defaults of `options`.
    """
    summary = summary or (build.__doc__ or "").strip().partition("\n")[0]
    needed = tuple(modules) or ((extra,) if extra else ())
    _REGISTRY[name] = Registration(name, build, options, summary, preset, extra, needed, transfers)


def registered_tuners() -> dict[str, Registration]:
    """Return all registered tuners by name, after importing the modules that register them.

    Raises:
        TunerError: an entry point of another package cannot be loaded.
    """
    _load_all()
    return dict(sorted(_REGISTRY.items()))


@cache
def _load_all() -> None:
    """Import every module that registers tuners, in this package and in other packages."""
    import tilewright.search.tuners as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            raise TunerError(
                f"the tuner '{entry.name}' ({entry.value}) cannot be loaded: {error!r}; "
                "repair or uninstall the package that provides it"
            ) from error


def create(name: str, learners: Learners, options: Mapping[str, Any] | None = None) -> Explorer:
    """Build the tuner with the given name.

    Args:
        name: name of the tuner.
        learners: source of features and models.
        options: option values by name.

    Returns:
        The tuner.

    Raises:
        UnknownName: no tuner has this name.
        MissingExtra: an optional dependency is not installed.
        OptionError: an option is unknown, or its value is invalid.
    """
    table = check_options(name, options)
    return registered_tuners()[name].build(name, table, learners)


def check_options(name: str, options: Mapping[str, Any] | None = None) -> Options:
    """Validate the options of a tuner and fill in the defaults, without building the tuner.

    Args:
        name: name of the tuner.
        options: option values by name.

    Returns:
        The complete options.

    Raises:
        UnknownName: no tuner has this name.
        MissingExtra: an optional dependency is not installed.
        OptionError: an option is unknown, or its value is invalid.
    """
    known = registered_tuners()
    if name not in known:
        raise UnknownName("tuner", name, list(known))
    entry = known[name]
    if entry.install_command:
        raise MissingExtra(
            f"the tuner '{name}' needs the missing package {' and '.join(entry.missing_modules)}; "
            f"install it: {entry.install_command}"
        )
    try:
        return entry.options.model_validate({**entry.preset, **(options or {})})
    except ValidationError as error:
        raise OptionError(_problem(entry, error)) from None


def _problem(entry: Registration, error: ValidationError) -> str:
    """Describe the first invalid option and list the known options."""
    first = error.errors()[0]
    option, fields = ".".join(map(str, first["loc"])), entry.options.model_fields
    near = closest_name(option, fields) if option not in fields else None
    meant = f"; did you mean {near}?" if near else ";"
    said = "this option does not exist" if first["type"] == "extra_forbidden" else first["msg"]
    known = ", ".join(fields) or "none"
    return f"option {option} of tuner '{entry.name}': {said}{meant} known options: {known}"
