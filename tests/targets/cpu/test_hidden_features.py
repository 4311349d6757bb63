"""Compares the hidden features of buffer stores with those of TVM's own implementation."""

from __future__ import annotations

import sys

import pytest

from tests.targets.cpu.test_compiling import SPEC, WORK, _batch
from tilewright.targets.cpu.compile import llvm_target, scheduled
from tilewright.targets.cpu.hidden_features import store_features, sum_features

INTRINSICS = "tvm.s_tir.tensor_intrin"


@pytest.mark.nightly(seconds=20)
def test_store_features_match_tvms_own_context() -> None:
    before = INTRINSICS in sys.modules  # their import takes ten seconds
    target = llvm_target(SPEC)
    functions = [scheduled(WORK, SPEC, values) for values in _applying(3)]
    ours = [store_features(function, target) for function in functions]
    assert (INTRINSICS in sys.modules) == before

    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import MeasureCandidate, TuneContext
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    modules = [tvm.IRModule({"main": function}) for function in functions]
    theirs = [
        PerStoreFeature()
        .extract_from(
            TuneContext(mod=module, target=target), [MeasureCandidate(Schedule(module), [])]
        )[0]
        .numpy()
        for module in modules
    ]
    assert INTRINSICS in sys.modules
    assert ours == [sum_features(rows) for rows in theirs]
    assert len(set(ours)) == 3


def _applying(count: int) -> list[dict[str, int]]:
    """Return configs whose schedules can be applied."""
    results = []
    for values in _batch(64):
        try:
            scheduled(WORK, SPEC, values)
        except Exception:  # TVM raises many types of exceptions
            continue
        results.append(dict(values))
        if len(results) == count:
            break
    return results
