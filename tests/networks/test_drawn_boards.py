"""Compares random networks on VTA machines of many shapes with onnxruntime.

The outputs must be equal for every image of a batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn_nets import INPUT, drawn_network
from onnx_graphs import session

from tests.board.graphs import some_pick
from tilewright.networks import artifact
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets.capabilities import traits_of
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget

MACHINES = [
    (1, 16, 16),
    (2, 16, 16),
    (4, 16, 16),
    (1, 8, 32),
    (1, 16, 32),
    (1, 32, 16),
    (2, 32, 16),
]
"""The (rows, input channels, output channels) that a machine multiplies in one step."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow(seconds=0.1)) for seed in range(1, 6))]


def machine(batch: int, block_in: int, block_out: int) -> VtaSpec:
    """Return a machine with these blocks. Its scratchpads hold as many elements as the default."""
    rows, ins, outs = (int(np.log2(size)) for size in (batch, block_in, block_out))
    return VtaSpec.from_mapping(
        {
            "LOG_BATCH": rows, "LOG_BLOCK_IN": ins, "LOG_BLOCK_OUT": outs,
            "LOG_INP_BUFF_SIZE": 11 + rows + ins, "LOG_WGT_BUFF_SIZE": 10 + ins + outs,
            "LOG_ACC_BUFF_SIZE": 13 + rows + outs,
        }
    )  # fmt: skip


@pytest.mark.parametrize("shape", MACHINES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_board_computes_what_onnxruntime_does(
    shape: tuple[int, int, int], seed: int, tmp_path: Path
) -> None:
    _check_board(machine(*shape), 1000 * MACHINES.index(shape) + seed, tmp_path)


@pytest.mark.slow(seconds=0.1)
@pytest.mark.parametrize("shape", MACHINES[:4], ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("seed", range(3))
def test_relus_may_leak(shape: tuple[int, int, int], seed: int, tmp_path: Path) -> None:
    number = 1000 * MACHINES.index(shape) + seed
    graph = _check_board(machine(*shape), number, tmp_path, 2.0 ** -(1 + seed))
    steps = [op for layer in graph.layers for op in layer.workload.epilogue]
    assert EpilogueOp("leaky", 1 + seed) in steps
    assert not any("leaky" in name for name in graph.left)


def _check_board(
    spec: VtaSpec, number: int, tmp_path: Path, slope: float | None = None
) -> IntegerGraph:
    """Build the random network with this number, run it and compare it. Return its layers."""
    seed = number % 1000
    square = spec.block_in == spec.block_out
    model = drawn_network(number, 1 + seed % 3, spec.block_in if square else None, slope)
    target = VtaTarget(spec)
    graph = integer_graph(model, traits_of(target).blocks)
    picks = [some_pick(layer.workload, seed, spec) for layer in graph.layers]
    artifact.build(graph, picks, target, "vta", tmp_path / "built")
    built = artifact.load(tmp_path / "built", allow_code=True)
    images = np.random.default_rng(seed).integers(-128, 128, graph.inputs[0].shape)
    inputs = {"x": np.ldexp(images.astype(np.float32), INPUT)}
    expected = session(model).run(None, inputs)
    for (name, ours), theirs in zip(built.infer(inputs).items(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert [check.wrong for check in built.verify()] == [0] * len(graph.layers)
    return graph
