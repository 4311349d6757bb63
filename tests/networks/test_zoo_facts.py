"""Checks the figures of `tilewright zoo` against the imported networks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tilewright.networks import load, zoo_names
from tilewright.networks.zoo import build
from tilewright.networks.zoo.model_stats import facts

PUBLISHED = {
    "alexnet": 61_100_840, "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872, "mobilenet_v3": 5_483_032, "vgg11": 132_863_336,
    "vgg16": 138_357_544, "vit_tiny": 5_717_416, "bert_tiny": 4_385_920 + 2 * 128 + 2,
}  # fmt: skip
"""Number of parameters in torchvision's documentation; for ViT-Ti in timm's, and for BERT-tiny in
that of google/bert_uncased_L-2_H-128_A-2 with a head of two classes."""


@pytest.mark.parametrize(
    "name", ["digits_cnn", "resnet18", "mobilenet_v1", "vit_tiny", "bert_tiny"]
)
def test_operators_and_macs_are_those_of_the_report(name: str) -> None:
    report, result = load(name).report(16, 16), facts(name)
    assert result.macs == report.total_macs
    assert result.operators == len(report.operators)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_the_published_ones(name: str) -> None:
    assert facts(name).parameters == PUBLISHED[name]


@pytest.mark.slow(seconds=0.5)
def test_parameters_are_what_a_model_with_weights_holds() -> None:
    model = build("digits_cnn")
    read = {name for node in model.graph.node if node.op_type != "Reshape" for name in node.input}
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    learned = sum(size for name, size in sizes.items() if name in read and "running" not in name)
    assert facts("digits_cnn").parameters == learned


def test_all_of_them_are_known_without_tvm() -> None:
    program = (
        "import sys\nfrom tilewright.networks import zoo_names\n"
        "from tilewright.networks.zoo.model_stats import facts\n"
        "assert all(facts(name).macs > 0 for name in zoo_names())\n"
        "sys.exit(str({'tvm', 'onnxruntime'} & set(sys.modules)) if 'tvm' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(zoo_names()) == 15
