"""Tests networks from torch.export (only where PyTorch, an optional extra, is installed)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_graphs import normal

from tilewright import networks
from tilewright.networks.errors import DynamicShapeError, UnsupportedOperatorError

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """A residual block with BatchNorm, a relu6 and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.relu6 = nn.ReLU6()
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(x))
        y += x
        y = torch.flatten(nn.functional.adaptive_avg_pool2d(self.relu6(y), 1), 1)
        return self.fc(self.dropout(y))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Block]:
    torch.manual_seed(0)
    block = Block().eval()
    for norm in (block.bn1, block.bn2):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    path = tmp_path_factory.mktemp("torch") / "block.pt2"
    torch.export.save(torch.export.export(block, (torch.zeros(1, 3, 8, 8),)), path)
    return path, block


def test_an_exported_program_computes_what_the_module_does(exported: tuple[Path, Block]) -> None:
    path, block = exported
    x = normal(1, 3, 8, 8)
    (ours,) = networks.load(path).run({"x": x}).values()
    with torch.no_grad():
        theirs = block(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_operators_are_named_after_their_modules(exported: tuple[Path, Block]) -> None:
    network = networks.load(exported[0])
    found = {o.name: o for o in network.report(16, 16).operators}
    assert found["conv1"].status == "cpu"
    assert found["conv2"].workload == "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,s=1,p=1"
    for follower in ("bn2", "relu6"):
        assert found[follower].reason == "in the epilogue of 'conv2'"
    texts = {
        str(w): ", ".join(map(str, w.epilogue))
        for w, _, _ in network.workloads(16, 16, epilogue="full")
    }
    assert texts == {
        "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,s=1,p=1": "bias, add, >> 8, min 127, max 0",
        "dense:n=1,c=16,o=16": "bias, >> 8, min 127, max -128",
    }


def test_a_dynamic_export_is_refused(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch", max=8)},)
    program = torch.export.export(nn.ReLU(), (torch.zeros(2, 3),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "dynamic.pt2")
    with pytest.raises(DynamicShapeError, match="without dynamic_shapes"):
        networks.load(tmp_path / "dynamic.pt2")


def test_an_operator_the_importer_lacks_is_reported(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(torch.relu(x))

    torch.export.save(torch.export.export(Odd(), (torch.zeros(1, 4),)), tmp_path / "odd.pt2")
    network = networks.load(tmp_path / "odd.pt2")
    assert len(network.report(16, 16).by_status("unsupported")) == 2
    with pytest.raises(UnsupportedOperatorError, match="special_bessel_j0"):
        network.workloads(16, 16)
