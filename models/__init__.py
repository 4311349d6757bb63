"""What is learned: features, Model P (performance), V (validity), A (with hidden features).

make_explorer(name, options) → Explorer      a registered tuner with its learners
save_memory(memory, folder), load_memory(folder)   native formats with digests, no pickle
LEARNERS                                     features and untrained models for explorers
kinds()                                      registered kinds of model
"""

from collections.abc import Mapping
from typing import Any

from models.features import smooth, visible
from models.learners import LEARNERS, kinds
from models.store import StoreError, load_memory, save_memory
from search.explorer import Explorer
from search.registry import create

__all__ = [
    "LEARNERS",
    "StoreError",
    "kinds",
    "load_memory",
    "make_explorer",
    "save_memory",
    "smooth",
    "visible",
]


def make_explorer(name: str, options: Mapping[str, Any] | None = None) -> Explorer:
    """A registered tuner. Raises `UnknownName` or `OptionError`."""
    return create(name, LEARNERS, options)
