"""Learns to rank configs: features, Model P (performance), V (validity), A (with hidden features).

make_explorer(name, options) → Explorer      a registered tuner with its learners
save_state(state, folder), load_state(folder)   native formats with digests, no pickle
kinds()                                      registered kinds of model
"""

from collections.abc import Mapping
from typing import Any

from tilewright.models.features import gp_features, tree_features
from tilewright.models.model_registry import ModelLibrary, kinds
from tilewright.models.saved_state import StoreError, load_state, save_state
from tilewright.search.explorer import Explorer
from tilewright.search.registry import create

__all__ = [
    "ModelLibrary", "StoreError", "gp_features", "kinds", "load_state", "make_explorer",
    "save_state", "tree_features",
]  # fmt: skip


def make_explorer(name: str, options: Mapping[str, Any] | None = None) -> Explorer:
    """Return a registered tuner that gets its features and models from this package. Raises
    `UnknownName` or `OptionError`."""
    return create(name, ModelLibrary(), options)
