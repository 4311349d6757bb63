"""Checks that inspecting, tuning and building a model find the same workloads, in any ONNX form."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.artifacts.cases import NotDrawn, drawn_case, machines_of, write_case
from benchmarks.artifacts.forms import FORMS, Form
from tests.draws import examples
from tilewright import networks
from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_list, as_object
from tilewright.flows.build import build_artifact
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.search import LocalRunner
from tilewright.targets.registry import make_target
from tilewright.targets.workload import canonical, parse_workload
from tilewright.tuning.build_options import BuildOptions


@pytest.mark.slow(seconds=9)
@settings(
    max_examples=examples(15), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(seed=st.integers(10_000, 99_999), form=st.sampled_from(FORMS), drawn_machine=st.booleans())
def test_inspect_tune_build_and_manifest_have_the_same_workloads(
    seed: int, form: Form, drawn_machine: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            path = write_case(drawn_case(seed, form), folder)
        except NotDrawn:
            assume(False)
        samples = folder / "samples.npz"
        calibration = samples if samples.exists() else None
        machine = machines_of(seed, folder)[drawn_machine].target
        network = networks.load(path, calibration=calibration)
        try:
            tuned, report = network.surveyed_on(Accelerator.for_target(make_target(machine)))
        except TilewrightError:
            assume(False)
        options = BuildOptions(
            model=str(path),
            out=folder / "built",
            target=machine,
            trials=0,
            calibration=calibration,
            tolerance=10.0,
        )
        layers = [
            as_object(row)
            for row in as_list(build_artifact(LocalRunner(), options).manifest["layers"])
        ]
        built = [parse_workload(str(row["workload"]), str(row["epilogue"])) for row in layers]
        assert Counter(canonical(item).id for item in built) == Counter(
            {workload_result.workload.id: workload_result.calls for workload_result in tuned}
        )
        assert Counter((row.workload, row.epilogue, row.calls) for row in report.workloads) == (
            Counter((str(e.workload), e.workload.epilogue_text, e.calls) for e in tuned)
        )
