"""Measures the cost of operators on this machine's CPU, for `networks.offloading.cpu_costs`.

    python -m benchmarks.cpu.operator_costs

Each kind of operator in `cpu_costs.SECONDS` is measured on one core as the CPU beside an
accelerator runs it: compiled by TVM without tuning, in float32. Packing an image into blocks is
measured in int8. The cost of a kind is the geometric mean over its cases, and the time of a case is
the minimum of several runs. `SECONDS` has the numbers that this command printed, rounded to two
digits.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.offloading.cpu_costs import SECONDS, Kind
from tilewright.targets.im2col import Unfold
from tilewright.targets.workload import parse_workload

RUNS = 7
OPSET = 20

Case = tuple[Kind, str, tuple[int, ...], Mapping[str, NDArray[np.float32]], dict[str, object], int]
"""Kind, ONNX operator, shape of the input, constants, attributes, and number of units of work."""


def cases() -> list[Case]:
    """Return the operators to measure, in sizes that networks have. Shapes are in ONNX's layout."""
    cases: list[Case] = []
    for c, o, size, kernel, stride in (
        (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (64, 256, 56, 1, 1),
        (512, 512, 14, 1, 1), (3, 64, 224, 7, 2),
    ):  # fmt: skip
        out = -(-size // stride)
        attributes: dict[str, object] = {
            "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": 1,
        }  # fmt: skip
        work = out * out * o * c * kernel * kernel
        cases.append(
            ("conv2d", "Conv", (1, c, size, size), {"w": _normal(o, c, kernel, kernel)},
             attributes, work)
        )  # fmt: skip
    for c, size in ((512, 14), (128, 56), (32, 112)):
        attributes = {"pads": [1] * 4, "group": c}
        work = size * size * c * 9
        cases.append(
            ("depthwise", "Conv", (1, c, size, size), {"w": _normal(c, 1, 3, 3)}, attributes, work)
        )
    for rows, c, o in ((1, 2048, 1000), (1, 4096, 4096)):
        cases.append(("vector", "MatMul", (rows, c), {"w": _normal(c, o)}, {}, rows * c * o))
    for rows, c, o in ((197, 192, 768), (128, 128, 512)):
        cases.append(("matrix", "MatMul", (rows, c), {"w": _normal(c, o)}, {}, rows * c * o))
    image = (1, 64, 112, 112)
    pool: dict[str, object] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    cases.append(("window", "MaxPool", image, {}, pool, 64 * 56 * 56 * 9))
    cases.append(("window", "AveragePool", image, {}, pool, 64 * 56 * 56 * 9))
    cases.append(("window", "GlobalAveragePool", (1, 512, 28, 28), {}, {}, 512 * 28 * 28))
    for operator in ("Relu", "Neg"):
        cases.append(("elementwise", operator, image, {}, {}, math.prod(image)))
    cases.append(("elementwise", "Add", image, {"b": _normal(*image)}, {}, math.prod(image)))
    for operator in ("Sigmoid", "Tanh", "Erf", "Exp"):
        cases.append(("transcendental", operator, (1, 197, 768), {}, {}, 197 * 768))
    rows_of = (1, 3, 197, 197)
    cases.append(("softmax", "Softmax", rows_of, {}, {"axis": -1}, math.prod(rows_of)))
    scale = {"scale": _normal(768), "bias": _normal(768)}
    cases.append(("norm", "LayerNormalization", (1, 197, 768), scale, {}, 197 * 768))
    cases.append(("move", "Transpose", (1, 197, 3, 256), {}, {"perm": [0, 2, 1, 3]}, 197 * 768))
    cases.append(("move", "Transpose", image, {}, {"perm": [0, 2, 3, 1]}, math.prod(image)))
    scales = {"roi": np.empty(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    cases.append(
        ("resize", "Resize", (1, 64, 28, 28), scales, {"mode": "linear"}, 64 * 56 * 56)
    )  # fmt: skip
    return cases


def seconds_of(case: Case) -> float:
    """Return the seconds per unit of work of an operator, on a random input."""
    _, operator, shape, constants, attributes, work = case
    node = helper.make_node(operator, ["x", *constants], ["y"], name="y", **attributes)
    graph = helper.make_graph(
        [node], "case", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", OPSET)]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets))
    network = Network(OnnxSource("case", model, lambda: model, {}))
    data = {"x": _normal(*shape)}
    network.run(data)
    return _fastest(lambda: network.run(data)) / work


def packing_seconds() -> float:
    """Return the seconds per byte of packing an int8 image into blocks of 16 channels."""
    image = np.random.default_rng(0).integers(-128, 128, (64, 112, 112), np.int8)
    blocks = image.reshape(4, 16, 112, 112)
    return _fastest(lambda: np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))) / image.size


def unfolding_seconds() -> float:
    """Return the seconds per byte of the result of unfolding the input image of ResNet-18.

    The image is rearranged into patches and packed.
    """
    first = parse_workload("conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3")
    unfold = Unfold.for_patches(first, 2, 2)
    image = np.random.default_rng(0).integers(-128, 128, (1, 3, 224, 224), np.int8)

    def rearrange() -> NDArray[np.int8]:
        blocks = np.zeros((16, unfold.height, unfold.width), np.int8)
        blocks[:12] = unfold.data(image)[0]
        return np.ascontiguousarray(blocks.transpose(1, 2, 0))

    return _fastest(rearrange) / (16 * unfold.height * unfold.width)


def measure_costs() -> dict[Kind, float]:
    """Return the seconds per unit of work by kind of operator."""
    result: defaultdict[Kind, list[float]] = defaultdict(list)
    for case in cases():
        result[case[0]].append(seconds_of(case))
        print(f"  {case[0]:15} {case[1]:20} {case[2]!s:20} {result[case[0]][-1] * 1e9:8.3f} ns")
    result["pack"].append(packing_seconds())
    result["unfold"].append(unfolding_seconds())
    return {kind: math.exp(np.mean(np.log(times))) for kind, times in result.items()}


def _fastest(run: Callable[[], object]) -> float:
    times: Sequence[float] = [_time_call(run) for _ in range(RUNS)]
    return min(times)


def _time_call(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def main() -> None:
    """Print the measured costs beside those in `cpu_costs.SECONDS`."""
    for kind, seconds in measure_costs().items():
        print(
            f"{kind:15} {seconds * 1e9:8.3g} ns measured, "
            f"{SECONDS[kind] * 1e9:8.3g} ns in the table"
        )


if __name__ == "__main__":
    main()
