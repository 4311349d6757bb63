"""Methods of co-design: their contract and their list. Each method has a file of its own.

A method asks the evaluator until it is done or the evaluator raises `BudgetSpent`, which it lets
pass. All it draws comes from its seed: with the same answers it asks the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tilewright.core.errors import UnknownName
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.search.registry import MissingExtra, OptionError


class MethodOptions(BaseModel):
    """The option table of a method; each field's description is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CodesignMethod(Protocol):
    """Searches machines and schedules together."""

    def __init__(self, options: MethodOptions) -> None: ...

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Measure what tells most. Raises `BudgetSpent` when no measurement is left."""


_METHODS: Mapping[str, str] = {
    "ours": "two_level_codesign:TwoLevel",
    "random": "random_codesign:RandomCodesign",
    "autotvm": "autotvm_codesign:AutoTvmCodesign",
    "chameleon": "chameleon_codesign:ChameleonCodesign",
    "dcoc": "dcoc_codesign:Dcoc",
    "nsga2": "optuna_codesign:Nsga2",
    "tpe": "optuna_codesign:Tpe",
}
"""Where each is in `hardware_search.methods`."""
_NEEDS = {"chameleon": ("jax", "optax"), "dcoc": ("jax", "optax")}
"""Modules of the extra `neural` that a method cannot do without."""


def method_names() -> list[str]:
    """Return the names of all methods."""
    return list(_METHODS)


def make_method(name: str, options: Mapping[str, object] | None = None) -> CodesignMethod:
    """Make the method of that name.

    Raises:
        UnknownName: there is no such method.
        OptionError: the method does not have an option, or cannot take its value.
        MissingExtra: the method needs a library that is not installed.
    """
    if name not in _METHODS:
        raise UnknownName("method", name, method_names())
    absent = [each for each in _NEEDS.get(name, ()) if find_spec(each) is None]
    if absent:
        raise MissingExtra(
            f"method '{name}' needs {' and '.join(absent)}, which is missing; install it: "
            "pip install 'tilewright[neural]'"
        )
    module, _, attribute = _METHODS[name].partition(":")
    found = importlib.import_module(f"tilewright.hardware_search.methods.{module}")
    kind = getattr(found, attribute)
    try:
        table = kind.Options.model_validate(dict(options or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(kind.Options.model_fields) or "none"
        raise OptionError(
            f"option {where} of {name}: {first['msg'].lower()}; its options are {known}"
        ) from None
    return cast(CodesignMethod, kind(table))


def generator(seed: int, *parts: int) -> np.random.Generator:
    """Return the random generator of one step of a search."""
    return np.random.default_rng([seed, *parts])
