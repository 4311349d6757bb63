"""Imports and runs a network that comes from torch.export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.networks.errors import UnsupportedOperatorError
from tilewright.networks.fused_calls import NOTHING
from tilewright.networks.imported_model import Whole
from tilewright.networks.model_analysis import Examined
from tilewright.networks.onnx_source import refuse_unsupported
from tilewright.networks.torch_file import read_exported

if TYPE_CHECKING:
    from tilewright.networks.partition.last_regions import LastRegions
    from tilewright.networks.partition.regions import Region
    from tilewright.networks.relax.torch_importer import TorchProgram


class TorchSource:
    """An exported program. Operators are named after the module they come from."""

    has_graph = False

    def weighted(self) -> None:
        """It comes as no ONNX graph."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._exported = read_exported(path)

    @cached_property
    def _program(self) -> TorchProgram:
        from tilewright.networks.relax.torch_importer import TorchProgram

        return TorchProgram(self._exported)

    def examine(self) -> Examined:
        """Import with weights as parameters and partition."""
        from tilewright.networks.relax.partition import partition

        program = self._program
        unsupported = {
            name: (f"the importer knows no operator {operator}", "replace this layer before export")
            for name, operator in program.unsupported.items()
        }
        if unsupported:
            first = next(iter(unsupported))
            behind = (f"not examined: the import stops at '{first}'", f"replace '{first}' first")
            unsupported |= {o.name: behind for o in program.operators if o.name not in unsupported}
            found = NOTHING
        else:
            found = partition(program.flat(weights_as_parameters=True)).found
        return Examined(
            name=self.name,
            inputs=program.inputs,
            operators=program.operators,
            absorbed={},
            unsupported=unsupported,
            readers={},
            shapes=program.shapes,
            found=found,
        )

    def split(self, *, without_layers: bool = False) -> tuple[TorchSource, None]:
        """All of it: no part of it runs in onnxruntime."""
        return self, None

    def as_region(self, regions: Sequence[Region], macs: int) -> LastRegions:
        """Raise `UnsupportedOperatorError`: onnxruntime reads no torch.export files."""
        raise UnsupportedOperatorError(
            f"'{self.name}' has no layer that is compiled here, and onnxruntime reads no "
            "torch.export files; export it with torch.onnx.export"
        )

    def refuse(self, operators: Mapping[str, str]) -> None:
        """Raise `UnsupportedOperatorError` with what a compiler said."""
        name, reason = next(iter(operators.items()))
        raise UnsupportedOperatorError(
            f"'{self.name}' cannot be compiled: '{name}': {reason}; export it with "
            "torch.onnx.export"
        )

    def whole(self) -> Whole:
        """All of it, compiled by TVM alone as the reference; raises `UnsupportedOperatorError`."""
        from tilewright.networks.relax.execute import CompiledModule

        program = self._program
        refuse_unsupported(
            self.name, {name: (f"no operator {op}", "") for name, op in program.unsupported.items()}
        )
        flat = program.flat(weights_as_parameters=False)
        inputs, outputs = tuple(program.inputs), tuple(program.outputs)
        return Whole(
            flat,
            inputs,
            outputs,
            lambda arrays: CompiledModule(flat.module, inputs, outputs)(arrays),
            "TVM without schedules",
        )
