"""Registry and common interface of the search methods for co-design.

A method requests measurements until it is done, or until the evaluator raises `BudgetSpent`, which
the method does not catch. All its random numbers come from its seed, so that the same measurements
lead to the same requests. A stopped run can therefore resume.
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
    """Base class of the options of a method. The description of each field documents the option."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CodesignMethod(Protocol):
    """Interface of co-design methods, which search for machines and schedules together."""

    def __init__(self, options: MethodOptions) -> None: ...

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Search until the method is done or the budget is spent.

        Args:
            problem: the co-design problem.
            evaluator: measures schedules within the budget, and keeps all measurements.
            seed: seed of the random numbers.

        Raises:
            BudgetSpent: no measurements are left.
        """


_METHODS: Mapping[str, str] = {
    "ours": "two_level_codesign:TwoLevel",
    "random": "random_codesign:RandomCodesign",
    "autotvm": "autotvm_codesign:AutoTvmCodesign",
    "chameleon": "chameleon_codesign:ChameleonCodesign",
    "dcoc": "dcoc_codesign:Dcoc",
    "nsga2": "optuna_codesign:Nsga2",
    "tpe": "optuna_codesign:Tpe",
}
"""Module and class of each method in `hardware_search.methods`."""
_NEEDS = {"chameleon": ("jax", "optax"), "dcoc": ("jax", "optax")}
"""Python packages that a method requires. `pip install 'tilewright[neural]'` installs them."""


def method_names() -> list[str]:
    """Return the names of all methods."""
    return list(_METHODS)


def make_method(name: str, options: Mapping[str, object] | None = None) -> CodesignMethod:
    """Create a method from its name and options.

    Args:
        name: name of the method.
        options: values of its options, by name.

    Returns:
        The method.

    Raises:
        UnknownName: the method does not exist.
        OptionError: an option does not exist or has an invalid value.
        MissingExtra: a required library is not installed.
    """
    if name not in _METHODS:
        raise UnknownName("method", name, method_names())
    absent = [item for item in _NEEDS.get(name, ()) if find_spec(item) is None]
    if absent:
        raise MissingExtra(
            f"the method '{name}' needs the missing package {' and '.join(absent)}; install "
            "it: pip install 'tilewright[neural]'"
        )
    module, _, attribute = _METHODS[name].partition(":")
    result = importlib.import_module(f"tilewright.hardware_search.methods.{module}")
    kind = getattr(result, attribute)
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
    """Return a random generator for one step of a search.

    Args:
        seed: seed of the search.
        parts: numbers that identify the step, such as the row of a machine. Different steps get
            independent generators.

    Returns:
        The generator.
    """
    return np.random.default_rng([seed, *parts])
