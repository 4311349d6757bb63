"""Tests networks from torch.export. Skipped unless the optional PyTorch is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_graphs import normal

from tilewright import networks
from tilewright.networks.errors import ModelFileError
from tilewright.networks.quantisation import model_with_weights

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """A residual block with BatchNorm, a ReLU6 and a dense layer."""

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
    (ours,) = networks.load(path, allow_code=True).run({"x": x}).values()
    with torch.no_grad():
        theirs = block(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_its_layers_are_offloaded(exported: tuple[Path, Block]) -> None:
    network = networks.load(exported[0], sandbox=True, allow_code=True)
    workloads = {str(workload) for workload, _, _ in network.workloads(16, 16)}
    assert "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,s=1,p=1" in workloads
    assert model_with_weights(exported[0], allow_code=True).graph.node


def test_a_dynamic_export_takes_an_input_shape(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch", max=8)},)
    program = torch.export.export(nn.ReLU(), (torch.zeros(2, 3),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "dynamic.pt2")
    network = networks.load(tmp_path / "dynamic.pt2", {"input": (4, 3)}, allow_code=True)
    (result,) = network.run({"input": normal(4, 3)}).values()
    np.testing.assert_array_equal(result, np.maximum(normal(4, 3), 0))


def test_a_file_that_pytorch_cannot_read_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ModelFileError, match=r"torch .* cannot load .*m\.pt2"):
        networks.load(tmp_path / "m.pt2", allow_code=True)
