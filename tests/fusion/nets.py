"""Small networks with fusion opportunities, and their fusion problems on a target."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx

from tilewright.flows.build import tuned_picks
from tilewright.fusion.evaluator import Evaluator, FusionSchedules
from tilewright.fusion.problem import FusionProblem
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.quantisation import quantise
from tilewright.networks.zoo.builder import Builder
from tilewright.targets.capabilities import traits_of
from tilewright.targets.registry import make_target


def pooled_residual_net() -> onnx.ModelProto:
    """Return a network with a pooled stem, a residual block, and two siblings that are joined."""
    net = Builder("pooled", (1, 3, 16, 16), 0, True)

    def conv(x: str, name: str, channels: int, kernel: int = 1) -> str:
        return net.batch_norm(net.conv(x, name, channels, kernel, pad=kernel // 2), f"{name}.bn")

    x = net.relu(conv(net.input, "stem", 16, 3), "stem.relu")
    x = net.max_pool(x, "pool", kernel=2, stride=2)
    inner = net.relu(conv(x, "a", 16, 3), "a.relu")
    x = net.relu(net.add(conv(inner, "b", 16, 3), x, "add"), "add.relu")
    one, two = net.relu(conv(x, "one", 16), "one.relu"), net.relu(conv(x, "two", 32), "two.relu")
    x = net.concat([one, two], "joined")
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    return net.model(net.dense(x, "fc", 10))


def projecting_net() -> onnx.ModelProto:
    """Return two blocks with 1×1 projection shortcuts, whose channels do not fill whole blocks."""
    net = Builder("projecting", (1, 3, 16, 16), 0, True)

    def conv(x: str, name: str, channels: int, kernel: int, stride: int = 1) -> str:
        own = net.conv(x, name, channels, kernel, stride, kernel // 2)
        return net.batch_norm(own, f"{name}.bn")

    x = net.relu(conv(net.input, "stem", 16, 3), "stem.relu")
    for name, channels, stride in (("one", 24, 1), ("two", 40, 2)):
        inner = net.relu(conv(x, f"{name}.a", 16, 3, stride), f"{name}.a.relu")
        beside = conv(x, f"{name}.beside", channels, 1, stride)
        both = net.add(conv(inner, f"{name}.b", channels, 1), beside, f"{name}.add")
        x = net.relu(both, f"{name}.relu")
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    return net.model(net.dense(x, "fc", 10))


NETS = {"pooled": pooled_residual_net, "projecting": projecting_net}


def write(folder: Path, net: str = "pooled") -> Path:
    """Write one of the networks to a file."""
    path = folder / f"{net}.onnx"
    onnx.save(NETS[net](), path)
    return path


@cache
def problem(target: str = "vta-pynq", net: str = "pooled") -> FusionProblem:
    """Return the fusion problem of one of the networks on a target."""
    made = make_target(target)
    model = quantise(NETS[net]()).model
    return FusionProblem(integer_graph(model, traits_of(made).blocks, name=net), made)


def evaluator(target: str = "vta-pynq", net: str = "pooled") -> Evaluator:
    """Return an empty evaluator, which uses the schedules of lowest estimated cost."""
    own = problem(target, net)

    def tune(workloads: object) -> object:
        return tuned_picks(workloads, own.target, 0)  # type: ignore[arg-type]

    return Evaluator(own, FusionSchedules(traits_of(own.target).blocks, tune))  # type: ignore[arg-type]
