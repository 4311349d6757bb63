"""Checks that all fusion labellings compute the same, in the reference and on the board."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from integer_nets import BLOCKS, random_inputs
from quantised_graphs import Graph

from benchmarks.quantisation.integer_graphs import in_memory, run
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.networks.fusion import Choices, apply_labels, choices
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.quantisation import quantise
from tilewright.networks.zoo.builder import Builder
from tilewright.targets.capabilities import Blocks, traits_of
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer
from tilewright.targets.registry import kind_of, make_target


def branching_net() -> onnx.ModelProto:
    """Return a network with branches, siblings and shortcuts.

    After a stem with a pool come four branches, of which three are siblings and one splits again. A
    convolution reads their concatenation. Two blocks with projection shortcuts follow.
    """
    net = Builder("branching", (1, 3, 20, 20), 0, True)

    def conv(x: str, name: str, channels: int, kernel: int = 1) -> str:
        own = net.conv(x, name, channels, kernel, pad=kernel // 2)
        return net.relu(net.batch_norm(own, f"{name}.bn"), f"{name}.relu")

    def block(x: str, name: str, channels: int, kernel: int, stride: int) -> str:
        """Add a block with a projection shortcut, which ends in a ReLU if it has a stride."""
        own = net.conv(x, f"{name}.inner", 24, 1, stride)
        own = net.relu(net.batch_norm(own, f"{name}.inner.bn"), f"{name}.inner.relu")
        own = net.batch_norm(
            net.conv(own, f"{name}.outer", channels, kernel, pad=kernel // 2), f"{name}.outer.bn"
        )
        beside = net.batch_norm(net.conv(x, f"{name}.beside", channels, 1, stride), f"{name}.bn")
        beside = net.relu(beside, f"{name}.beside.relu") if stride > 1 else beside
        return net.relu(net.add(own, beside, f"{name}.add"), f"{name}.relu")

    x = net.max_pool(conv(net.input, "stem", 32, 3), "pool", kernel=3, stride=2, pad=1)
    one = conv(x, "one", 16)
    two = conv(conv(x, "two.narrow", 16), "two", 32, 3)
    three = conv(x, "three.narrow", 24)
    three = net.concat([conv(three, "three.a", 16, 3), conv(three, "three.b", 16, 3)], "three")
    four = conv(net.average_pool(x, "average", 3, 1, pad=1), "four", 16)
    x = net.concat([one, two, three, four], "joined")
    x = net.max_pool(conv(x, "last", 48), "shrink", kernel=2, stride=2)
    x = block(block(x, "wide", 40, 1, 2), "square", 40, 3, 1)
    x = conv(x, "end", 32)
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    return net.model(net.dense(x, "fc", 10))


@functools.cache
def _base(blocks: Blocks = BLOCKS) -> tuple[IntegerGraph, Choices]:
    graph = integer_graph(quantise(branching_net()).model, blocks, name="branching")
    return graph, choices(graph)


@functools.cache
def _expected() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    graph, _ = _base()
    inputs = random_inputs(graph)
    return inputs, run(graph, inputs, in_memory(graph))


def test_what_is_offered_and_what_is_not() -> None:
    graph, result = _base()
    assert not graph.islands
    assert len(graph.slices) == 6
    kinds = Counter(choice.kind for choice in result.offered)
    assert kinds == {"activation": 15, "pool": 2, "shortcut": 2, "average": 1, "siblings": 7}
    groups = Counter(choice.group for choice in result.offered if choice.kind == "siblings")
    assert sorted(groups.values()) == [2, 2, 3]
    reasons = {item.name: item.reason for item in result.refused}
    assert "average" in reasons


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=27, max_size=27))
def test_any_labelling_computes_the_same(labels: list[bool]) -> None:
    graph, result = _base()
    inputs, expected = _expected()
    other = apply_labels(graph, labels, result)
    assert other.macs == graph.macs
    values = run(other, inputs, in_memory(other))
    for output in graph.outputs:
        np.testing.assert_array_equal(values[output.name], expected[output.name])
    for layer in graph.layers:  # and all intermediate tensors that both have
        if layer.output in values:
            np.testing.assert_array_equal(values[layer.output], expected[layer.output])


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize(
    ("spec", "which"), [("vta-pynq", "none"), ("vta-pynq", "some"), ("large", "all")]
)
def test_a_labelled_network_runs_on_the_board_as_on_paper(
    spec: str, which: str, tmp_path: Path
) -> None:
    target = make_target(spec)
    graph, result = _base(traits_of(target).blocks)
    labels = {
        "none": [False] * len(result),
        "all": [True] * len(result),
        "some": [bool(k % 3) for k in range(len(result))],
    }[which]
    network = apply_labels(graph, labels, result)
    picks = tuned_picks(artifact.canonical_workloads(network), target, trials=0)
    artifact.build(network, picks, target, kind_of(spec)[0].name, tmp_path / "built")
    loaded = artifact.load(tmp_path / "built", allow_code=True)
    inputs, expected = _expected()
    for name, ours in loaded.infer(inputs).items():
        np.testing.assert_array_equal(ours, expected[name])
    assert [check.wrong for check in loaded.verify()] == [0] * len(network.layers)


def test_a_shortcut_goes_to_the_last_convolution_of_its_block() -> None:
    graph, result = _base()
    only = apply_labels(graph, [choice.kind == "shortcut" for choice in result.offered], result)
    summed = {layer.name: layer for layer in only.layers if layer.shortcut is not None}
    assert list(summed) == ["wide.outer", "square.outer"]
    assert {"wide.beside", "wide.outer"} <= set(summed["wide.outer"].names)
    assert not any(layer.name.endswith("beside") for layer in only.layers)
    assert all(layer.residual is None for layer in summed.values())
    residual = next(layer for layer in graph.layers if layer.name == "wide.outer")
    scale = next(op.value for op in residual.workload.epilogue if op.kind == "residual")
    own = summed["wide.outer"].workload.shortcut
    assert own is not None
    assert [op.value for op in own.epilogue if op.kind == "shl"] == [scale] * (scale > 0)
    assert ("max", 0) in [(op.kind, op.value) for op in own.epilogue]  # its ReLU moves too


@settings(max_examples=25, deadline=None)
@given(
    scale=st.integers(0, 10),
    stride=st.integers(1, 3),
    kernel=st.sampled_from([1, 3]),
    channels=st.tuples(*[st.integers(1, 40)] * 3),
    seed=st.integers(0, 99),
)
def test_a_block_computes_the_same_with_its_shortcut_summed(
    scale: int, stride: int, kernel: int, channels: tuple[int, int, int], seed: int
) -> None:
    """The residual's unit is 2^scale times the unit of the sums."""
    (given, inner, out), g = channels, Graph(seed)
    x = g.quantise(g.input("x", (1, 16, 7, 8)), -5)
    x = g.quantise(g.conv(x, "stem", (given, 16, 1, 1), (-5, -7)), -5)
    strides, pads = (stride, stride), (kernel // 2,) * 4
    a = g.conv(x, "a", (inner, given, 1, 1), (-5, -7), strides=strides)
    b = g.quantise(g.op("Relu", "a.relu", [a]), -4)
    b = g.conv(b, "b", (out, inner, kernel, kernel), (-4, -7), pads=pads)
    beside = g.conv(x, "beside", (out, given, 1, 1), (-5, -6), strides=strides)
    both = g.op("Add", "add", [b, g.quantise(beside, scale - 11)])
    result = g.quantise(g.op("Relu", "relu", [both]), -3)
    shape = (1, out, -(-7 // stride), -(-8 // stride))
    graph = integer_graph(g.model((result, shape)), BLOCKS)
    found_choices = choices(graph)
    together = apply_labels(
        graph, [choice.kind == "shortcut" for choice in found_choices.offered], found_choices
    )
    apart = apply_labels(graph, [False] * len(found_choices), found_choices)
    (layer,) = (layer for layer in together.layers if layer.shortcut is not None)
    own = layer.workload.shortcut
    assert own is not None
    assert own.epilogue[-1:] == (EpilogueOp("shl", scale),) or scale == 0
    assert len(apart.layers) == len(together.layers) + 1
    inputs = random_inputs(graph, seed)
    ours, theirs = (run(item, inputs, in_memory(item)) for item in (together, apart))
    np.testing.assert_array_equal(ours[layer.output], theirs[layer.output])


def test_shortcuts_that_cannot_be_summed_say_why() -> None:
    """One shortcut has a 3×3 kernel. The result of the other one is also an output."""
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 8, 8)), -5)
    wide = g.quantise(g.conv(x, "wide", (16, 16, 3, 3), (-5, -7), pads=(1, 1, 1, 1)), -4)
    first = g.quantise(g.op("Add", "first", [g.conv(x, "a", (16, 16, 1, 1), (-5, -7)), wide]), -4)
    kept = g.quantise(g.conv(first, "kept", (16, 16, 1, 1), (-4, -7)), -4)
    last = g.op("Add", "last", [g.conv(first, "b", (16, 16, 1, 1), (-4, -7)), kept])
    model = g.model((g.quantise(last, -4), (1, 16, 8, 8)), (kept, (1, 16, 8, 8)))
    graph = integer_graph(model, BLOCKS)
    result = choices(graph).refused
    refused = {item.name: item.reason for item in result if item.kind == "shortcut"}
    assert refused["wide"] == "wide is not a 1×1 convolution"
    assert refused["kept"] == "the result of kept is read by other operators, too"


@pytest.mark.parametrize(
    ("name", "epilogue", "says"),
    [
        ("wide.beside", "bias, >> 8, min 127", "wide.beside is not clipped to eight bits"),
        ("wide.beside", "bias, >> 8", "wide.beside is not clipped to eight bits"),
        ("wide.outer", "bias, << 1, residual 8, >> 8, min 127, max 0",
         "the sums of wide.outer are shifted or clipped before it is added"),
    ],
)  # fmt: skip
def test_a_sum_that_would_be_another_number_is_refused(name: str, epilogue: str, says: str) -> None:
    graph, _ = _base()
    steps = tuple(
        replace(step, workload=step.workload.with_epilogue(epilogue))
        if isinstance(step, Layer) and step.name == name
        else step
        for step in graph.steps
    )
    result = choices(replace(graph, steps=steps))
    assert [choice.name for choice in result.offered if choice.kind == "shortcut"] == [
        "square.beside"
    ]
    (reason,) = (item.reason for item in result.refused if item.kind == "shortcut")
    assert reason.endswith(says)


@pytest.mark.parametrize("spec", ["vta-pynq", "huge"])
@pytest.mark.parametrize("block", ["identity", "projection"])
def test_the_average_of_a_block_runs_on_the_board(spec: str, block: str, tmp_path: Path) -> None:
    """The last convolution adds a residual that is larger than its stored (averaged) result."""
    target, net = make_target(spec), Builder("block", (1, 16, 7, 7), 0, True)

    def conv(x: str, name: str, channels: int) -> str:
        return net.batch_norm(net.conv(x, name, channels, 1), f"{name}.bn")

    x = net.relu(conv(net.input, "stem", 40), "stem.relu")
    inner = net.relu(conv(x, "inner", 16), "inner.relu")
    beside = conv(x, "beside", 40) if block == "projection" else x
    x = net.relu(net.add(conv(inner, "outer", 40), beside, "add"), "relu")
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    graph = integer_graph(
        quantise(net.model(net.dense(x, "fc", 10))).model, traits_of(target).blocks
    )
    result = choices(graph)
    inputs = random_inputs(graph)
    expected = run(graph, inputs, in_memory(graph))
    for apart in ("", "shortcut", "activation"):
        network = apply_labels(graph, [choice.kind != apart for choice in result.offered], result)
        (layer,) = (layer for layer in network.layers if layer.workload.average is not None)
        assert (layer.shortcut is None) == (block == "identity" or apart == "shortcut")
        assert (layer.residual is None) == (layer.shortcut is not None)
        picks = tuned_picks(artifact.canonical_workloads(network), target, trials=0)
        folder = tmp_path / f"built{apart}"
        artifact.build(network, picks, target, kind_of(spec)[0].name, folder)
        loaded = artifact.load(folder, allow_code=True)
        for name, ours in loaded.infer(inputs).items():
            np.testing.assert_array_equal(ours, expected[name])
        assert [check.wrong for check in loaded.verify()] == [0] * len(network.layers)


def test_an_average_goes_to_the_convolution_before_it() -> None:
    graph, result = _base()
    only = apply_labels(graph, [choice.kind == "average" for choice in result.offered], result)
    (layer,) = (layer for layer in only.layers if layer.workload.average is not None)
    before = next(item for item in graph.layers if item.name == layer.name)
    average = next(layer for layer in graph.layers if layer.data == before.output)
    assert layer.name == "end"
    assert set(layer.names) == {*before.names, *average.names}
    assert layer.output == average.output
    assert layer.workload.epilogue == before.workload.epilogue
    assert layer.workload.average is not None
    assert layer.workload.average.epilogue == average.workload.epilogue
    assert average.name not in {layer.name for layer in only.layers}


@settings(max_examples=25, deadline=None)
@given(
    image=st.tuples(st.integers(1, 9), st.integers(2, 9)),
    channels=st.tuples(*[st.integers(1, 40)] * 2),
    groups=st.sampled_from([1, 16]),
    block=st.sampled_from(["", "residual", "shortcut"]),
    exponents=st.tuples(st.integers(-5, -2), st.integers(-8, -3)),
    labels=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
@example((1, 2), (1, 1), 1, "residual", (-2, -3), (True, False), 0)  # b reads and adds a
def test_a_convolution_computes_the_same_with_its_average(
    image: tuple[int, int],
    channels: tuple[int, int],
    groups: int,
    block: str,
    exponents: tuple[int, int],
    labels: tuple[bool, bool],
    seed: int,
) -> None:
    """A fused average computes the same as a separate one.

    The convolution may stand alone, or add a residual or a projection shortcut, which may be fused
    too. The clips before and after the average may be fused or not.
    """
    (inner, out), (before, behind), g = channels, exponents, Graph(seed)
    if groups > 1:
        inner = out = 16
    x = g.quantise(g.input("x", (1, 16, *image)), -5)
    a = g.quantise(g.conv(x, "a", (inner, 16, 1, 1), (-5, -7)), -4)
    pads = (1, 1, 1, 1)
    b = g.conv(
        a, "b", (out, inner // groups, 3, 3), (-4, -7), pads=pads, group=groups
    )  # fmt: skip
    if block == "residual" and inner == out:
        b = g.op("Add", "add", [b, a])
    elif block == "shortcut":
        beside = g.quantise(g.conv(x, "beside", (out, 16, 1, 1), (-5, -6)), -4)
        b = g.op("Add", "add", [b, beside])
    b = g.quantise(g.op("Relu", "relu", [b]), before)
    c = g.op("Relu", "relu.behind", [g.op("GlobalAveragePool", "average", [b])])
    graph = integer_graph(g.model((g.quantise(c, behind), (1, out, 1, 1))), BLOCKS)
    result = choices(graph)
    assert not [item.reason for item in result.refused if item.kind == "average"]
    chosen = {"shortcut": labels[0], "activation": labels[1]}
    together = apply_labels(
        graph, [chosen.get(choice.kind, True) for choice in result.offered], result
    )
    (layer,) = (layer for layer in together.layers if layer.workload.average is not None)
    assert (layer.shortcut is not None) == (labels[0] and block == "shortcut" and groups == 1)
    inputs = random_inputs(graph, seed)
    ours, theirs = (run(item, inputs, in_memory(item)) for item in (together, graph))
    np.testing.assert_array_equal(ours[layer.output], theirs[layer.output])


def test_averages_that_stay_layers_say_why() -> None:
    """Averages that cannot be fused give the reason.

    One averages a tensor with a second reader, one has another scale, and the convolution of the
    third one does not clip its result.
    """
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 6, 6)), -5)
    one, two = (
        g.quantise(g.conv(x, name, (16, 16, 1, 1), (-5, -7)), -4) for name in ("one", "two")
    )
    shared = g.quantise(g.op("GlobalAveragePool", "shared", [one]), -5)
    other = g.quantise(g.conv(one, "other", (16, 16, 6, 6), (-4, -7)), -3)
    weighed = g.quantise(g.conv(two, "weighed", (16, 1, 6, 6), (-4, -7), group=16), -3)
    shape = (1, 16, 1, 1)
    graph = integer_graph(g.model((shared, shape), (other, shape), (weighed, shape)), BLOCKS)
    result = choices(graph)
    assert not [choice for choice in result.offered if choice.kind == "average"]
    refused = {item.name: item.reason for item in result.refused if item.kind == "average"}
    assert refused["shared"] == "the result of one is read by other operators, too"
    assert refused["weighed"] == "the weights of weighed are not those of an average"


def test_an_average_of_results_that_are_not_cut_is_refused() -> None:
    graph, _ = _base()
    steps = tuple(
        replace(step, workload=step.workload.with_epilogue("bias, >> 8, min 127"))
        if isinstance(step, Layer) and step.name == "end"
        else step
        for step in graph.steps
    )
    result = choices(replace(graph, steps=steps)).refused
    (reason,) = (item.reason for item in result if item.kind == "average")
    assert reason == "the result of end is not clipped to eight bits"


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize(("spec", "which"), [("vta-pynq", "all"), ("huge", "first")])
def test_averages_of_joined_tensors_run_on_the_board(spec: str, which: str, tmp_path: Path) -> None:
    """An average of a concatenation runs as one average per input.

    The inputs are a convolution, a concatenation of two convolutions, and a pool. The average of
    the pool stays a separate layer, and so does each average that is not fused.
    """
    target, net = make_target(spec), Builder("joined", (1, 16, 7, 7), 0, True)

    def conv(x: str, name: str, channels: int, kernel: int = 1) -> str:
        own = net.conv(x, name, channels, kernel, pad=kernel // 2)
        return net.relu(net.batch_norm(own, f"{name}.bn"), f"{name}.relu")

    x = conv(net.input, "stem", 32)
    inner = net.concat([conv(x, "a", 64, 3), conv(x, "b", 64)], "inner")
    pooled = net.max_pool(conv(x, "c", 64), "pool", kernel=3, stride=1, pad=1)
    x = net.concat([conv(x, "d", 64), inner, pooled], "outer")
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    graph = integer_graph(
        quantise(net.model(net.dense(x, "fc", 10))).model, traits_of(target).blocks
    )
    result = choices(graph)
    averages = [choice for choice in result.offered if choice.kind == "average"]
    assert [choice.name for choice in averages] == [f"global of {name}" for name in "dab"]
    labels = [
        choice.kind not in ("average", "pool")
        or choice in averages[: None if which == "all" else 1]
        for choice in result.offered
    ]
    network = apply_labels(graph, labels, result)
    matching = [layer for layer in network.layers if layer.name.startswith("global of ")]
    assert [layer.name[-1] for layer in matching] == (["l"] if which == "all" else ["a", "b", "l"])
    assert [layer.output for layer in graph.layers if layer.name == "global"] == [
        slice_.whole for slice_ in network.slices if slice_.part == matching[-1].output
    ]
    inputs = random_inputs(graph)
    expected = run(graph, inputs, in_memory(graph))
    picks = tuned_picks(artifact.canonical_workloads(network), target, trials=0)
    artifact.build(network, picks, target, kind_of(spec)[0].name, tmp_path / "built")
    loaded = artifact.load(tmp_path / "built", allow_code=True)
    for name, ours in loaded.infer(inputs).items():
        np.testing.assert_array_equal(ours, expected[name])
    assert [check.wrong for check in loaded.verify()] == [0] * len(network.layers)


def test_averages_of_joined_tensors_that_stay_one_layer_say_why() -> None:
    """Averages of a concatenation that stay one layer give the reason.

    The concatenation has a second reader, the average is clipped to less than eight bits, or the
    CPU writes one of the inputs.
    """

    def reason(read: bool = False, cut: bool = False, erf: bool = False) -> str:
        g = Graph()
        x = g.quantise(g.input("x", (1, 16, 6, 6)), -5)
        parts = [g.quantise(g.conv(x, name, (16, 16, 1, 1), (-5, -7)), -4) for name in "ab"]
        parts += [g.quantise(g.op("Erf", "erf", [x]), -4)] * erf
        both = g.quantise(g.op("Concat", "both", parts, axis=1), -4)
        mean = g.op("GlobalAveragePool", "mean", [both])
        mean = g.quantise(g.op("Relu", "relu", [mean]) if cut else mean, -5)
        other = g.quantise(g.conv(both, "other", (16, 32, 1, 1), (-4, -7)), -3) if read else ""
        last = [(mean, (1, 48 if erf else 32, 1, 1))] + [(other, (1, 16, 6, 6))] * read
        result = choices(integer_graph(g.model(*last), BLOCKS))
        assert not [choice for choice in result.offered if choice.kind == "average"]
        return next((item.reason for item in result.refused if item.kind == "average"), "")

    assert reason(read=True) == "the joined tensor is read by other operators, too"
    assert reason(cut=True) == "its results are clipped to less than eight bits"
    assert reason(erf=True) == ""  # the CPU joins them in a new tensor


def test_what_does_not_lie_in_whole_blocks_is_moved_by_the_cpu() -> None:
    """The inputs are half a block of channels, a batch of images, or the same tensor twice."""

    def joined(shape: tuple[int, ...], widths: tuple[int, ...], twice: bool = False) -> int:
        g = Graph()
        x = g.quantise(g.input("x", shape), -5)
        parts = [
            g.quantise(g.conv(x, f"conv{k}", (width, shape[1], 1, 1), (-5, -7)), -4)
            for k, width in enumerate(widths)
        ]
        parts += parts[:1] * twice
        both = g.quantise(g.op("Concat", "both", parts, axis=1), -4)
        channels = sum(widths) + widths[0] * twice
        last = g.quantise(g.conv(both, "last", (8, channels, 1, 1), (-4, -7)), -2)
        return len(integer_graph(g.model((last, (shape[0], 8, *shape[2:]))), BLOCKS).islands)

    assert joined((1, 8, 4, 4), (16, 8)) == 0
    assert joined((1, 8, 4, 4), (8, 16)) == 1
    assert joined((2, 8, 4, 4), (16, 16)) == 1
    assert joined((1, 8, 4, 4), (16, 16), twice=True) == 1


def test_another_number_of_labels_is_refused() -> None:
    graph, result = _base()
    with pytest.raises(ValueError, match="3 labels are given for 27 fusion decisions"):
        apply_labels(graph, [True] * 3, result)
