"""Tunes a network in this process, without plots."""

from __future__ import annotations

from typing import Any

from tilewright.flows.tuning import tune_network
from tilewright.search import LocalRunner
from tilewright.tuning import TuningOptions
from tilewright.tuning.events import Listener, ignore
from tilewright.tuning.outputs import Summary


def tune_bare(**options: Any) -> Summary:
    """What `summary.json` holds, by the fields of `TuningOptions`."""
    return tune_options(TuningOptions.parse(**options))


def tune_options(options: TuningOptions, emit: Listener = ignore) -> Summary:
    """The same, by options; `emit` hears what happens."""
    return tune_network(LocalRunner(emit), options).summary
