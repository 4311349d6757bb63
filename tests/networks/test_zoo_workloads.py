"""What is extracted from the built-in networks, shapes only."""

from __future__ import annotations

import pytest

import networks
from networks import zoo
from networks.network import Network
from targets.errors import UnknownName
from targets.workload import DEFAULT_EPILOGUE, parse_workload

# the ten convolutions of ResNet-18 that published VTA tuners report, and their call sites
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


@pytest.fixture(scope="module")
def resnet18() -> Network:
    return networks.load("resnet18")


def test_resnet18_has_the_ten_published_convolutions_with_their_counts(resnet18: Network) -> None:
    found = {str(w): calls for w, calls, _ in resnet18.workloads(16, 16)}
    assert found.pop("dense:n=1,c=512,o=1008") == 1
    assert found == RESNET18


def test_plain_workloads_equal_the_ones_a_user_types(resnet18: Network) -> None:
    ids = {w.id for w, _, _ in resnet18.workloads(16, 16)}
    assert {parse_workload(text).id for text in RESNET18} < ids
    assert all(w.epilogue == DEFAULT_EPILOGUE for w, _, _ in resnet18.workloads(16, 16))


def test_an_unknown_network_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownName, match="resnet18"):
        networks.load("resnet17")


def test_names_are_sorted_and_complete() -> None:
    assert networks.zoo_names() == sorted(zoo.FAMILIES)
