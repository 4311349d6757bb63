"""Defines the tags that identify comparable MLflow runs."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.files import Json, canonical, digest

QUESTION_TAG, SETTINGS_TAG = "tilewright.question", "tilewright.settings"
"""Digests of what a run is about, and of how it was tuned."""
_QUESTION = ("network", "target", "space", "epilogue", "layers")
_NO_SETTING = (*_QUESTION, "target_fingerprint")


def comparison_tags(params: Mapping[str, Json]) -> dict[str, str]:
    """The tags of the run of a network with these parameters. Whatever lowers and measures may
    change between two of a kind: that is what is watched."""
    question = {name: params.get(name, "") for name in _QUESTION}
    settings = {name: value for name, value in params.items() if name not in _NO_SETTING}
    return {
        QUESTION_TAG: digest(canonical(question))[:24],
        SETTINGS_TAG: digest(canonical(settings))[:24],
    }
