"""Small co-design runs: `digits_cnn` on a few machines, with the cheapest search method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.flows.codesign import codesign
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.reports.codesign import draw_front
from tilewright.search import LocalRunner
from tilewright.search.events import Listener, ignore

BOUNDS = {
    "log_batch": (0, 0),
    "log_block_in": (3, 4),
    "log_block_out": (3, 4),
    "log_inp_buff_size": (14, 14),
    "log_wgt_buff_size": (16, 16),
    "log_acc_buff_size": (15, 15),
    "log_uop_buff_size": (13, 13),
    "bus_bits": (64, 64),
}
TRIALS = 48
"""Budget of a run: three machines, with four schedules for each of the four layers of
digits_cnn."""


def options(out: Path, **more: Any) -> CodesignOptions:
    """Return the options of a small run, with changes."""
    given = {"networks": ("digits_cnn",), "budget": 1.0, "trials": TRIALS, "method": "random",
             "bounds": BOUNDS, "out": str(out)}  # fmt: skip
    return CodesignOptions.parse(**given | more)


def words(out: str, *more: str, trials: int = TRIALS) -> list[str]:
    """Return the command line of a small run."""
    bounds = [f"{name}={low}:{high}" for name, (low, high) in BOUNDS.items()]
    return [
        "codesign", "--networks", "digits_cnn", "--budget", "1", "--trials", str(trials),
        "--method", "random", *(word for bound in bounds for word in ("--bound", bound)),
        "--out", out, *more,
    ]  # fmt: skip


def run(options: CodesignOptions, emit: Listener = ignore) -> CodesignOutcome:
    """Run a co-design in this process and write its page."""
    outcome = codesign(LocalRunner(emit), options)
    draw_front(options.folder, outcome)
    return outcome
