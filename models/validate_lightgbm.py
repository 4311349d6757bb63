"""Validates a LightGBM file before the library reads it.

All of a file is read here first: a header, trees of numbers without categories, each as long as the
header says. What follows the trees (importances, the parameters of training) predicts nothing, and
the library does not get to see it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

MAX_FEATURES = 100_000
MAX_LEAVES = 1 << 20
OBJECTIVES = {"regression", "binary sigmoid:1", "cross_entropy"}
END = b"end of trees\n"
_HEADER = (
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
    "feature_names", "feature_infos", "tree_sizes",
)  # fmt: skip
_TREE = (
    "num_leaves", "num_cat", "split_feature", "split_gain", "threshold", "decision_type",
    "left_child", "right_child", "leaf_value", "leaf_weight", "leaf_count", "internal_value",
    "internal_weight", "internal_count", "is_linear", "shrinkage",
)  # fmt: skip
_BY_LEAF = ("leaf_weight", "leaf_count")
_BY_NODE = ("split_gain", "internal_value", "internal_weight", "internal_count")
_NUMBERS = re.compile(r"[-+0-9.einfa ]*")
_NAMES = re.compile(r"[!-<>-~]+( [!-<>-~]+)*")
_INFO = re.compile(r"none|\[-?[-+0-9.einf]+:-?[-+0-9.einf]+\]")


def check_lightgbm(data: bytes) -> tuple[str, int]:
    """The part of a model's text that predicts, and how many features it is asked with. Raises
    `ValueError` if it is none of ours."""
    end = data.find(END)
    if end < 0:
        raise ValueError("it is cut short")
    head, _, trees = data[:end].partition(b"\n\n")
    text = head.decode("ascii")
    if not text.startswith("tree\n"):
        raise ValueError("it does not begin as a model")
    facts = _lines(text.split("\n")[1:], _HEADER)
    features = _features(facts)
    place, number = 0, 0
    for number, size in enumerate(_integers(facts["tree_sizes"])):
        segment = trees[place : place + int(size)]
        if size <= 0 or len(segment) != size:
            raise ValueError("a tree is not as long as it states")
        _check_tree(segment.decode("ascii"), number, features)
        place += int(size)
    if trees[place:].strip(b"\n"):
        raise ValueError("it has more trees than it states")
    return data[: end + len(END)].decode("ascii"), features


def _features(facts: Mapping[str, str]) -> int:
    usual = {"version": "v4", "num_class": "1", "num_tree_per_iteration": "1", "label_index": "0"}
    if any(facts[name] != value for name, value in usual.items()):
        raise ValueError("its header is not one that this package writes")
    if facts["objective"] not in OBJECTIVES:
        raise ValueError("its objective is not one that this package uses")
    if not re.fullmatch("[0-9]{1,6}", facts["max_feature_idx"]):
        raise ValueError("expected a number of features")
    features = int(facts["max_feature_idx"]) + 1
    names, infos = facts["feature_names"], facts["feature_infos"].split(" ")
    if features > MAX_FEATURES or not _NAMES.fullmatch(names):
        raise ValueError("its features have no names")
    if len(names.split(" ")) != features or len(infos) != features:
        raise ValueError("it does not have as many features as it states")
    if not all(map(_INFO.fullmatch, infos)):
        raise ValueError("expected the range of a feature")
    return features


def _check_tree(text: str, number: int, features: int) -> None:
    first, *lines = text.rstrip("\n").split("\n")
    if first != f"Tree={number}" or not text.endswith("\n"):
        raise ValueError("a tree has not its number")
    facts = _lines(lines, _TREE)
    if not re.fullmatch("[0-9]{1,7}", facts["num_leaves"]):
        raise ValueError("expected a number of leaves")
    leaves = int(facts["num_leaves"])
    if not 1 <= leaves <= MAX_LEAVES or (facts["num_cat"], facts["is_linear"]) != ("0", "0"):
        raise ValueError("a tree is not of a kind that this package writes")
    for name, length in {
        **dict.fromkeys(_BY_NODE, leaves - 1), **dict.fromkeys(_BY_LEAF, leaves), "shrinkage": 1,
    }.items():  # fmt: skip
        found = _floats(facts[name])
        if len(found) != length and not (leaves == 1 and not len(found)):
            raise ValueError("a tree's lists are not those of its nodes")
    # A cut that only tells what is unknown from all numbers lies at infinity.
    cuts, values = _floats(facts["threshold"]), _floats(facts["leaf_value"])
    if len(cuts) != leaves - 1 or np.isnan(cuts).any():
        raise ValueError("a tree has invalid cuts")
    if len(values) != leaves or not np.isfinite(values).all():
        raise ValueError("a tree has invalid numbers")
    split, kinds = _integers(facts["split_feature"]), _integers(facts["decision_type"])
    left, right = _integers(facts["left_child"]), _integers(facts["right_child"])
    if any(len(each) != leaves - 1 for each in (split, kinds, left, right)):
        raise ValueError("a tree's lists are not those of its nodes")
    if not ((split >= 0) & (split < features)).all():
        raise ValueError("a tree uses a feature that does not exist")
    if not np.isin(kinds, (0, 2, 4, 6, 8, 10)).all():
        raise ValueError("a tree splits by categories")
    nodes = np.arange(leaves - 1)
    children = np.concatenate([left, right])
    inner = children >= 0
    everyone = [*range(-leaves, 0), *range(1, leaves - 1)] if leaves > 1 else []
    sound = (
        np.array_equal(np.sort(children), everyone)
        and (children[inner] > np.concatenate([nodes, nodes])[inner]).all()
    )
    if not sound:
        raise ValueError("a tree is malformed")


def _lines(lines: list[str], names: tuple[str, ...]) -> dict[str, str]:
    """Lines of `name=value`, all of these and no others, in this order."""
    pairs = [line.partition("=") for line in lines]
    if tuple(name for name, _, _ in pairs) != names or not all(mark for _, mark, _ in pairs):
        raise ValueError(f"a part of it has not {', '.join(names[:3])} and the rest")
    return {name: value for name, _, value in pairs}


def _floats(text: str) -> NDArray[np.float64]:
    if not _NUMBERS.fullmatch(text):
        raise ValueError("a list is not of numbers")
    return np.array([float(each) for each in text.split(" ") if each], dtype=np.float64)


def _integers(text: str) -> NDArray[np.int64]:
    found = _floats(text)
    if not all(math.isfinite(each) and abs(each) < 1 << 31 for each in found):
        raise ValueError("a list is not of whole numbers")
    if not re.fullmatch("[-0-9 ]*", text):
        raise ValueError("a list is not of whole numbers")
    return found.astype(np.int64)
