"""Checks that a small file cannot request more memory than the machine has.

Operation counts must not overflow either.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import networks
from tilewright.networks import zoo
from tilewright.networks.errors import ModelFileError
from tilewright.networks.onnx import size_limits
from tilewright.networks.onnx.size_limits import check_sizes, machine_memory_bytes
from tilewright.networks.quantisation import model_with_weights

pytestmark = pytest.mark.attack

HUGE = 1 << 33
Node = Callable[..., onnx.NodeProto]
node: Node = helper.make_node


def model(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Any], shape: Sequence[int] = (1, 4)
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["p", "q"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def summed(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """Return a model that adds the sum of the tensor `r` to its input."""
    last = [node("ReduceSum", ["r"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    return model([*nodes, *last], constants)


def vector(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ONE = numpy_helper.from_array(np.ones(1, np.float32))
RANGE = node("Range", ["a", "b", "c"], ["i"], name="op")
INNER = helper.make_graph(
    [node("ConstantOfShape", ["n"], ["t"], name="op")], "inner", [],
    [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
)  # fmt: skip

ATTACKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "range": lambda: summed(
        RANGE, node("Cast", ["i"], ["r"], to=1), a=np.int64(0), b=np.int64(HUGE), c=np.int64(1)
    ),
    "constant": lambda: summed(
        node("ConstantOfShape", ["n"], ["r"], name="op", value=ONE), n=vector(1 << 17, 1 << 16)
    ),
    "expand": lambda: summed(node("Expand", ["x", "n"], ["r"], name="op"), n=vector(HUGE // 4, 4)),
    "expanded constant": lambda: summed(
        node("Expand", ["o", "n"], ["r"], name="op"), o=np.ones(1, np.float32), n=vector(HUGE)
    ),
    "tile": lambda: summed(node("Tile", ["x", "n"], ["r"], name="op"), n=vector(HUGE // 8, 2)),
    "pad": lambda: summed(node("Pad", ["x", "n"], ["r"], name="op"), n=vector(0, 0, 0, HUGE)),
    "resize": lambda: summed(
        node("Resize", ["x", "", "n"], ["r"], name="op"), n=np.array([1, 4e9], np.float32)
    ),
    "one-hot": lambda: summed(
        node("Cast", ["x"], ["i"], to=7), node("OneHot", ["i", "n", "v"], ["r"], name="op"),
        n=np.int64(HUGE), v=np.array([0, 1], np.float32),
    ),
    "product of sizes": lambda: summed(
        node("Mul", ["n", "m"], ["k"]), node("ConstantOfShape", ["k"], ["r"], name="op"),
        n=vector(1 << 17), m=vector(1 << 16),
    ),
    "power": lambda: summed(
        node("Pow", ["n", "m"], ["k"]), node("ConstantOfShape", ["k"], ["r"], name="op"),
        n=vector(2), m=vector(33),
    ),
    "power of a shape": lambda: summed(
        node("Shape", ["x"], ["k"]), node("Pow", ["k", "m"], ["l"]),
        node("ConstantOfShape", ["l"], ["r"], name="op"), m=vector(16),
    ),
    "outer product": lambda: summed(
        RANGE, node("Unsqueeze", ["i", "axes"], ["u"]), node("Mul", ["u", "i"], ["z"], name="op"),
        node("Cast", ["z"], ["r"], to=1), axes=vector(1),
        a=np.int64(0), b=np.int64(100_000), c=np.int64(1),
    ),
    "many constants": lambda: summed(
        *(node("ConstantOfShape", ["n"], [f"r{k}"], name=f"op{k}") for k in range(40)),
        node("Concat", [f"r{k}" for k in range(40)], ["r"], axis=0), n=vector(1 << 28),
    ),
    "activations": lambda: model(
        [node("Transpose", ["x"], ["t"]), node("MatMul", ["t", "x"], ["y"], name="op")], {},
        (1, 1 << 17),
    ),
    "inside a branch": lambda: summed(
        node("If", ["c"], ["r"], then_branch=INNER, else_branch=INNER),
        c=np.array(True), n=vector(HUGE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_would_exhaust_memory_is_refused_before_it_is_computed(attack: str) -> None:
    source = ATTACKS[attack]()
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(ModelFileError, match=r"operator 'op\d*' \(\w+\) has .* of memory"):
        check_sizes(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("read", [networks.load, model_with_weights])
def test_every_reader_refuses_them(read: Callable[[Path], object], tmp_path: Path) -> None:
    onnx.save(ATTACKS["range"](), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 300
    with pytest.raises(ModelFileError, match=r"operator 'op' \(Range\)"):
        read(tmp_path / "m.onnx")


def test_sizes_that_an_input_shape_asks_for_are_refused(tmp_path: Path) -> None:
    source = ATTACKS["activations"]()
    size = source.graph.input[0].type.tensor_type.shape.dim[1]
    size.Clear()
    size.dim_param = "n"
    onnx.save(source, tmp_path / "m.onnx")
    with pytest.raises(
        ModelFileError, match=r"operator 'op' \(MatMul\) has a result of shape 131072×131072"
    ):
        _ = networks.load(tmp_path / "m.onnx", {"x": (1, 1 << 17)}).examined
    assert networks.load(tmp_path / "m.onnx", {"x": (1, 64)}).examined.found


def test_the_limit_is_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    source = summed(node("ConstantOfShape", ["n"], ["r"], name="op", value=ONE), n=vector(1 << 20))
    check_sizes(source)
    monkeypatch.setattr(size_limits, "machine_memory_bytes", lambda: 32 << 20)
    with pytest.raises(ModelFileError, match=r"1/16 of this machine's 33\.6 MB"):
        check_sizes(source)
    assert 1 << 28 < machine_memory_bytes() < 1 << 46


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert_tiny"])
def test_usual_networks_are_far_below(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "machine_memory_bytes", lambda: 1 << 30)
    check_sizes(zoo.build(name, weights=False))


def test_large_quantised_weights_may_become_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "machine_memory_bytes", lambda: 64 << 20)
    weights = {"q": np.zeros((1024, 2048), np.int8), "s": np.float32(1), "z": np.int8(0)}
    source = model(
        [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
        weights, (1, 1024),
    )  # fmt: skip
    size_limits.infer_checked(source)


def test_counts_of_work_have_more_than_32_bits(tmp_path: Path) -> None:
    source = model([node("MatMul", ["x", "w"], ["y"])], {}, (1 << 12, 1 << 12))
    source.graph.input.append(
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [1 << 12, 1 << 12])
    )
    onnx.save(source, tmp_path / "m.onnx")
    assert sum(networks.load(tmp_path / "m.onnx").examined.found.macs.values()) == 1 << 36
