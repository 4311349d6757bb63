"""Small networks with something to fuse, and their problems on a target."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx

from fusion.evaluator import Evaluator
from fusion.problem import Problem
from fusion.schedules import Schedules
from networks.integer.extraction import integer_graph
from networks.quantise import quantise
from networks.zoo.builder import Builder
from targets.capabilities import blocks_of
from targets.registry import make_target
from tuning.picks import tuned_picks


def pooled_residual_net() -> onnx.ModelProto:
    """A stem with a pool, a block with a shortcut, two siblings that are joined again."""
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


def write(folder: Path) -> Path:
    """The network as a file."""
    path = folder / "pooled.onnx"
    onnx.save(pooled_residual_net(), path)
    return path


@cache
def problem(target: str = "vta-pynq") -> Problem:
    """The network on a target."""
    made = make_target(target)
    model = quantise(pooled_residual_net()).model
    return Problem(integer_graph(model, blocks_of(made), name="pooled"), made)


def evaluator(target: str = "vta-pynq") -> Evaluator:
    """One that knows nothing, with the schedules that are estimated best."""
    own = problem(target)

    def tune(workloads: object) -> object:
        return tuned_picks(workloads, own.target, 0)  # type: ignore[arg-type]

    return Evaluator(own, Schedules(blocks_of(own.target), tune))  # type: ignore[arg-type]
