"""Lists the tuners there are. A new one is a file in `tilewright/search/tuners/` and one line at
its end: `register("name", MyExplorer, MyOptions)`. In another package such a module is named by an
entry point of the group `tilewright.tuners`.
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

from tilewright.core.errors import TilewrightError, UnknownName, nearest
from tilewright.search.cost_model_protocols import Learners
from tilewright.search.explorer import Explorer

ENTRY_POINTS = "tilewright.tuners"


class Options(BaseModel):
    """The option table of an explorer; each field's description is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MissingExtra(TilewrightError):
    """A tuner that needs an optional dependency which is not installed."""


class TunerError(TilewrightError):
    """A tuner of another package that cannot be loaded."""


class OptionError(TilewrightError):
    """An option a tuner does not know, or a value it cannot take."""


Builder = Callable[[str, Any, Learners], Explorer]
"""(registered name, option table, learners) → explorer."""


@dataclass(frozen=True)
class Registration:
    """A named tuner: how it is built, from which options, and whether it can start from a model
    that learned elsewhere (`Problem.transferred`)."""

    name: str
    build: Builder
    options: type[Options]
    summary: str
    preset: Mapping[str, Any]
    extra: str = ""
    modules: tuple[str, ...] = ()
    transfers: bool = False

    @property
    def absent(self) -> list[str]:
        """Modules it cannot do without and that are not installed."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]

    @property
    def missing(self) -> str:
        """What to install before it can be built, as a command; empty if nothing is missing."""
        return f"pip install 'tilewright[{self.extra}]'" if self.absent else ""


_REGISTRY: dict[str, Registration] = {}


def register(
    name: str, build: Builder, options: type[Options] = Options, *, summary: str = "",
    extra: str = "", modules: Sequence[str] = (), transfers: bool = False, **preset: Any,
) -> None:  # fmt: skip
    """Make a tuner known. `summary` says what it is, in place of the first line of `build`'s own
    description; `preset` are option values this name starts from; `extra` names the optional
    dependency it cannot do without, and `modules` those that come with it, if not one of that
    name; `transfers` that it heeds `Problem.transferred`."""
    summary = summary or (build.__doc__ or "").strip().partition("\n")[0]
    needed = tuple(modules) or ((extra,) if extra else ())
    _REGISTRY[name] = Registration(name, build, options, summary, preset, extra, needed, transfers)


def registered_tuners() -> dict[str, Registration]:
    """All registered tuners by name. Raises `TunerError` for an entry point that does not load."""
    _load_all()
    return dict(sorted(_REGISTRY.items()))


@cache
def _load_all() -> None:
    """Import every module of `search.tuners`, each of which registers its tuners, and those of
    other packages."""
    import tilewright.search.tuners as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            raise TunerError(
                f"the tuner '{entry.name}' ({entry.value}) cannot be loaded: {error!r}; repair or "
                "uninstall the package that brings it"
            ) from error


def create(name: str, learners: Learners, options: Mapping[str, Any] | None = None) -> Explorer:
    """The tuner of that name. Raises as `check_options`."""
    table = check_options(name, options)
    return registered_tuners()[name].build(name, table, learners)


def check_options(name: str, options: Mapping[str, Any] | None = None) -> Options:
    """The option table of a tuner, without building the tuner. Raises `UnknownName`,
    `MissingExtra`, or `OptionError` naming the bad option."""
    known = registered_tuners()
    if name not in known:
        raise UnknownName("tuner", name, list(known))
    entry = known[name]
    if entry.missing:
        raise MissingExtra(
            f"tuner '{name}' needs {' and '.join(entry.absent)}, which is missing; install it: "
            f"{entry.missing}"
        )
    try:
        return entry.options.model_validate({**entry.preset, **(options or {})})
    except ValidationError as error:
        raise OptionError(_problem(entry, error)) from None


def _problem(entry: Registration, error: ValidationError) -> str:
    """What is wrong with the first bad option, and what there is."""
    first = error.errors()[0]
    option, fields = ".".join(map(str, first["loc"])), entry.options.model_fields
    near = nearest(option, fields) if option not in fields else None
    meant = f"; did you mean {near}?" if near else ";"
    said = "no such option" if first["type"] == "extra_forbidden" else first["msg"]
    known = ", ".join(fields) or "none"
    return f"option {option} of tuner '{entry.name}': {said}{meant} known options: {known}"
