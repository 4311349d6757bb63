"""Holds what onnxruntime runs behind all compiled code of a network, or in place of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tilewright.networks.graph import data_inputs
from tilewright.networks.imported_model import seeded_inputs
from tilewright.networks.model_runner import ModelRunner
from tilewright.networks.onnx_file import has_undrawable_inputs, lone_integers
from tilewright.networks.partition.collapse import RegionModel
from tilewright.networks.sample_values import TEXT


@dataclass(frozen=True, eq=False)
class LastRegions:
    """The regions of `whole`, the network with static inputs, that run last. `halves` are the
    outputs that are float16 in its file and float32 here."""

    regions: tuple[RegionModel, ...]
    whole: onnx.ModelProto
    halves: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs of the network, in the model's order."""
        return data_inputs(self.whole)

    def seeded_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return inputs of the network, as `imported_model.seeded_inputs`."""
        kinds = {
            info.name: (self.shape_of(info), self.dtype_of(info))
            for info in self.inputs
            if not self.container_of(info)
        }
        return seeded_inputs(kinds, seed)

    def shape_of(self, info: onnx.ValueInfoProto) -> tuple[int, ...]:
        """Return sizes, −1 where they are only known when the model runs."""
        dimensions = info.type.tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dimensions)

    def dtype_of(self, info: onnx.ValueInfoProto) -> str:
        """Return the element type as numpy calls it, "str" for text."""
        kind = info.type.tensor_type.elem_type
        return TEXT if kind == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(kind).name

    def empty_outputs(self) -> dict[str, NDArray[Any]]:
        """Return arrays without elements in the types of the outputs that are tensors, and of as
        many dimensions where these are known."""
        found = {}
        for info in self.tensors:
            kind = self.dtype_of(info) if info.type.tensor_type.elem_type else "float32"
            rank = len(self.output_shape(info.name) or ())
            found[info.name] = np.empty((0,) * rank, object if kind == TEXT else kind)
        return found

    def output_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the sizes of an output; None if not even its rank is known."""
        info = next(each for each in self.whole.graph.output if each.name == name)
        return self.shape_of(info) if info.type.tensor_type.HasField("shape") else None

    @cached_property
    def reference(self) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
        """Returns the tensors that onnxruntime gives for the whole network, by output name."""
        return ModelRunner(self.whole, [info.name for info in self.tensors])

    @property
    def constants(self) -> tuple[int, ...]:
        """Single integers that the network holds."""
        return lone_integers(self.whole)

    @property
    def tensors(self) -> list[onnx.ValueInfoProto]:
        """The outputs that are tensors; others are sequences, maps or optional."""
        return [info for info in self.whole.graph.output if not self.container_of(info)]

    @property
    def is_undrawable(self) -> bool:
        """Whether inputs of the network cannot be drawn."""
        return has_undrawable_inputs(self.whole)

    def container_of(self, info: onnx.ValueInfoProto) -> str:
        """Return what an input or output is that is no tensor; "" for a tensor."""
        kind = str(info.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
        return "" if kind == "tensor" else kind
