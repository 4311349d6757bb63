"""Models that rank configs: features, Model P (performance), V (validity) and A (advanced).

make_explorer(name, options) -> Explorer        build a registered tuner with its models
save_state(state, folder), load_state(folder)   save and load models in native formats, no pickle
list_kinds()                                    names of the registered kinds of models
"""

from collections.abc import Mapping
from typing import Any

from tilewright.models.features import gp_features, tree_features
from tilewright.models.model_registry import ModelLibrary, list_kinds
from tilewright.models.saved_state import StoreError, load_state, save_state
from tilewright.search.explorer import Explorer
from tilewright.search.registry import create

__all__ = [
    "ModelLibrary", "StoreError", "gp_features", "list_kinds", "load_state", "make_explorer",
    "save_state", "tree_features",
]  # fmt: skip


def make_explorer(name: str, options: Mapping[str, Any] | None = None) -> Explorer:
    """Build a registered tuner that takes its features and models from this package.

    Args:
        name: name of the tuner.
        options: options of the tuner by name; options that are not given have their defaults.

    Raises:
        UnknownName: no tuner has this name.
        OptionError: an option is unknown, or its value is invalid.
    """
    return create(name, ModelLibrary(), options)
