"""Validates an XGBoost file before the library reads it.

XGBoost believes its files: an index out of range, a list that is too short, a cycle, and the
process is gone. So all of a file is read here first. It is checked against what this package's
models can be: trees of numbers, without categories, for one target. Files of XGBoost 3 as UBJSON.
"""

from __future__ import annotations

import math
import re

import numpy as np

from tilewright.models.ubjson import Ubjson, Values, read_ubjson

MAX_FEATURES = 100_000
MAX_TREES = 100_000
OBJECTIVES = {"reg:squarederror", "binary:logistic"}
ATTRIBUTES = {"threshold", "best_iteration", "best_score"}
_ROOT = _DELETED = 2**31 - 1  # the parent of a root; the feature of a node that was pruned
_NODE_LISTS = {
    "base_weights": "f4", "default_left": "u1", "left_children": "i4", "loss_changes": "f4",
    "parents": "i4", "right_children": "i4", "split_conditions": "f4", "split_indices": "i4",
    "split_type": "u1", "sum_hessian": "f4",
}  # fmt: skip
_EMPTY = {"categories", "categories_nodes", "categories_segments", "categories_sizes"}
_SCORE = re.compile(r"\[?-?[0-9.]{1,30}(E-?[0-9]{1,3})?\]?")


def check_xgboost(data: bytes) -> int:
    """How many features the model is asked with. Raises `ValueError` if it is none of ours."""
    top = _object(read_ubjson(data), {"learner", "version"})
    version = top["version"]
    if not (isinstance(version, list) and len(version) == 3 and version[0] == 3):
        raise ValueError("it is not of XGBoost 3")
    learner = _object(
        top["learner"],
        {"attributes", "feature_names", "feature_types", "gradient_booster", "learner_model_param",
         "objective"},
    )  # fmt: skip
    features = _parameters(learner)
    booster = _object(learner["gradient_booster"], {"model", "name"})
    if booster["name"] != "gbtree":
        raise ValueError("its booster is not a gbtree")
    _check_forest(booster["model"], features)
    return features


def _parameters(learner: dict[str, Ubjson]) -> int:
    facts = _object(
        learner["learner_model_param"],
        {"base_score", "boost_from_average", "num_class", "num_feature", "num_target"},
    )
    features = _count(facts["num_feature"], MAX_FEATURES)
    if (facts["num_class"], facts["num_target"]) != ("0", "1"):
        raise ValueError("it has several targets or classes")
    if facts["boost_from_average"] not in ("0", "1"):
        raise ValueError("its parameters are not those that this package writes")
    objective = _object(learner["objective"], {"name", "reg_loss_param"})
    if objective["name"] not in OBJECTIVES or objective["reg_loss_param"] != {
        "scale_pos_weight": "1"
    }:
        raise ValueError("its objective is not one that this package uses")
    score = facts["base_score"]
    if not isinstance(score, str) or not _SCORE.fullmatch(score):
        raise ValueError("its base score is not a number")
    base = float(score.strip("[]"))
    if not math.isfinite(base) or (objective["name"] == "binary:logistic" and not 0 < base < 1):
        raise ValueError("its base score is out of range")
    for name in ("feature_names", "feature_types"):
        _check_texts(learner[name], features)
    attributes = learner["attributes"]
    if not isinstance(attributes, dict) or not attributes.keys() <= ATTRIBUTES:
        raise ValueError("it has attributes that this package does not write")
    for value in attributes.values():
        if not (isinstance(value, str) and len(value) < 40 and math.isfinite(float(value))):
            raise ValueError("an attribute is not a number")
    return features


def _check_forest(value: Ubjson, features: int) -> None:
    model = _object(value, {"cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees"})
    cats = _object(model["cats"], {"enc", "feature_segments", "sorted_idx"})
    if any(len(_list(each)) for each in cats.values()):
        raise ValueError("it knows categories")
    facts = _object(model["gbtree_model_param"], {"num_parallel_tree", "num_trees"})
    trees, parallel = model["trees"], _count(facts["num_parallel_tree"], MAX_TREES)
    count = _count(facts["num_trees"], MAX_TREES, least=0)
    if not isinstance(trees, list) or len(trees) != count or count % parallel:
        raise ValueError("it does not have as many trees as it states")
    info = _whole(model["tree_info"])
    if info.shape != (count,) or info.any():
        raise ValueError("its trees are not of one target")
    starts = _whole(model["iteration_indptr"])
    if not np.array_equal(starts, np.arange(0, count + 1, parallel)):
        raise ValueError("its rounds are not those of its trees")
    for place, tree in enumerate(trees):
        _check_tree(_object(tree, {*_NODE_LISTS, *_EMPTY, "id", "tree_param"}), place, features)


def _check_tree(tree: dict[str, Ubjson], place: int, features: int) -> None:
    facts = _object(
        tree["tree_param"], {"num_deleted", "num_feature", "num_nodes", "size_leaf_vector"}
    )
    nodes = _count(facts["num_nodes"], 1 << 24)
    said = (facts["num_feature"], facts["size_leaf_vector"], tree["id"])
    if said != (str(features), "1", place):
        raise ValueError("a tree is not of this model")
    if any(len(_list(tree[name])) for name in _EMPTY):
        raise ValueError("a tree knows categories")
    lists: dict[str, Values] = {}
    for name, kind in _NODE_LISTS.items():
        found = tree[name]
        if not isinstance(found, np.ndarray) or found.dtype != kind or len(found) != nodes:
            raise ValueError("a tree's lists are not those of its nodes")
        lists[name] = found
    left, right, split = lists["left_children"], lists["right_children"], lists["split_indices"]
    inner = np.flatnonzero(left != -1)
    children = np.concatenate([left[inner], right[inner]])
    cut = split == _DELETED  # a leaf that pruning took from its parent
    cut[0] = False
    parents = np.where(cut, lists["parents"], _ROOT)
    sound = (
        np.array_equal(right != -1, left != -1)
        and np.array_equal(np.sort(children), np.flatnonzero(~cut)[1:])
        and (children > np.concatenate([inner, inner])).all()
        and not np.isin(inner, np.flatnonzero(cut)).any()
        and ((parents >= 0) & (parents < nodes))[cut].all()
        and int(cut.sum()) == _count(facts["num_deleted"], nodes, least=0)
    )
    if not sound:
        raise ValueError("a tree is malformed")
    parents[children] = np.concatenate([inner, inner])
    if not np.array_equal(lists["parents"], parents):
        raise ValueError("a tree is malformed")
    if lists["split_type"].any() or lists["default_left"].max(initial=0) > 1:
        raise ValueError("a tree splits by categories")
    if not (cut | ((split >= 0) & (split < features))).all():
        raise ValueError("a tree uses a feature that does not exist")
    if not np.isfinite(lists["split_conditions"]).all():
        raise ValueError("a tree splits at no number")


def _object(value: Ubjson, keys: set[str]) -> dict[str, Ubjson]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ValueError(f"a part of it has not {', '.join(sorted(keys))}")
    return value


def _list(value: Ubjson) -> Values | list[Ubjson]:
    if not isinstance(value, list | np.ndarray):
        raise ValueError("expected a list")
    return value


def _whole(value: Ubjson) -> Values:
    found = _list(value)
    if not all(isinstance(each, int | np.integer) for each in found):
        raise ValueError("a list is not of whole numbers")
    return np.array(found, dtype=np.int64)


def _count(value: Ubjson, most: int, least: int = 1) -> int:
    """A number, written as XGBoost does: text."""
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,9}", value):
        raise ValueError("expected an integer count")
    if not least <= int(value) <= most or str(int(value)) != value:
        raise ValueError("a count is out of range")
    return int(value)


def _check_texts(value: Ubjson, features: int) -> None:
    if not isinstance(value, list) or len(value) not in (0, features):
        raise ValueError("it does not have as many features as it states")
    if not all(isinstance(each, str) for each in value):
        raise ValueError("expected the name of a feature")
