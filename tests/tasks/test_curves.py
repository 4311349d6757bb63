"""Tests the convergence curve of a network, which combines those of its workloads."""

from __future__ import annotations

import pandas as pd

from tests.reports.outcomes import outcome, summary
from tilewright.targets.capabilities import Latency
from tilewright.tasks.metrics import chart, network_curves


def test_a_workload_is_held_against_levels_in_its_own_unit() -> None:
    cycles = {"best": Latency(1e-5, 1000), "bound": Latency(5e-6, 500), "rule": None}
    assert chart(cycles) == {"cycles/best": 1000.0, "cycles/bound": 500.0}
    assert chart({"best": Latency(1e-5), "bound": None}) == {"seconds/best": 1e-5}
    assert chart({}) == {}


def test_a_network_is_the_sum_of_its_workloads_as_often_as_they_run() -> None:
    one, two = outcome(), outcome(o=32)  # the second runs twice
    table = [
        (one, 0, "valid", 1500), (one, 0, "valid", 1400), (one, 1, "valid", 1000),
        (two, 0, "timeout", -1), (two, 1, "valid", 2000), (two, 2, "valid", 1500),
    ]  # fmt: skip
    trials = pd.DataFrame(
        {"workload": item.workload.id, "round": k, "status": status, "cycles": cycles,
         "seconds": cycles * 1e-8}
        for item, k, status, cycles in table
    )  # fmt: skip
    total = summary([one, two])["total"]
    first, *others = network_curves(trials, [one, two], total)
    # 1,500 for the first one, and 2 × 3,000 (the rule schedule) until the second has a faster trial
    assert first["cycles/best"] == 1500.0 + 2 * 3000
    assert [step["cycles/best"] for step in others] == [7400.0, 7000.0, 5000.0, 4000.0]
    assert [step["trials"] for step in (first, *others)] == [1.0, 2.0, 4.0, 5.0, 6.0]
    assert others[-1]["cycles/best"] == total["tuned_cycles"]
    assert first["cycles/rule"] == 8000.0
    assert first["cycles/bound"] == 1500.0
