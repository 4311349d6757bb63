"""Networks that are drawn, in every form and on two machines: they compute what onnxruntime does,
or are refused with a cause. `python -m benchmarks.networks_agree` checks hundreds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.agreement.cases import drawn_case, folder_cases, machines_of, run_case
from benchmarks.agreement.check import Outcome
from benchmarks.agreement.drawn import draw
from benchmarks.agreement.forms import FORMS, feeds_of
from benchmarks.agreement.machines import STOCK, drawn_machine
from benchmarks.agreement.numbers import by_onnxruntime, differences


def test_a_seed_draws_the_same_network_again() -> None:
    for seed in range(20):
        assert draw(seed).model == draw(seed).model


def test_drawn_networks_run_in_onnxruntime_and_have_the_shapes_they_say() -> None:
    for seed in range(60):
        model = draw(seed).model
        outputs = by_onnxruntime(model, feeds_of(model, 1, seed))[0]
        for info in model.graph.output:
            shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
            assert outputs[info.name].shape == shape, (seed, info.name)
            assert np.isfinite(outputs[info.name]).all(), (seed, info.name)


def test_drawn_machines_can_be_made(tmp_path: Path) -> None:
    from targets.capabilities import blocks_of
    from targets.registry import make_target

    for seed in range(12):
        machine = drawn_machine(seed, tmp_path)
        blocks = blocks_of(make_target(machine.target))
        assert machine.title == f"{blocks.batch}x{blocks.in_channels}x{blocks.out_channels}"


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    """What is expected is changed, so that what is built is wrong."""
    case = drawn_case(0, "float32")
    wrong = [{name: values + 1 for name, values in each.items()} for each in case.right or ()]
    outcome = run_case(_with(case, wrong), machines_of(0, tmp_path)[0])
    assert outcome.silent
    assert outcome.failed


def _with(case: object, right: object) -> object:
    from dataclasses import replace

    return replace(case, right=right)  # type: ignore[type-var]
