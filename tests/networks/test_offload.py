"""Tests the placement of layers: each one runs where it costs least, packing included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnx_graphs import model, normal

from tilewright import networks
from tilewright.core.errors import WorkloadError
from tilewright.networks.network import Network
from tilewright.networks.offloading import cpu_costs
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.cpu_costs import SECONDS, operator_seconds
from tilewright.networks.offloading.report import ModelReport
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Blocks, HasTraits, Latency, MachineTraits, offers
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

Load = Callable[[onnx.ModelProto], Network]
BLOCKS = Blocks(1, 16, 16)
CNNS = [n for n in networks.zoo_names() if n not in ("bert_tiny", "vit_tiny")]


@pytest.fixture
def save(tmp_path: Path) -> Load:
    def load(source: onnx.ModelProto) -> Network:
        onnx.save(source, tmp_path / "model.onnx")
        return networks.load(tmp_path / "model.onnx")

    return load


def taking(seconds: float) -> Accelerator:
    """Return an accelerator on which every workload takes the same time."""
    return Accelerator(BLOCKS, bound=lambda _: Latency(seconds))


def places(report: ModelReport) -> dict[str, str]:
    return {operator.name: operator.status for operator in report.operators}


def chain() -> onnx.ModelProto:
    """Return a large convolution, a pool, a softmax (only on the CPU) and a small convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="large", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Softmax", ["b"], ["c"], name="softmax", axis=1),
        helper.make_node("Conv", ["c", "v"], ["y"], name="small"),
    ]
    tensors = {"w": normal(16, 16, 3, 3), "v": normal(16, 16, 1, 1)}
    return model(nodes, tensors, (1, 16, 32, 32), "y")


def test_a_fast_accelerator_gets_all_it_can_run(save: Load) -> None:
    report = save(chain()).report_on(taking(1e-9))
    assert places(report) == {
        "large": "offloaded", "pool": "offloaded", "softmax": "cpu", "small": "offloaded",
    }  # fmt: skip
    assert report.offloaded_share == 1


@pytest.mark.parametrize(("first", "status"), [(16, "offloaded"), (24, "cpu")])
def test_what_is_written_side_by_side_is_no_work(save: Load, first: int, status: str) -> None:
    """A concatenation costs nothing if its inputs meet at a block border."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one"),
        helper.make_node("Conv", ["x", "v"], ["b"], name="two"),
        helper.make_node("Concat", ["a", "b"], ["c"], name="both", axis=1),
        helper.make_node("Conv", ["c", "u"], ["y"], name="last"),
    ]
    tensors = {
        "w": normal(first, 16, 1, 1), "v": normal(32, 16, 1, 1),
        "u": normal(16, first + 32, 1, 1),
    }  # fmt: skip
    report = save(model(nodes, tensors, (1, 16, 8, 8), "y")).report_on(taking(1e-9))
    both = next(operator for operator in report.operators if operator.name == "both")
    assert both.status == status
    assert (both.cpu_seconds == 0) == (status == "offloaded")


def test_a_slow_one_keeps_what_is_still_sooner_there(save: Load) -> None:
    network = save(chain())
    costs = {o.name: o.cpu_seconds for o in network.report_on(taking(1e-9)).operators}
    assert costs["large"] > costs["softmax"] > 0
    report = network.report_on(taking(costs["large"] / 2))
    assert places(report) == {
        "large": "offloaded", "pool": "cpu", "softmax": "cpu", "small": "cpu",
    }  # fmt: skip
    small = next(o for o in report.operators if o.name == "small")
    assert small.workload is None
    assert "on the accelerator with packing" in small.reason
    assert small.accelerator_seconds is not None
    assert small.accelerator_seconds > small.cpu_seconds
    assert set(places(network.report_on(taking(1.0))).values()) == {"cpu"}


def test_packing_is_part_of_the_price(save: Load) -> None:
    """The small convolution reads from the CPU and writes to it, so both images are packed."""
    report = save(chain()).report_on(taking(1e-6))
    result = {o.name: o.accelerator_seconds for o in report.operators}
    accelerator = taking(1e-6)
    once = accelerator.image_seconds(16 * 16 * 16)
    assert result["small"] == pytest.approx(1e-6 + 2 * once)
    assert result["large"] == pytest.approx(1e-6 + accelerator.image_seconds(16 * 32 * 32))
    assert result["pool"] == pytest.approx(1e-6 + once)
    assert report.accelerator_seconds == pytest.approx(3e-6 + 3 * once + 4 * once)


def test_a_host_that_is_slower_gives_more_away(save: Load) -> None:
    network = save(chain())
    at = (
        1.2
        * next(
            o for o in network.report_on(taking(1e-9)).operators if o.name == "small"
        ).cpu_seconds
    )
    slower = replace(taking(at), slowdown=8 * cpu_costs.SLOWDOWN)
    assert places(network.report_on(taking(at)))["small"] == "cpu"
    assert places(network.report_on(slower))["small"] == "offloaded"


def test_what_the_target_refuses_is_left_with_its_words(save: Load) -> None:
    def refusing(workload: Workload) -> Latency:
        if workload.operator == "max_pool":
            raise WorkloadError("no maxima here")
        return Latency(1e-9)

    report = save(chain()).report_on(Accelerator(BLOCKS, bound=refusing))
    pool = next(o for o in report.operators if o.name == "pool")
    assert (pool.status, pool.reason) == ("cpu", "no maxima here")


def test_a_network_that_fits_whole_stays_whole_if_that_costs_little(save: Load) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["a"], ["y"], name="pool"),
    ]
    network = save(model(nodes, {"w": normal(64, 64, 3, 3)}, (1, 64, 16, 16), "y"))

    def seconds(pool: float) -> Accelerator:
        return Accelerator(BLOCKS, bound=lambda w: Latency(pool if w.groups > 1 else 1e-3))

    here = next(o for o in network.report_on(seconds(1e-9)).operators if o.name == "pool")
    dear = here.cpu_seconds + 16 * 16 * 64 * 8 * SECONDS["pack"]  # the cost of returning its result
    assert places(network.report_on(seconds(dear + 0.04e-3)))["pool"] == "offloaded"
    assert places(network.report_on(seconds(dear + 0.08e-3)))["pool"] == "cpu"


@pytest.mark.slow(seconds=0.4)
@pytest.mark.parametrize("name", CNNS)
def test_of_every_cnn_nearly_all_is_offloaded(name: str) -> None:
    report = networks.load(name).report_on(Accelerator.for_target(make_target("vta-pynq")))
    assert report.offloaded_share >= 0.995
    assert all(o.cpu_seconds > 0 for o in report.operators if o.workload)
    if name in ("resnet18", "mobilenet_v1", "digits_cnn"):
        assert not report.cpu_seconds
        assert {o.op_type for o in report.by_status("cpu")} <= {"Flatten"}


def test_a_target_says_how_slow_its_host_is_and_what_layers_take_at_least() -> None:
    class Slow:
        """A VTA with a slower host CPU."""

        traits = MachineTraits(host_slowdown=20.0)

        def __init__(self, target: Target) -> None:
            self._target = target
            self.capabilities = {**target.capabilities, **offers(self, HasTraits)}

        def __getattr__(self, name: str) -> object:
            return getattr(self._target, name)

    target = make_target("vta-pynq")
    assert Accelerator.for_target(target).slowdown == cpu_costs.SLOWDOWN
    result = Accelerator.for_target(Slow(target))  # type: ignore[arg-type]
    assert result.slowdown == 20.0
    workload = Workload("dense", 1, 512, 1, 1, 1008)
    assert result.bound is not None
    assert result.bound(workload) == target.bound(workload)  # type: ignore[attr-defined]


def test_the_table_of_costs_is_in_the_units_it_says() -> None:
    assert operator_seconds("Conv", 1000, 0) == 1000 * SECONDS["conv2d"]
    assert operator_seconds("Gemm", 1000, 0, rows=1) == 1000 * SECONDS["vector"]
    assert operator_seconds("MatMul", 1000, 0, rows=7) == 1000 * SECONDS["matrix"]
    assert operator_seconds("Softmax", 0, 10) == 10 * SECONDS["softmax"]
    assert operator_seconds("SomethingNew", 0, 10) == 10 * SECONDS["elementwise"]
    assert operator_seconds("Reshape", 0, 10) == 0
    assert all(1e-11 < seconds < 1e-7 for seconds in SECONDS.values())
