"""Tunes a network in this process, without plots."""

from __future__ import annotations

from typing import Any

from tilewright.flows.tuning import tune_network
from tilewright.search import LocalRunner
from tilewright.tuning import TuningOptions
from tilewright.tuning.events import Listener, ignore
from tilewright.tuning.outputs import Summary


def tune_bare(**options: Any) -> Summary:
    """Tune with the given fields of `TuningOptions`. Return the content of `summary.json`."""
    return tune_options(TuningOptions.parse(**options))


def tune_options(options: TuningOptions, emit: Listener = ignore) -> Summary:
    """Tune with the given options. Return the content of `summary.json`."""
    return tune_network(LocalRunner(emit), options).summary
