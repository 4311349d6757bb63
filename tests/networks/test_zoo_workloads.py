"""Compares the built-in networks and their extracted workloads with published figures."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import onnx
import pytest
from onnx_graphs import references

from tilewright import networks
from tilewright.core.errors import UnknownName
from tilewright.core.thread_pools import one_thread
from tilewright.networks import zoo
from tilewright.networks.network import Network
from tilewright.networks.offloading.channel_blocks import iterations, pad_to_blocks
from tilewright.networks.zoo import digits
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import DEFAULT_EPILOGUE
from tilewright.targets.workload import parse_workload

# the ten convolutions of ResNet-18 in publications on VTA tuners, and how often each is called
RESNET18 = {
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1": 4,
    "conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2,p=0": 1,
    "conv2d:n=1,c=64,h=56,w=56,o=128,k=3,s=2,p=1": 1,
    "conv2d:n=1,c=128,h=28,w=28,o=128,k=3,s=1,p=1": 3,
    "conv2d:n=1,c=128,h=28,w=28,o=256,k=1,s=2,p=0": 1,
    "conv2d:n=1,c=128,h=28,w=28,o=256,k=3,s=2,p=1": 1,
    "conv2d:n=1,c=256,h=14,w=14,o=256,k=3,s=1,p=1": 3,
    "conv2d:n=1,c=256,h=14,w=14,o=512,k=1,s=2,p=0": 1,
    "conv2d:n=1,c=256,h=14,w=14,o=512,k=3,s=2,p=1": 1,
    "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,s=1,p=1": 3,
}

# trainable parameters, billions of multiply-accumulates and convolution + dense layers as published
# (torchvision's model cards; MobileNet v1: its paper, table 8, and Keras; ViT-Ti: timm and DeiT's
# paper, with the products of attention; BERT-tiny: its model card, a head of two classes added)
PUBLISHED = {
    "alexnet": (61_100_840, 0.714, 8),
    "bert_tiny": (4_386_178, 0.0587, 18),
    "inception_v3": (23_834_568, 5.71, 95),
    "mobilenet_v1": (4_231_976, 0.569, 28),
    "mobilenet_v2": (3_504_872, 0.301, 53),
    "mobilenet_v3": (5_483_032, 0.217, 64),
    "resnet18": (11_689_512, 1.814, 21),
    "resnet34": (21_797_672, 3.664, 37),
    "resnet50": (25_557_032, 4.089, 54),
    "vgg11": (132_863_336, 7.609, 11),
    "vgg13": (133_047_848, 11.308, 13),
    "vgg16": (138_357_544, 15.470, 16),
    "vgg19": (143_667_240, 19.632, 19),
    "vit_tiny": (5_717_416, 1.254, 98),
}


@cache
def network(name: str) -> Network:
    return networks.load(name)


@pytest.mark.slow(seconds=0.3)
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_built_in_network_has_the_published_size(name: str) -> None:
    parameters, gmacs, layers = PUBLISHED[name]
    tensors = zoo.build(name, weights=False).graph.initializer
    floats = [t for t in tensors if t.data_type == onnx.TensorProto.FLOAT and len(t.dims)]
    trainable = [t for t in floats if "running" not in t.name]
    assert sum(math.prod(t.dims) for t in trainable) == parameters
    report = network(name).report(16, 16)
    assert report.total_macs / 1e9 == pytest.approx(gmacs, rel=0.005)
    assert sum(operator.macs > 0 for operator in report.operators) == layers


@pytest.mark.parametrize("name", networks.zoo_names())
def test_every_workload_fills_whole_blocks_and_every_operator_is_accounted_for(name: str) -> None:
    for block_in, block_out, batch in ((16, 16, 1), (32, 64, 2)):
        report = network(name).report(block_in, block_out, batch)
        workloads = network(name).workloads(block_in, block_out, batch)
        assert workloads
        for workload, _, _ in workloads:
            assert pad_to_blocks(workload, Blocks(batch, block_in, block_out)) == workload
            if workload.groups > 1:
                continue
            assert workload.in_channels % block_in == 0
            assert workload.out_channels % block_out == 0
            assert workload.batch % batch == 0
        offloaded = [o for o in report.by_status("offloaded") if o.macs]
        blocks = Blocks(batch, block_in, block_out)
        whole = sum(o.macs / (1 - o.waste) for o in offloaded)
        products = {o.workload_id for o in offloaded}
        multiplied = sum(
            iterations(w, blocks) * calls for w, calls, _ in workloads if w.id in products
        )
        assert multiplied * block_in * block_out * batch == pytest.approx(whole, rel=3e-3)
        assert report.offloaded_macs == sum(o.macs for o in offloaded)
        built = zoo.build(name, weights=False).graph.node
        assert [o.name for o in report.operators] == [node.name for node in built]
        assert all(o.reason or o.workload for o in report.operators)
        assert not report.by_status("unsupported")


def test_resnet18_has_the_ten_published_convolutions_with_their_counts() -> None:
    result = {
        str(w): calls for w, calls, _ in network("resnet18").workloads(16, 16, epilogue="plain")
    }
    assert result.pop("conv2d:n=1,c=16,h=115,w=115,o=64,k=4,s=1,p=0") == 1
    assert result.pop("dense:n=1,c=512,o=1008") == 1
    assert result == RESNET18


def test_residual_variants_of_a_shape_add_up_to_its_count() -> None:
    result: dict[str, int] = {}
    epilogues = set()
    for workload, calls, _ in network("resnet18").workloads(16, 16):
        result[str(workload)] = result.get(str(workload), 0) + calls
        epilogues.add(", ".join(map(str, workload.epilogue)))
    assert {text: result[text] for text in RESNET18} == RESNET18
    assert epilogues == {
        "bias, >> 8, min 127, max 0",
        "bias, residual 8, >> 8, min 127, max 0",
        "",  # the maximum
        "+ 128, >> 8, min 127, max 0",  # the average
    }


def test_plain_workloads_equal_the_ones_a_user_types() -> None:
    workloads = [w for w, _, _ in network("resnet18").workloads(16, 16, epilogue="plain")]
    assert {parse_workload(text).id for text in RESNET18} < {w.id for w in workloads}
    assert all(w.epilogue == DEFAULT_EPILOGUE for w in workloads)


def test_the_first_layer_is_unfolded_unless_too_much_of_it_would_be_zeros() -> None:
    first = network("resnet18").report(16, 16).operators[0]
    assert first.workload == "conv2d:n=1,c=16,h=115,w=115,o=64,k=4,s=1,p=0"
    assert "2×2 pixels are unfolded into 12 channels" in first.reason
    assert first.waste == pytest.approx(1 - 3 * 49 / (16 * 16), abs=1e-4)
    refused = network("resnet18").report(16, 16, max_waste=0.4).operators[0]
    assert (refused.status, refused.workload) == ("cpu", None)
    assert "43% of its multiplications would be with padding zeros" in refused.reason


def test_depthwise_convolutions_and_pools_are_workloads_of_their_own() -> None:
    report = network("mobilenet_v1").report(16, 16)
    depthwise = [o for o in report.operators if "depthwise.conv" in o.name]
    assert len(depthwise) == 13
    assert all(o.workload and o.waste == 0.9375 for o in depthwise)
    assert depthwise[-1].workload == "conv2d:n=1,c=1024,h=7,w=7,o=1024,k=3,s=1,p=1,g=1024"
    result = {o.op_type: o.workload for o in network("resnet18").report(16, 16).operators}
    assert result["MaxPool"] == "max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1"
    assert result["GlobalAveragePool"] == "conv2d:n=1,c=512,h=7,w=7,o=512,k=7,s=1,p=0,g=512"
    plain = network("resnet18").report(16, 16, epilogue="plain").operators
    assert {o.op_type for o in plain if o.workload} == {"Conv", "Gemm"}


def test_odd_channel_counts_are_padded_and_the_waste_is_reported() -> None:
    result = {o.name: o for o in network("mobilenet_v2").report(16, 16).operators}
    expand = result["features.3.conv.0.0"]
    assert expand.workload == "conv2d:n=1,c=32,h=56,w=56,o=144,k=1,s=1,p=0"
    assert expand.waste == 0.25
    assert "24 input channels are padded to 32" in expand.reason


def test_an_asymmetric_kernel_keeps_its_shape() -> None:
    texts = [str(w) for w, _, _ in network("inception_v3").workloads(16, 16)]
    assert "conv2d:n=1,c=128,h=17,w=17,o=128,k=1x7,s=1,p=0x3" in texts


def test_an_unknown_network_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownName, match="resnet18"):
        networks.load("resnet17")


@pytest.mark.slow(seconds=4)
def test_the_digits_network_is_trained_and_the_same_every_time() -> None:
    model = zoo.build("digits_cnn")  # trains it now, unless another test has done so
    one_thread(list)()  # another thread limits BLAS first; then only its limit applies
    digits.train.cache_clear()
    assert model == zoo.build("digits_cnn")
    images, labels = digits.held_out()
    answers = [
        int(reference.argmax())
        for reference in references(model, [image[None] for image in images])
    ]
    assert np.mean(np.array(answers) == labels) >= 0.95


def test_a_transformers_products_of_tokens_are_offloaded_row_by_row() -> None:
    result: Counter[str] = Counter()
    for workload, calls, _ in network("vit_tiny").workloads(16, 16):
        result[str(workload)] += calls
    assert {text: calls for text, calls in result.items() if text.startswith("dense")} == {
        "dense:n=197,c=192,o=192": 48,
        "dense:n=197,c=192,o=768": 12,
        "dense:n=197,c=768,o=192": 12,
        "dense:n=1,c=192,o=1008": 1,
        "dense:n=197,c=64,o=208": 36,  # the scores of each head
        "dense:n=197,c=208,o=64": 36,
    }
