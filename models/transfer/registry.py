"""Registry of the kinds of transfer models, by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tilewright.core.errors import UnknownName
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.files import check_trusted, read_index
from tilewright.models.transfer.model import Transferred, options_of


@dataclass(frozen=True)
class _TransferKind:
    """A registered kind of transfer model.

    Attributes:
        place: import path of the class. The module is imported only when a model is needed, because
            its library takes a second to load.
        to_learn: Python packages that are needed for training.
        to_ask: Python packages that are needed for predictions.
    """

    place: str
    to_learn: tuple[str, ...] = ()
    to_ask: tuple[str, ...] = ()


_NEURAL = ("jax", "optax", "safetensors")
_KINDS = {
    "xgboost": _TransferKind("tilewright.models.transfer.trees:TransferXGBoost"),
    "lightgbm": _TransferKind("tilewright.models.transfer.trees:TransferLightGBM"),
    "mlp": _TransferKind("tilewright.models.transfer.neural:MLP", _NEURAL, ("safetensors",)),
    "attention": _TransferKind("tilewright.models.transfer.neural:Attention", _NEURAL, _NEURAL),
}


def list_kinds() -> list[str]:
    """Return the names of all kinds of transfer models."""
    return list(_KINDS)


def make_model(
    kind: str, seed: int = 0, options: Mapping[str, object] | None = None
) -> Transferred:
    """Build an untrained transfer model.

    Args:
        kind: name of the kind of model, as in `list_kinds`.
        seed: seed of the random generator.
        options: option values by name; options that are not given have their defaults.

    Raises:
        UnknownName: no kind of model has this name.
        TransferError: an option is unknown, or a library is missing.
    """
    model_class = _find(kind, learning=True)
    return model_class(seed, options_of(model_class, options))


def continue_from(
    start: Transferred, seed: int = 0, options: Mapping[str, object] | None = None
) -> Transferred:
    """Build an untrained model for fine-tuning a trained model.

    The new model has the kind and the options of `start`, except for the default options of
    fine-tuning and the given options. Call its method `fit` with `start` to train it.

    Args:
        start: the trained model.
        seed: seed of the random generator.
        options: option values by name, which replace those of `start`.

    Raises:
        TransferError: an option is unknown or cannot be changed.
    """
    kind, given = _find(start.kind, learning=True), dict(options or {})
    known = start.options.model_dump()
    new_options = options_of(kind, known | dict(kind.refining) | given)
    for name in kind.lasting:
        if getattr(new_options, name) != known[name]:
            raise TransferError(
                f"option {name} of {kind.kind} is {known[name]} in the model to fine-tune "
                "and cannot be changed; leave it out, or train a new model"
            )
    return kind(seed, new_options)


def load_model(folder: Path, *, trusted: bool = False) -> Transferred:
    """Load a saved model from its folder.

    Args:
        folder: folder that `Transferred.save` wrote.
        trusted: whether to load the model without checking its signature. Loading a crafted file
            can execute code.

    Raises:
        TransferError: the folder contains no usable model. Or the model was not trained in this
            workspace, and its user has not declared it trusted (`tilewright model trust`).
    """
    index = read_index(folder)
    if not trusted:
        check_trusted(folder, index)
    try:
        kind = _find(index.kind, learning=False)
    except UnknownName as error:
        raise TransferError(f"{folder} contains no usable model: {error}; train it again") from None
    try:
        model = kind(index.seed, options_of(kind, index.options))
    except TransferError as error:
        raise TransferError(f"{folder} contains no usable model: {error}; train it again") from None
    model.load_saved(folder, index)
    return model


def _find(kind: str, learning: bool) -> type[Transferred]:
    if kind not in _KINDS:
        raise UnknownName("kind of model", kind, list_kinds())
    entry = _KINDS[kind]
    needed = entry.to_learn if learning else entry.to_ask
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    if absent:
        raise TransferError(
            f"a model of kind {kind} needs the missing package {' and '.join(absent)}; "
            "install it: pip install 'tilewright[neural]', or choose another kind: xgboost, "
            "lightgbm"
        )
    module, _, name = entry.place.partition(":")
    return cast(type[Transferred], getattr(importlib.import_module(module), name))
