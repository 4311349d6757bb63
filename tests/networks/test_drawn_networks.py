"""Checks that random networks compute what onnxruntime computes, or are refused with a reason.

Each network is built in several variants and on two machines. `python -m
benchmarks.artifacts.networks_agree` runs the same check on hundreds of networks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.artifacts.cases import (
    STOCK,
    Case,
    Machine,
    drawn_case,
    drawn_machine,
    folder_cases,
    form_of,
    machines_of,
    run_case,
)
from benchmarks.artifacts.drawn_networks import draw
from benchmarks.artifacts.forms import FORMS, feeds_of
from benchmarks.artifacts.numbers import differences, perturb_quantisation, run_in_onnxruntime
from benchmarks.artifacts.shrink import shrink_case
from tilewright.targets.capabilities import traits_of
from tilewright.targets.registry import make_target

SEEDS = tuple(range(20))
NIGHTLY = pytest.mark.nightly(seconds=3)
FAULTY: dict[tuple[int, str], str] = {}
"""Known defects by seed and machine."""


def test_a_seed_draws_the_same_network_again() -> None:
    for seed in range(20):
        assert draw(seed).model == draw(seed).model


def test_drawn_networks_run_in_onnxruntime_and_have_the_shapes_they_say() -> None:
    for seed in range(100):
        drawn = draw(seed)
        assert drawn.macs < 2_000_000
        outputs = run_in_onnxruntime(drawn.model, feeds_of(drawn.model, 1, seed))[0]
        for info in drawn.model.graph.output:
            shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
            assert outputs[info.name].shape == shape, (seed, info.name)
            assert np.isfinite(outputs[info.name]).all(), (seed, info.name)


def test_all_usual_operators_are_drawn() -> None:
    kinds = {node.op_type for seed in range(300) for node in draw(seed).model.graph.node}
    assert kinds >= {
        "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Flatten", "Gemm",
        "GlobalAveragePool", "HardSwish", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu",
        "Reshape", "Sigmoid", "Slice", "Softmax", "Transpose",
    }  # fmt: skip


def test_drawn_machines_have_the_blocks_they_are_called_by(tmp_path: Path) -> None:
    for seed in range(12):
        machine = drawn_machine(seed, tmp_path)
        blocks = traits_of(make_target(machine.target)).blocks
        assert machine.title == f"{blocks.batch}x{blocks.in_channels}x{blocks.out_channels}"


def test_quantised_forms_are_near_the_float_network_they_were_made_of() -> None:
    for form in FORMS:
        case, model = drawn_case(24, form), draw(24).model
        feeds = [{k: v.astype(np.float32) for k, v in feed.items()} for feed in case.feeds]
        right = run_in_onnxruntime(model, feeds)
        results = [{k: v.astype(np.float32) for k, v in item.items()} for item in case.right or ()]
        assert (
            max(difference.relative for difference in differences(model, right, results)) < 0.3
        ), form


def test_a_nudge_of_half_a_step_moves_what_is_rounded_by_a_step_at_most() -> None:
    case = drawn_case(2)  # its outputs are quantised
    assert case.form == "qdq-power-of-two"
    moved = run_in_onnxruntime(perturb_quantisation(case.model, 0.02), case.feeds)
    result = differences(case.model, case.right or (), moved)
    assert all(0 < item.relative < 0.2 for item in result)


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(
    "seed", [seed if seed < 2 else pytest.param(seed, marks=NIGHTLY) for seed in SEEDS]
)
def test_a_drawn_network_computes_what_onnxruntime_does_or_is_refused(
    seed: int, tmp_path: Path
) -> None:
    case = drawn_case(seed)
    for machine in machines_of(seed, tmp_path):
        outcome = run_case(case, machine)
        kind = STOCK if machine.title == STOCK else "drawn"
        if (seed, kind) in FAULTY:
            assert outcome.is_defect, f"mended: {FAULTY[seed, kind]}"
            continue
        said = (case.form, machine.title, outcome.said, outcome.wrong, outcome.outputs)
        assert not outcome.is_defect, f"{said}\n{outcome.trace}"


@pytest.mark.slow(seconds=8)
def test_networks_that_are_fused_otherwise_are_compared_one_of_a_kind() -> None:
    """For this network, the learned fusion equals the fusion of everything."""
    outcome = run_case(drawn_case(43), Machine(STOCK, STOCK))
    assert not outcome.is_defect, (outcome.said, outcome.wrong, outcome.trace)
    assert outcome.fused == ("other", "all", "none")


def test_the_first_seeds_have_every_form() -> None:
    assert {form_of(seed) for seed in SEEDS} == set(FORMS)


def test_other_numbers_than_a_person_expects_are_a_failure(tmp_path: Path) -> None:
    """The expected outputs beside the model are off by the size of the output."""
    (case,) = folder_cases(_with_vectors(tmp_path, off=1.0))
    outcome = run_case(case, machines_of(0, tmp_path)[0])
    assert outcome.kind == "disagreed"
    assert outcome.is_defect
    assert outcome.outputs[0].relative > 0.1


def test_vectors_beside_a_model_are_what_it_must_compute(tmp_path: Path) -> None:
    (case,) = folder_cases(_with_vectors(tmp_path, off=0.0))
    outcome = run_case(case, machines_of(0, tmp_path)[0])
    assert not outcome.is_defect, (outcome.said, outcome.wrong, outcome.trace)
    assert outcome.layers > 0
    assert case.right is not None


def test_an_npz_of_a_models_name_holds_its_vectors(tmp_path: Path) -> None:
    case = _plain()
    onnx.save(case.model, tmp_path / "mine.onnx")
    np.savez(tmp_path / "mine.npz", **dict(case.feeds[0]))
    (result,) = folder_cases(tmp_path)
    assert result.title == "mine.onnx"
    assert result.right is None
    assert result.feeds[0].keys() == case.feeds[0].keys()


def test_models_without_vectors_are_left_out(tmp_path: Path) -> None:
    onnx.save(_plain().model, tmp_path / "mine.onnx")
    assert not list(folder_cases(tmp_path))


def test_the_least_part_that_fails_is_found() -> None:
    """Every part of the network that contains a Softmax counts as failed."""
    case = next(c for c in map(drawn_case, range(0, 80, 8)) if _kinds(c).count("Softmax"))
    small = shrink_case(case, lambda part: "Softmax" in _kinds(part))
    assert _kinds(small) == ["Softmax"]
    assert small.right is not None


def _kinds(case: Case) -> list[str]:
    return [node.op_type for node in case.model.graph.node]


def _plain() -> Case:
    """Return a float network with a single convolution."""
    from onnx import TensorProto, helper

    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3), dtype=np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    graph = helper.make_graph(
        [node], "plain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 16, 10, 10))],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return Case("plain", "float32", model, feeds_of(model, 1, 0))


def _with_vectors(folder: Path, off: float) -> Path:
    """Write the plain network and its expected output, shifted by `off` times the output's size."""
    case, place = _plain(), folder / "models" / "plain"
    (place / "test_data_set_0").mkdir(parents=True)
    onnx.save(case.model, place / "model.onnx")
    right = run_in_onnxruntime(case.model, case.feeds)[0]["y"]
    case = replace(case, right=[{"y": right + np.float32(off * np.abs(right).max())}])
    for role, values in (("input", case.feeds[0]["x"]), ("output", (case.right or [])[0]["y"])):
        tensor = numpy_helper.from_array(np.asarray(values))
        (place / "test_data_set_0" / f"{role}_0.pb").write_bytes(tensor.SerializeToString())
    return folder / "models"
